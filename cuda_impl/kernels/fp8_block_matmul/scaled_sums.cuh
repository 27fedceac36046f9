// What fp8_block_matmul's levels share: a tile's operands in shared memory, and sums scaled block by block.
//
// A tile of c is 128 rows by BLOCK_N columns. Each of two consumer warpgroups has 64 rows, and multiplies
// them by 128 columns at a time. A stage of the ring has 128 lines of a and BLOCK_N of b, of 128 of K each:
// as much as shares a scale.
#pragma once

#include "scaled_matmul/tiles.cuh"

constexpr int BLOCK_M = CONSUMERS * WARPGROUP_M;  // rows of a tile of c

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

// A consumer warpgroup's sums, of which a thread has rows 8 * half + lane / 4 of its warp's 16.
template <int BLOCK_N>
struct ScaledSums {
    static constexpr int PART_N = ::PART_N<BLOCK_N>, PARTS = ::PARTS<BLOCK_N>;
    float sum[PARTS][PART_N / 2] = {};
    int row;  // of c, this thread's first

    // `m`: the warpgroup's first row.
    __device__ __forceinline__ explicit ScaledSums(int m) : row(m + own_row()) {}

    // sum += partial sums of the stage's 128 of K * their scales. Tensor cores add with fewer digits than
    // fp32; here their sums end after 128 terms. The scales are loaded while the tensor cores multiply. The
    // stage is `empty` for this warpgroup once its last product is done.
    __device__ __forceinline__ void add_block(
        const unsigned char* stage, mbarrier_t* empty, int consumer, const BlockScales& scales, int k, int n,
        int M, int N) {
        const matrix_t a = matrix_descriptor(stage + consumer * WARPGROUP_M * BLOCK_K, 0);
#pragma unroll
        for (int part_n = 0; part_n < PARTS; ++part_n) {
            const matrix_t b = matrix_descriptor(stage + (BLOCK_M + part_n * PART_N) * BLOCK_K, 0);
            float part[PART_N / 2];
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BLOCK_K / 32; ++i) wgmma_e4m3(part, a + 2 * i, b + 2 * i, i > 0);
            wgmma_commit_group();
            const int column = min(n + part_n * PART_N, N - 1);
            const float of_b = scales.b[column / BLOCK_K * scales.blocks + k];
            float scale[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int m = row + half * 8;
                scale[half] = m < M ? scales.a[static_cast<index_t>(m) * scales.blocks + k] * of_b : 0.0f;
            }
            wgmma_wait_group<0>(part);
            if (part_n == PARTS - 1 && threadIdx.x % WARPGROUP == 0) mbarrier_arrive(empty);
#pragma unroll
            for (int i = 0; i < PART_N / 2; ++i) sum[part_n][i] += part[i] * scale[i / 2 % 2];
        }
    }

    // Stores the sums, whose first column is n.
    __device__ __forceinline__ void store(__nv_bfloat16* c_ptr, int n, int M, int N) const {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) store_rows(c_ptr, sum[i], row, n + i * PART_N, M, N);
    }
};

#endif  // HAS_WGMMA_LEVELS
