// What fp8_block_matmul's levels share from prefetched on: scales that are loaded ahead, and a lead.
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
template <int WAVES>
struct PrefetchedScales {
    BlockScales scales;
    int M, N;
    int row;                     // this thread's first of the tile
    bool has_columns;            // of a pair of tiles, the second may have none
    const float *of_row, *of_n;  // the row's scales, and the columns', from this lane's block of four on
    float a[WAVES][2], b;        // of its block of the next four
    float product[WAVES][2];     // of the present four

    __device__ __forceinline__ PrefetchedScales(const BlockScales& scales, int M, int N)
        : scales(scales), M(M), N(N) {}

    // Begins a tile at row m, the warpgroup's first, and column n.
    __device__ __forceinline__ void start(int m, int n) {
        row = m + own_row();
        has_columns = n < N;
        of_row = scales.a + static_cast<index_t>(row) * scales.blocks + threadIdx.x % 4;
        of_n = scales.b + static_cast<index_t>(n / BLOCK_K) * scales.blocks + threadIdx.x % 4;
        load(0);
    }

    __device__ __forceinline__ void load(int first_k) {
        const bool inside = first_k + static_cast<int>(threadIdx.x % 4) < scales.blocks;
#pragma unroll
        for (int wave = 0; wave < WAVES; ++wave) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int below = wave * WARPGROUP_M + half * 8;
                a[wave][half] = inside && row + below < M ? of_row[below * scales.blocks + first_k] : 0.0f;
            }
        }
        b = inside && has_columns ? of_n[first_k] : 0.0f;
    }

    // Takes the four blocks from k on, which were loaded last, and loads the next four.
    __device__ __forceinline__ void advance(int k) {
#pragma unroll
        for (int wave = 0; wave < WAVES; ++wave) {
#pragma unroll
            for (int half = 0; half < 2; ++half) product[wave][half] = a[wave][half] * b;
        }
        load(k + 4);
    }

    // Those of a wave's partial sums of block k of K.
    __device__ __forceinline__ BlockScale of(int wave, int k) const {
        BlockScale scale;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            scale.of[half] = __shfl_sync(FULL_WARP, product[wave][half], k % 4, 4);
        }
        return scale;
    }
};

// The lead of consumer 0, in blocks of K. A ring has at least four stages, of which the lead takes two. Short
// sums leave no time for it.
struct Lead {
    int blocks;
    bool leads;

    // Called once by all threads of a consumer: those of consumer 1 wait here.
    __device__ __forceinline__ Lead(int consumer, int blocks_k)
        : blocks(min(2, blocks_k / 32)), leads(consumer == 0) {
        if (!leads) named_barrier_sync<CONSUMERS * WARPGROUP>(1);
    }
    // Called after the first tile's products of block k have started, for all k: lets consumer 1 start.
    __device__ __forceinline__ void pass(int k) const {
        if (leads && k == blocks) named_barrier_arrive<CONSUMERS * WARPGROUP>(1);
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
