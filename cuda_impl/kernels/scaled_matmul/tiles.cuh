// What int8_matmul's and fp8_matmul's levels share from wgmma on (sm_90a): tiles for TMA and wgmma, and the
// epilogue. Sum is int for int8, whose sums are exact, and float for e4m3.
//
// A stage of shared memory has lines of a and below them lines of b, of 128 of K each: 128 bytes, the widest
// that TMA swizzles. A warpgroup multiplies 64 lines of a by all of b.
#pragma once

#include "matmul/tiles.cuh"
#include "ring.cuh"
#include "scaled_matmul/scales.cuh"
#include "wgmma_8bit.cuh"

constexpr int BLOCK_K = 128, WARPGROUP_M = 64;
// From specialized on: consumer warpgroups of a block, and registers per thread, in steps of 8 (setmaxnreg).
constexpr int CONSUMERS = 2, PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(WARPGROUP * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= REGISTERS_PER_BLOCK);

template <int BLOCK_M, int BLOCK_N>
constexpr int STAGE_BYTES = (BLOCK_M + BLOCK_N) * BLOCK_K;

// Whether two blocks of a cluster share a tile of b, else one of a, which is the larger if M is small.
template <int BLOCK_N>
constexpr bool SHARES_B = BLOCK_N > 64;

// Where partial sums are added in fp32 registers, a warpgroup multiplies its 64 rows by PART_N columns at a
// time, PARTS times: two sets of sums of 256 columns would take more registers than a thread can have.
template <int BLOCK_N>
constexpr int PART_N = BLOCK_N < 128 ? BLOCK_N : 128;
template <int BLOCK_N>
constexpr int PARTS = BLOCK_N / PART_N<BLOCK_N>;

// A warp's buffers for pieces of c of 16 rows by 64 columns, used alternately.
constexpr int PIECE_N = 64, PIECE_BYTES = 16 * PIECE_N * 2;
template <int BLOCK_N>
constexpr int C_BUFFERS = BLOCK_N == PIECE_N ? 1 : 2;

#if HAS_WGMMA_LEVELS

// Lines of a tile of a that are fetched: if a has fewer rows, no more than these, rounded up so that half of
// them are whole groups of the swizzle's 8. TMA takes longer to fill lines with zeros than to load them.
template <int BLOCK_M>
__device__ __forceinline__ int lines_of_a(int M) {
    return M < BLOCK_M ? (M + 15) / 16 * 16 : BLOCK_M;
}

// Fetches the tiles at rows m of a and n of b. The phase of `landed` completes when both have arrived.
template <int BLOCK_M, int BLOCK_N>
__device__ __forceinline__ void fetch_tiles(
    unsigned char* stage, const TensorMap* a_map, const TensorMap* b_map, int m, int n, int k, int M,
    mbarrier_t* landed) {
    mbarrier_arrive_expect_bytes(landed, (lines_of_a<BLOCK_M>(M) + BLOCK_N) * BLOCK_K);
    tensor_copy_to_shared(stage, a_map, k, m, landed);
    tensor_copy_to_shared(stage + BLOCK_M * BLOCK_K, b_map, k, n, landed);
}

// As fetch_tiles, of a block of a cluster of two. Of the tile that both need, it loads the half from line
// `half` on, and TMA multicast writes that into both; the other block's half arrives in the same way.
template <int BLOCK_M, int BLOCK_N>
__device__ __forceinline__ void fetch_with_neighbour(
    unsigned char* stage, const TensorMap* a_map, const TensorMap* b_map, int m, int n, int k, int M,
    int half, mbarrier_t* landed, cache_policy_t of_a, cache_policy_t of_b) {
    unsigned char* const b = stage + BLOCK_M * BLOCK_K;
    mbarrier_arrive_expect_bytes(landed, (lines_of_a<BLOCK_M>(M) + BLOCK_N) * BLOCK_K);
    if constexpr (SHARES_B<BLOCK_N>) {
        tensor_copy_to_shared(stage, a_map, k, m, landed, of_a);
        tensor_copy_to_blocks(b + half * BLOCK_K, b_map, k, n + half, landed, 0b11, of_b);
    } else {
        tensor_copy_to_blocks(stage + half * BLOCK_K, a_map, k, m + half, landed, 0b11, of_a);
        tensor_copy_to_shared(b, b_map, k, n, landed, of_b);
    }
}

// sum (+)= 64 lines of a @ lines of b, transposed: four wgmma of 32 of K each. a and b are descriptors, whose
// addresses count 16 bytes: a kernel makes those of the first stage, and adds a stage's offset.
template <typename Sum, int COUNT>
__device__ __forceinline__ void multiply(Sum (&sum)[COUNT], matrix_t a, matrix_t b, bool add) {
#pragma unroll
    for (int k = 0; k < BLOCK_K / 32; ++k) {
        const matrix_t a_k = a + k * (32 >> 4), b_k = b + k * (32 >> 4);
        if constexpr (IS_INT<Sum>) {
            wgmma_s8(sum, a_k, b_k, add || k > 0);
        } else {
            wgmma_e4m3(sum, a_k, b_k, add || k > 0);
        }
    }
}

