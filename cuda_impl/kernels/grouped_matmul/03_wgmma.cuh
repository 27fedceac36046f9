// grouped_matmul, level 3, wgmma. Changes: Hopper's own units, sm_90a. A producer warp fetches tiles by TMA
// into a ring of mbarriers, and two consumer warpgroups multiply them by wgmma, as in matmul's specialized.
// The ring continues across tiles and groups. TMA stores c while the next tile is multiplied, as in matmul's
// tma_store; but a box of TMA ends at the end of c, not at a group's. So a warp with rows of the next group
// stores its own from registers. A warpgroup without rows of its own multiplies too: if it only released its
// stages, it would leave the other one's pace, and whole kernels took up to 14% longer.
#pragma once

#include "grouped_matmul/hopper_ptx.cuh"
#include "grouped_matmul/tiles.cuh"

constexpr int PIECE = 64, PIECE_BYTES = PIECE * LINE_BYTES;   // pieces of 64 x 64 elements, as in matmul
constexpr int C_BUFFERS = 2, C_WARP_BYTES = 16 * LINE_BYTES;  // of a warp, for 16 rows of a piece of c

// Registers per thread, in steps of 8 (setmaxnreg).
constexpr int CONSUMERS = 2, PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(WARPGROUP * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= REGISTERS_PER_BLOCK);

#if HAS_WGMMA_LEVELS

// Fetches the tile of a at row m and the tile of b[group] at column n. The phase of `landed` completes when
// both have arrived. A box is at most 128 bytes wide: of a row-major b there is one for each 64 columns.
template <bool B_BY_ROWS, int BLOCK_M, int BLOCK_N>
__device__ __forceinline__ void fetch_tiles(
    unsigned char* a, const TensorMap* a_map, const TensorMap* b_map, int m, int n, int k, int group,
    mbarrier_t* landed) {
    unsigned char* const b = a + BLOCK_M * LINE_BYTES;
    mbarrier_arrive_expect_bytes(landed, (BLOCK_M + BLOCK_N) * LINE_BYTES);
    tensor_copy_to_shared(a, a_map, k, m, landed);
    if constexpr (B_BY_ROWS) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / PIECE; ++i) {
            matrix_copy_to_shared(b + i * PIECE_BYTES, b_map, n + i * PIECE, k, group, landed);
        }
    } else {
        matrix_copy_to_shared(b, b_map, k, n, group, landed);
    }
}

// sum (+)= a piece of a @ a tile of b: four wgmma of 16 of K each.
template <typename T, bool B_BY_ROWS, int COUNT>
__device__ __forceinline__ void multiply(
    float (&sum)[COUNT], const unsigned char* a, const unsigned char* b, bool add) {
    constexpr int ALONG_K = 16 * 2, ACROSS_K = 16 * LINE_BYTES;  // bytes to the next 16 of K
    const matrix_t a_first = matrix_descriptor(a, PIECE_BYTES), b_first = matrix_descriptor(b, PIECE_BYTES);
#pragma unroll
    for (int k = 0; k < PIECE / 16; ++k) {
        const matrix_t a_k = a_first + k * (ALONG_K >> 4);
        const matrix_t b_k = b_first + k * ((B_BY_ROWS ? ACROSS_K : ALONG_K) >> 4);
        wgmma<T, false, B_BY_ROWS>(sum, a_k, b_k, add || k > 0);
    }
}

// Stores a warp's 16 rows of a tile, whose first element is (m, n) of c. Lane l writes 16 bytes of row l % 16
// into a buffer, in the column group of l / 16, swizzled as c_map expects; TMA stores them. If fewer than 16
// rows are the group's, or rows of c are not 16-byte aligned, from registers.
template <typename T, int COUNT>
__device__ __forceinline__ void store_rows(
    const TensorMap& c_map, unsigned char* c_warp, T* c_ptr, const float (&sum)[COUNT], int m, int n,
    int rows, int N) {
    const int lane = threadIdx.x % WARP, row = lane % 16, first = lane / 16;
    if (rows < 16 || N % 8 != 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int own = half * 8 + lane / 4;
            if (own >= rows) break;  // the next group's rows
            T* const c_row = c_ptr + static_cast<index_t>(m + own) * N;
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
                store_two(
                    c_row, n + lane % 4 * 2 + j * 8, N, sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]);
            }
        }
        return;
    }
#pragma unroll
    for (int piece = 0; piece < COUNT / (PIECE / 2); ++piece) {
        unsigned char* const c = c_warp + piece % C_BUFFERS * C_WARP_BYTES;
        if (lane == 0) bulk_wait_group_read<C_BUFFERS - 1>();  // TMA has read this buffer
        __syncwarp();
#pragma unroll
        for (int j = 0; j < PIECE / 8; j += 2) {  // 8 columns, and the 8 next to them
            const float* const own = sum + piece * (PIECE / 2) + j * 4;
            const auto two = [&](int i) { return to_x2<T>(own[i * 2], own[i * 2 + 1]); };
            stmatrix_x4(c + row * LINE_BYTES + ((j + first) ^ row % 8) * 16, two(0), two(1), two(2), two(3));
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
            tensor_copy_to_global(&c_map, n + piece * PIECE, m, c);
            bulk_commit_group();
        }
    }
}

#endif  // HAS_WGMMA_LEVELS

// a[M,K], b[G,K,N], offsets[G] -> c[M,N]. Grid: persistent, tiles of c of 128 x BLOCK_N assigned round-robin,
// in grouped order. Warpgroup 0 is the producer, of which one thread works; the others have 64 rows each.
template <typename T, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void grouped_matmul_wgmma_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, T* c_ptr, const int* offsets_ptr, int N, int K, int G) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE, GROUP_M = 8;
    constexpr int A_BYTES = BLOCK_M * LINE_BYTES, BYTES = A_BYTES + BLOCK_N * LINE_BYTES;
    static_assert(BLOCK_N / PIECE % C_BUFFERS == 0, "a tile starts with the first buffer");
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);  // now warp-uniform

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Groups<BLOCK_M> of(offsets_ptr, G, tiles_n);
    Ring<STAGES> ring;
    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        for (int tile = blockIdx.x; of.find(tile); tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile - of.first, of.tiles_m(), tiles_n);
            const int m = of.begin + at.m * BLOCK_M, n = at.n * BLOCK_N;
#pragma unroll 1  // its registers are few
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_tiles<B_BY_ROWS, BLOCK_M, BLOCK_N>(
                    tiles + ring.stage * BYTES, &a_map, &b_map, m, n, k, of.group, &full[ring.stage]);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = warpgroup - 1, warp = threadIdx.x % WARPGROUP / WARP;
        const bool releases = threadIdx.x % WARPGROUP == 0;
        unsigned char* const c_warp =
            tiles + STAGES * BYTES + (consumer * 4 + warp) * C_BUFFERS * C_WARP_BYTES;
        float sum[BLOCK_N / 2];
        for (int tile = blockIdx.x; of.find(tile); tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile - of.first, of.tiles_m(), tiles_n);
            const int m = at.m * BLOCK_M + consumer * PIECE;  // in the group
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0 && releases) mbarrier_arrive(&empty[before]);
                before = ring.stage;
            }
            wgmma_wait_group<0>(sum);
            if (releases) mbarrier_arrive(&empty[before]);
            const int row = m + warp * 16, n = at.n * BLOCK_N;
            if (row < of.rows()) {
                store_rows(c_map, c_warp, c_ptr, sum, of.begin + row, n, of.rows() - row, N);
            }
        }
        if (threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
    }
#endif
}
