// What fp8_block_matmul's levels share from prefetched on: scales that are loaded ahead.
#pragma once

#include "fp8_block_matmul/scaled_sums.cuh"

#if HAS_WGMMA_LEVELS

// What a thread's partial sums are multiplied with, of each of its two rows.
struct BlockScale {
    float of[2];

    template <int COUNT>
    __device__ __forceinline__ void add(float (&sum)[COUNT], const float (&part)[COUNT]) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sum[i] += part[i] * of[i / 2 % 2];
    }
};

// The scales of a thread's partial sums, loaded four blocks of K ahead. Four lanes have the same rows: each
// loads the scales of one block of four, and all get them by a shuffle. So a warp reads 16 bytes of a row at
// once, and a quarter as often.
template <int PARTS>
struct PrefetchedScales {
    BlockScales scales;
    int M, N;
    const float *of_row[2], *of_n[PARTS];  // the scales of the thread's rows, and of each 128 columns
    float a[2], b[PARTS];                  // of this lane's block of the next four
    float product[PARTS][2];               // of the present four

    __device__ __forceinline__ PrefetchedScales(const BlockScales& scales, int M, int N)
        : scales(scales), M(M), N(N) {}

    // Begins a tile at row m, the warpgroup's first, and column n. Rows and columns behind the end take the
    // scales of the last one: their sums are not stored.
    __device__ __forceinline__ void start(int m, int n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = min(m + own_row() + half * 8, M - 1);
            of_row[half] = scales.a + static_cast<index_t>(row) * scales.blocks;
        }
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            const int block = min(n + i * BLOCK_K, N - 1) / BLOCK_K;
            of_n[i] = scales.b + static_cast<index_t>(block) * scales.blocks;
        }
        load(0);
    }

    // Loads without a condition: a choice between a loaded value and 0 would wait for the load.
    __device__ __forceinline__ void load(int first_k) {
        const int k = min(first_k + static_cast<int>(threadIdx.x % 4), scales.blocks - 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) a[half] = of_row[half][k];
#pragma unroll
        for (int i = 0; i < PARTS; ++i) b[i] = of_n[i][k];
    }

    // Takes the four blocks from k on, which were loaded last, and loads the next four.
    __device__ __forceinline__ void advance(int k) {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) product[i][half] = a[half] * b[i];
        }
        load(k + 4);
    }

    // Those of the partial sums of block k of K, of a part of the columns.
    __device__ __forceinline__ BlockScale of(int part, int k) const {
        BlockScale scale;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            scale.of[half] = __shfl_sync(FULL_WARP, product[part][half], k % 4, 4);
        }
        return scale;
    }
};

// Sums are scaled already when they are stored.
struct Unscaled {
    template <int COUNT>
    __device__ __forceinline__ float apply(const float (&sum)[COUNT], int j, int half, int i) const {
        return sum[j * 4 + half * 2 + i];
    }
};

#endif  // HAS_WGMMA_LEVELS