// ---- epilogue --------------------------------------------------------------------------------------------
// A thread's sums of 64 rows of c: two rows, 8 apart, and of BLOCK_N columns every fourth pair.

__device__ __forceinline__ int own_row() {
    return threadIdx.x % WARPGROUP / WARP * 16 + threadIdx.x % WARP / 4;
}
__device__ __forceinline__ int own_column() {
    return threadIdx.x % 4 * 2;
}
__device__ __forceinline__ float scale_of(const float* scale_ptr, int i, int size) {
    return i < size ? scale_ptr[i] : 0.0f;
}

// Stores a warpgroup's 64 rows of c, from (m, n) on, from registers.
template <typename Sum, int COUNT>
__device__ __forceinline__ void store_sums(
    __nv_bfloat16* c_ptr, const Sum (&sum)[COUNT], const float* scale_a_ptr, const float* scale_b_ptr, int m,
    int n, int M, int N) {
    const int row = m + own_row();
    const float top = scale_of(scale_a_ptr, row, M), bottom = scale_of(scale_a_ptr, row + 8, M);
    __nv_bfloat16* const c_row = c_ptr + static_cast<index_t>(row) * N;
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
        const int column = n + own_column() + j * 8;
        const float left = scale_of(scale_b_ptr, column, N), right = scale_of(scale_b_ptr, column + 1, N);
        const Sum* const own = sum + j * 4;
        if (row < M) store_two(c_row, column, N, scaled(own[0], top, left), scaled(own[1], top, right));
        if (row + 8 < M) {
            store_two(
                c_row + 8 * static_cast<index_t>(N), column, N, scaled(own[2], bottom, left),
                scaled(own[3], bottom, right));
        }
    }
}

// The scales of a thread's sums, loaded while the last of these are computed.
template <int BLOCK_N>
struct Scales {
    float of_row[2], of_column[BLOCK_N / 4];

    __device__ __forceinline__
    Scales(const float* scale_a_ptr, const float* scale_b_ptr, int m, int n, int M, int N) {
#pragma unroll
        for (int i = 0; i < 2; ++i) of_row[i] = scale_of(scale_a_ptr, m + own_row() + i * 8, M);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 4; ++i) {
            of_column[i] = scale_of(scale_b_ptr, n + own_column() + i / 2 * 8 + i % 2, N);
        }
    }

    // Element of c: half of the rows, column 8 * j + i of the thread's.
    template <typename Sum>
    __device__ __forceinline__ float apply(const Sum (&sum)[BLOCK_N / 2], int j, int half, int i) const {
        return scaled(sum[j * 4 + half * 2 + i], of_row[half], of_column[j * 2 + i]);
    }
};

// As store_sums by TMA, in whole lines: a warp writes its 16 rows into buffers of its own in shared memory,
// 64 columns at a time, and waits for no other warp. Rows of c are 16-byte aligned. `scales` has apply() of
// Scales.
template <int BLOCK_N, typename Sum, typename Scaling>
__device__ __forceinline__ void tma_store_sums(
    const TensorMap* c_map, unsigned char* buffers, const Sum (&sum)[BLOCK_N / 2], const Scaling& scales,
    int m, int n) {
    constexpr int BUFFERS = C_BUFFERS<BLOCK_N>;
    const int warp = threadIdx.x / WARP % (CONSUMERS * 4), lane = threadIdx.x % WARP;
    const int row = lane % 16, first = lane / 16;  // 16 bytes that the lane addresses in stmatrix
#pragma unroll
    for (int piece = 0; piece < BLOCK_N / PIECE_N; ++piece) {
        unsigned char* const c = buffers + (warp * BUFFERS + piece % BUFFERS) * PIECE_BYTES;
        if (lane == 0) bulk_wait_group_read<BUFFERS - 1>();  // TMA has read this buffer
        __syncwarp();
#pragma unroll
        for (int j = 0; j < PIECE_N / 8; j += 2) {  // 8 columns, and the 8 next to them
            const auto two = [&](int i) {
                const int column = piece * (PIECE_N / 8) + j + i / 2;
                const __nv_bfloat162 rounded = __floats2bfloat162_rn(
                    scales.apply(sum, column, i % 2, 0), scales.apply(sum, column, i % 2, 1));
                return *reinterpret_cast<const unsigned*>(&rounded);
            };
            stmatrix_x4(c + row * 128 + ((j + first) ^ row % 8) * 16, two(0), two(1), two(2), two(3));
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
            tensor_copy_to_global(c_map, n + piece * PIECE_N, m + warp % 4 * 16, c);
            bulk_commit_group();
        }
    }
}

#endif  // HAS_WGMMA_LEVELS
