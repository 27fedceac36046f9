// What transposed and wide share (sm_90a): the layout of repacked weights, wgmma's operands from them, and
// what becomes of sums.
//
// A piece is a group of 64 columns of y, the rows of a wgmma. Bits of a nibble's place in it, high to low:
//     row_half 1 | warp 2 | quad 3 | in_quad 2 | word 2 | parity 1 | step 1 | k_half 1
// Thread 32 * warp + 4 * quad + in_quad has wgmma's rows 16 * warp + 8 * row_half + quad. Their order is
// free: they are columns 16 * warp + 2 * quad + row_half of y, so that a thread's two are neighbours. Of a
// group it has k = 32 * word + 16 * step + 8 * k_half + 2 * in_quad + parity. docs/ops/w4a16_matmul.md has
// the picture.
#pragma once

#include "w4a16_matmul/hopper_ptx.cuh"
#include "w4a16_matmul/int4.cuh"
#include "w4a16_matmul/share.cuh"

constexpr int PIECE_N = 64;                                    // columns of y of a warpgroup
constexpr int PIECE_VECTORS = PIECE_N * GROUP / NIBBLES / 4;   // of 16 bytes, of weights
constexpr int PIECE_BYTES = PIECE_VECTORS * 16 + PIECE_N * 4;  // and a scale word per column

// Registers of a thread of the producer warpgroup and of WARPGROUPS consumers: of 65536 for all that reside.
constexpr int PRODUCER_REGISTERS = 24;
template <int WARPGROUPS, int BLOCKS>
constexpr int AT_LAUNCH = 65536 / WARPGROUP / ((WARPGROUPS + 1) * BLOCKS) / 8 * 8 * (WARPGROUPS + 1);
template <int WARPGROUPS, int BLOCKS>
constexpr int LEFT_REGISTERS = (AT_LAUNCH<WARPGROUPS, BLOCKS> - PRODUCER_REGISTERS) / WARPGROUPS / 8 * 8;
template <int WARPGROUPS, int BLOCKS>
constexpr int CONSUMER_REGISTERS =
    LEFT_REGISTERS<WARPGROUPS, BLOCKS> < 240 ? LEFT_REGISTERS<WARPGROUPS, BLOCKS> : 240;

#if HAS_WGMMA_LEVELS

__device__ __forceinline__ void fetch_piece(
    unsigned char* to, const unsigned char* from, int evict_first, mbarrier_t* landed) {
    if (evict_first) {
        bulk_copy_to_shared_once(to, from, PIECE_BYTES, landed);
    } else {
        bulk_copy_to_shared(to, from, PIECE_BYTES, landed);
    }
}

// A descriptor's lower half, which holds the address in units of 16 bytes: moved to `stage` of so many bytes,
// and warp-uniform, as wgmma takes it. Without the shuffle every lane computes each of a group's descriptors.
__device__ __forceinline__ unsigned lower_half(matrix_t first, int stage, int bytes) {
    return __shfl_sync(FULL_WARP, static_cast<unsigned>(first) + stage * (bytes >> 4), 0);
}
// The descriptor with that lower half, `bytes` further.
__device__ __forceinline__ matrix_t descriptor_at(matrix_t first, unsigned lower, int bytes) {
    return (first >> 32 << 32) | (lower + (bytes >> 4));
}

// A thread's part of a piece: 32 weights of each row_half.
struct Quantized64 {
    uint4 words[2];
    unsigned scale_words[2];

    __device__ __forceinline__ void load(const unsigned char* piece) {
        const int thread = threadIdx.x % WARPGROUP;
        const uint4* const vectors = reinterpret_cast<const uint4*>(piece);
        words[0] = vectors[thread], words[1] = vectors[WARPGROUP + thread];
        const uint2 two = reinterpret_cast<const uint2*>(piece + PIECE_VECTORS * 16)[thread / 4];
        scale_words[0] = two.x, scale_words[1] = two.y;
    }
};

// wgmma's operands of a group, q - zero, exact: operand[2 * word + step][2 * k_half + row_half].
template <typename T>
__device__ __forceinline__ void dequantize_piece(unsigned (&operand)[GROUP / 16][4], const Quantized64& w) {
#pragma unroll
    for (int row_half = 0; row_half < 2; ++row_half) {
        const unsigned bias = bias_of<T>(w.scale_words[row_half] >> 16);
        const uint4 four = w.words[row_half];
        const unsigned words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unsigned pair[4];  // number 2 * step + k_half
            dequantize<T>(pair, words[i], bias);
            operand[2 * i][row_half] = pair[0], operand[2 * i][2 + row_half] = pair[1];
            operand[2 * i + 1][row_half] = pair[2], operand[2 * i + 1][2 + row_half] = pair[3];
        }
    }
}

// Writes a warpgroup's elements of y that exist. A thread has columns n and n + 1, of rows 8 * j + 2 * t and
// the next: eight lanes write 32 contiguous bytes.
template <typename T, int COUNT>
__device__ __forceinline__ void store_transposed(
    T* y_ptr, const float (&total)[COUNT], index_t begin_m, index_t begin_n, index_t M, index_t N) {
    const int thread = threadIdx.x % WARPGROUP;
    const index_t n = begin_n + thread / 4 * 2, m = begin_m + thread % 4 * 2;
    const bool paired = n + 1 < N && N % 2 == 0;
    if (n >= N) return;
    T* y = y_ptr + m * N + n;
    const int rows = static_cast<int>(M - m < 8 * COUNT ? M - m : 8 * COUNT);
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) {
        if (i / 2 * 8 + i % 2 < rows) {
            const T left = T(total[i / 2 * 4 + i % 2]), right = T(total[i / 2 * 4 + i % 2 + 2]);
            if (paired) {
                const T both[2] = {left, right};
                *reinterpret_cast<unsigned*>(y) = reinterpret_cast<const unsigned&>(both);
            } else {
                y[0] = left;
                if (n + 1 < N) y[1] = right;
            }
        }
        y += i % 2 == 0 ? N : 7 * N;
    }
}

// Partial sums of a tile, in fp32: a thread's own lie 16 bytes each, those of a warpgroup's threads together.
template <int COUNT>
__device__ __forceinline__ void store_part(float* part, const float (&total)[COUNT], int threads) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        *reinterpret_cast<float4*>(part + i * threads) =
            make_float4(total[i], total[i + 1], total[i + 2], total[i + 3]);
    }
}
template <int COUNT>
__device__ __forceinline__ void add_part(float (&total)[COUNT], const float* part, int threads) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(part + i * threads));
        total[i] += four.x, total[i + 1] += four.y, total[i + 2] += four.z, total[i + 3] += four.w;
    }
}

// A warp's sums of a block are stored: release. Whoever sees the flag sees them.
__device__ __forceinline__ void set_flag(unsigned* flag) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) store_release(flag, 1);
}
// Waits for `count` flags, `step` apart and ending before `end`, at the same time, and sets them to 0:
// acquire.
__device__ __forceinline__ void wait_for_flags(unsigned* end, int count, int step) {
    for (int i = threadIdx.x % WARP; i < count; i += WARP) {
        unsigned* const flag = end - (i + 1) * step;
        while (load_acquire(flag) == 0) __nanosleep(20);
        *flag = 0;
    }
    __syncwarp();
}
// The blocks before this one that have groups of the tile that begins at `tile_begin` of the sequence.
__device__ __forceinline__ int blocks_before(int units, int block, int tile_begin) {
    int count = 0;
    while (block - count > 0 && share_begin(units, block - count) > tile_begin) ++count;
    return count;
}

#endif  // HAS_WGMMA_LEVELS
