// The scales of fp8_block_matmul's levels from prefetched on, in registers before their products are done.
#pragma once

#include "fp8_block_matmul/scaled_sums.cuh"

#if HAS_WGMMA_LEVELS

// What a thread's partial sums are multiplied with: of two rows, 8 apart, for every 64 columns.
template <int BLOCK_N>
struct BlockScale {
    float of[BLOCK_N / PIECE_N][2];

    __device__ __forceinline__ void add(float (&sum)[BLOCK_N / 2], const float (&part)[BLOCK_N / 2]) const {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i) sum[i] += part[i] * of[i / (PIECE_N / 2)][i / 2 % 2];
    }
};

// The scales of a thread's partial sums, loaded four blocks of K ahead. Four lanes have the same rows: each
// loads the scales of one block of four, and all get them by a shuffle. So a warp reads 16 bytes of a row at
// once, and a quarter as often.
template <int BLOCK_N, int WAVES>
struct PrefetchedScales {
    static constexpr int SPANS = BLOCK_N % BLOCK_K == 0 || BLOCK_K % BLOCK_N == 0
                                     ? (BLOCK_N + BLOCK_K - 1) / BLOCK_K
                                     : BLOCK_N / BLOCK_K + 1;  // blocks of b that a tile may lie in

    BlockScales scales;
    int M, N;
    int row, block_n;             // the tile's first row that is this thread's, and its first block of b
    const float *of_row, *of_n;   // their scales of this lane's block of the first four
    float a[WAVES][2], b[SPANS];  // of its block of the next four
    float product[WAVES][2][SPANS];

    __device__ __forceinline__ PrefetchedScales(const BlockScales& scales, int M, int N)
        : scales(scales), M(M), N(N) {}

    // Begins a tile at row m, the warpgroup's first, and column n.
    __device__ __forceinline__ void start(int m, int n) {
        row = m + own_row();
        block_n = n / BLOCK_K;
        of_row = scales.a + static_cast<index_t>(row) * scales.blocks + threadIdx.x % 4;
        of_n = scales.b + static_cast<index_t>(block_n) * scales.blocks + threadIdx.x % 4;
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
#pragma unroll
        for (int span = 0; span < SPANS; ++span) {
            const bool exists = inside && (block_n + span) * BLOCK_K < N;
            b[span] = exists ? of_n[span * scales.blocks + first_k] : 0.0f;
        }
    }

    // Takes the four blocks from k on, which were loaded last, and loads the next four.
    __device__ __forceinline__ void advance(int k) {
#pragma unroll
        for (int wave = 0; wave < WAVES; ++wave) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int span = 0; span < SPANS; ++span) product[wave][half][span] = a[wave][half] * b[span];
            }
        }
        load(k + 4);
    }

    // Those of a wave's partial sums of block k of K, in a tile whose first column is n.
    __device__ __forceinline__ BlockScale<BLOCK_N> of(int wave, int k, int n) const {
        BlockScale<BLOCK_N> scale;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float spans[SPANS];
#pragma unroll
            for (int span = 0; span < SPANS; ++span) {
                spans[span] = __shfl_sync(FULL_WARP, product[wave][half][span], k % 4, 4);
            }
#pragma unroll
            for (int piece = 0; piece < BLOCK_N / PIECE_N; ++piece) {
                const bool first = SPANS == 1 || (n % BLOCK_K + piece * PIECE_N) < BLOCK_K;
                scale.of[piece][half] = first ? spans[0] : spans[SPANS - 1];
            }
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
