// What fp8_block_matmul's levels share: a tile's operands in shared memory, and sums scaled block by block.
//
// A tile of c is BLOCK_M = 128 * WAVES rows by BLOCK_N columns. Each of two consumer warpgroups has
// 64 * WAVES rows, WAVES products of 64 rows one after another. A stage of the ring has BLOCK_M lines of a
// and BLOCK_N of b, of 128 of K each: as much as shares a scale.
#pragma once

#include "scaled_matmul/tiles.cuh"

template <int WAVES>
constexpr int ROWS = CONSUMERS * WARPGROUP_M * WAVES;  // of a tile of c

#if HAS_WGMMA_LEVELS

// The matrices' scales, contiguous, and how many blocks of K there are.
struct BlockScales {
    const float *a, *b;
    int blocks;
};

// Stores a thread's sums of 64 rows of c, of which it has `row` and the one 8 further down, from column n on.
template <int COUNT>
__device__ __forceinline__ void store_rows(
    __nv_bfloat16* c_ptr, const float (&sum)[COUNT], int row, int n, int M, int N) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int m = row + half * 8;
        if (m >= M) break;
        __nv_bfloat16* const c_row = c_ptr + static_cast<index_t>(m) * N;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
            store_two(c_row, n + own_column() + j * 8, N, sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]);
        }
    }
}

// A consumer warpgroup's sums, of which a thread has rows 8 * half + lane / 4 of its warp's 16 of each wave.
template <int BLOCK_N, int WAVES>
struct ScaledSums {
    float sum[WAVES][BLOCK_N / 2] = {};
    int row;  // of c, this thread's first

    // `m`: the warpgroup's first row.
    __device__ __forceinline__ explicit ScaledSums(int m) : row(m + own_row()) {}

    // sum += partial sums of the stage's 128 of K * their scales. Tensor cores add with fewer digits than
    // fp32; here their sums end after 128 terms. The scales are loaded while the tensor cores multiply. The
    // stage is `empty` for this warpgroup once its last product is done.
    __device__ __forceinline__ void add_block(
        const unsigned char* stage, mbarrier_t* empty, int consumer, const BlockScales& scales, int k, int n,
        int M) {
        const matrix_t b = matrix_descriptor(stage + CONSUMERS * WARPGROUP_M * WAVES * BLOCK_K, 0);
        const unsigned char* const own = stage + consumer * WARPGROUP_M * WAVES * BLOCK_K;
        const float of_b = scales.b[n / BLOCK_K * scales.blocks + k];
#pragma unroll
        for (int wave = 0; wave < WAVES; ++wave) {
            const matrix_t a = matrix_descriptor(own + wave * WARPGROUP_M * BLOCK_K, 0);
            float part[BLOCK_N / 2];
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BLOCK_K / 32; ++i) wgmma_e4m3(part, a + 2 * i, b + 2 * i, i > 0);
            wgmma_commit_group();
            float scale[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int m = row + wave * WARPGROUP_M + half * 8;
                scale[half] = m < M ? scales.a[static_cast<index_t>(m) * scales.blocks + k] * of_b : 0.0f;
            }
            wgmma_wait_group<0>(part);
            if (wave == WAVES - 1 && threadIdx.x % WARPGROUP == 0) mbarrier_arrive(empty);
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; ++i) sum[wave][i] += part[i] * scale[i / 2 % 2];
        }
    }

    // Stores the sums, whose first column is n.
    __device__ __forceinline__ void store(__nv_bfloat16* c_ptr, int n, int M, int N) const {
#pragma unroll
        for (int wave = 0; wave < WAVES; ++wave) {
            store_rows(c_ptr, sum[wave], row + wave * WARPGROUP_M, n, M, N);
        }
    }
};

#endif  // HAS_WGMMA_LEVELS
