// What tiled and persistent share: one tile of c by tensor cores, sm_80. The loop is that of matmul's
// tensor_core, for a tile that the caller chooses.
#pragma once

#include "grouped_matmul/tiles.cuh"
#include "matmul/08_tensor_core.cuh"

// Sizes of a block's tile, and how its warps share it.
template <int M, int N, int K, int WARPS_ALONG_M, int WARPS_ALONG_N, int STAGE_COUNT>
struct MmaTile {
    static constexpr int BLOCK_M = M, BLOCK_N = N, BLOCK_K = K, STAGES = STAGE_COUNT;
    static constexpr int WARPS_M = WARPS_ALONG_M, WARPS_N = WARPS_ALONG_N, THREADS = WARPS_M * WARPS_N * WARP;
};

// The tile of c[M,N] = a[M,K] @ b[K,N], one group's, that begins at (begin_m, begin_n). A warp computes an
// equal share as 16 x 8 matrices. One tile of a and b is used, STAGES - 1 are in flight.
template <typename T, bool B_BY_ROWS, typename Tile>
__device__ __forceinline__ void multiply_tile(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb,
    index_t begin_m, index_t begin_n) {
    constexpr int BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N, BLOCK_K = Tile::BLOCK_K;
    constexpr int STAGES = Tile::STAGES, STEPS = BLOCK_K / 16;
    constexpr int WARP_M = BLOCK_M / Tile::WARPS_M, WARP_N = BLOCK_N / Tile::WARPS_N;  // a warp's share
    constexpr int MATRICES_M = WARP_M / 16, MATRICES_N = WARP_N / 8;
    using ACopy = SwizzledCopy<T, true, BLOCK_M, BLOCK_K, Tile::THREADS>;
    using BCopy = SwizzledCopy<T, !B_BY_ROWS, BLOCK_N, BLOCK_K, Tile::THREADS>;
    DYNAMIC_SHARED(T, a_tiles);
    T* const b_tiles = a_tiles + STAGES * BLOCK_M * BLOCK_K;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int warp_m = warp / Tile::WARPS_N * WARP_M, warp_n = warp % Tile::WARPS_N * WARP_N;

    ACopy a_copy(a_ptr, lda, begin_m, M, K);
    BCopy b_copy(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    int whole = inside ? at_most(K / BLOCK_K, 0x7fffffff) : 0;  // complete tiles not yet fetched
    const auto fetch = [&](int stage) {
        T *const a_tile = a_tiles + stage * BLOCK_M * BLOCK_K, *const b_tile =
                                                                   b_tiles + stage * BLOCK_N * BLOCK_K;
        if (--whole >= 0) {
            a_copy.next(a_tile, true);
            b_copy.next(b_tile, true);
        } else {
            a_copy.next(a_tile, false);
            b_copy.next(b_tile, false);
        }
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    float sum[MATRICES_M][MATRICES_N][4] = {};
    unsigned a[2][MATRICES_M][4] = {}, b[2][MATRICES_N / 2][4] = {};  // this step's, and the next one's
    const int first = lane / 8 % 2 * 8, second = lane / 16 * 8;       // of the four 8 x 8 of an ldmatrix
    const MatrixRows<T, true, ACopy::LENGTH, STEPS> a_rows(warp_m + first, second);
    const MatrixRows<T, !B_BY_ROWS, BCopy::LENGTH, B_BY_ROWS ? MATRICES_N / 2 : STEPS> b_rows(
        warp_n + second, first);
    const auto load_step = [&](int stage, int step) {
#pragma unroll
        for (int i = 0; i < MATRICES_M; ++i) {
            a_rows.load(a[step % 2][i], a_tiles + stage * BLOCK_M * BLOCK_K, i, step);
        }
#pragma unroll
        for (int j = 0; j < MATRICES_N / 2; ++j) {
            b_rows.load(b[step % 2][j], b_tiles + stage * BLOCK_N * BLOCK_K, j, step);
        }
    };
    const auto multiply_step = [&](int step) {
#pragma unroll
        for (int i = 0; i < MATRICES_M; ++i) {
#pragma unroll
            for (int next = 0; next < MATRICES_N; ++next) {
                const int j = i % 2 == 0 ? next : MATRICES_N - 1 - next;  // serpentine order: operand reuse
                const unsigned (&b_two)[4] = b[step % 2][j / 2];
                mma_m16n8k16<T>(sum[i][j], a[step % 2][i], b_two[j % 2 * 2], b_two[j % 2 * 2 + 1]);
            }
        }
    };
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_step(0, 0);
    int stage = 0, free_stage = STAGES - 1;
    const int tiles_k = at_most((K + BLOCK_K - 1) / BLOCK_K, 0x7fffffff);
    for (int tile = 0; tile < tiles_k; ++tile) {
        multiply_step(STEPS - 1);  // previous tile's last step (at first zeros) during the loads
#pragma unroll
        for (int step = 1; step < STEPS; ++step) {
            load_step(stage, step);
            if (step == 1) fetch(free_stage);
            multiply_step(step - 1);
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next tile has landed, and all have read this one
        load_step(stage, 0);
    }
    multiply_step(STEPS - 1);

    const index_t lane_n = begin_n + warp_n + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < MATRICES_M; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const index_t m = begin_m + warp_m + i * 16 + half * 8 + lane / 4;
            if (m >= M) continue;  // the next group's row
#pragma unroll
            for (int j = 0; j < MATRICES_N; ++j) {
                store_two(c_ptr + m * N, lane_n + j * 8, N, sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
        }
    }
}
