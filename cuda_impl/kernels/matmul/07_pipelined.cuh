// matmul, level 7, pipelined. Change: reads of shared memory overlap with arithmetic too. A thread reads the
// next step's elements while it multiplies this step's (double buffering), across the barrier between two
// tiles as well. Latency that a second block of the multiprocessor hid before is hidden now within one block,
// which may have all registers: a tile of twice the columns. Tiles are in grouped order, for the L2.
#pragma once

#include "common.cuh"
#include "matmul/06_cp_async.cuh"
#include "matmul/tiles.cuh"
#include "tensor_core.cuh"

// a[M,K] @ b[K,N] -> c[M,N]. Grid: one block per tile of c of BLOCK_M x BLOCK_N, grouped order. One tile of a
// and b is used, STAGES - 1 are in flight.
template <
    bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
    int STAGES>
__global__ __launch_bounds__((BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N)) void matmul_pipelined_kernel(
    const float* a_ptr, const float* b_ptr, float* c_ptr, index_t M, index_t N, index_t K, index_t lda,
    index_t ldb) {
    constexpr int THREADS_M = BLOCK_M / THREAD_M, THREADS_N = BLOCK_N / THREAD_N, GROUP_M = 8;
    constexpr int THREADS = THREADS_M * THREADS_N;
    using ACopy = AsyncCopy<A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS>;
    using BCopy = AsyncCopy<!B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS>;
    static_assert(THREADS_M % 4 == 0 && THREADS_N % 8 == 0, "a warp is 4 threads high and 8 wide");
    DYNAMIC_SHARED(float, a_tiles);
    float* b_tiles = a_tiles + STAGES * BLOCK_K * ACopy::PITCH;

    const int tiles_m = static_cast<int>((M + BLOCK_M - 1) / BLOCK_M);
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    const TileCoordinates at = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
    const index_t begin_m = static_cast<index_t>(at.m) * BLOCK_M;
    const index_t begin_n = static_cast<index_t>(at.n) * BLOCK_N;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // An 8-lane phase of 16-byte reads covers 2 rows and 4 columns: fewer distinct vectors than 1 row and 8.
    const int thread_m = warp / (THREADS_N / 8) * 4 + lane / 16 * 2 + lane % 2;
    const int thread_n = warp % (THREADS_N / 8) * 8 + lane / 2 % 8;

    ACopy a_copy(a_ptr, lda, begin_m, M, K);
    BCopy b_copy(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    int whole = inside ? at_most(K / BLOCK_K, 0x7fffffff) : 0;  // complete tiles not yet fetched
    const auto fetch = [&](int stage) {
        float* a_tile = a_tiles + stage * BLOCK_K * ACopy::PITCH;
        float* b_tile = b_tiles + stage * BLOCK_K * BCopy::PITCH;
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

    float sum[THREAD_M][THREAD_N] = {};
    Vec<float, 4> a[2][THREAD_M / 4] = {}, b[2][THREAD_N / 4] = {};  // this step's, and the next one's
    const auto load_step = [&](int stage, int k) {
        const float* a_row = a_tiles + (stage * BLOCK_K + k) * ACopy::PITCH;
        const float* b_row = b_tiles + (stage * BLOCK_K + k) * BCopy::PITCH;
#pragma unroll
        for (int i = 0; i < THREAD_M / 4; ++i) {
            a[k % 2][i] = *reinterpret_cast<const Vec<float, 4>*>(a_row + (i * THREADS_M + thread_m) * 4);
        }
#pragma unroll
        for (int j = 0; j < THREAD_N / 4; ++j) {
            b[k % 2][j] = *reinterpret_cast<const Vec<float, 4>*>(b_row + (j * THREADS_N + thread_n) * 4);
        }
    };
    const auto multiply_step = [&](int k) {
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
            for (int step = 0; step < THREAD_N; ++step) {
                const int j = i % 2 == 0 ? step : THREAD_N - 1 - step;  // serpentine order: operand reuse
                sum[i][j] += a[k % 2][i / 4][i % 4] * b[k % 2][j / 4][j % 4];
            }
        }
    };
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_step(0, 0);
    int stage = 0, free_stage = STAGES - 1;
    const int tiles_k = at_most((K + BLOCK_K - 1) / BLOCK_K, 0x7fffffff);
    for (int tile = 0; tile < tiles_k; ++tile) {
        multiply_step(BLOCK_K - 1);  // previous tile's last step (at first zeros) during the loads
#pragma unroll
        for (int k = 1; k < BLOCK_K; ++k) {
            load_step(stage, k);
            if (k == 1) fetch(free_stage);
            multiply_step(k - 1);
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next tile has landed, and all have read this one
        load_step(stage, 0);
    }
    multiply_step(BLOCK_K - 1);

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const index_t m = begin_m + (i / 4 * THREADS_M + thread_m) * 4 + i % 4;
        if (m >= M) continue;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            const index_t n = begin_n + (j / 4 * THREADS_N + thread_n) * 4;
            float* c = c_ptr + m * N + n;
            if (N % 4 == 0) {  // rows of c are 16-byte aligned
                const float4 four = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
                // An assignment may compile to four 4-byte stores; this is one 16-byte store.
                if (n < N) __stwb(reinterpret_cast<float4*>(c), four);
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (n + e < N) c[e] = sum[i][j + e];
                }
            }
        }
    }
}
