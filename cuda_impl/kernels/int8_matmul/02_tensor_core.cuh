// int8_matmul, level 2, tensor_core. Change: the tensor cores multiply, a warp's mma.m16n8k32 at a time: 4096
// products, twice as many as of 16-bit elements. Tiles, cp.async pipeline, XOR swizzle and ldmatrix are those
// of matmul's level of that name: two int8 along K are one of its 16-bit elements. sm_75.
#pragma once

#include "matmul/08_tensor_core.cuh"
#include "scaled_matmul/scales.cuh"
#include "tensor_core_8bit.cuh"

using Pair = __half;  // two int8 along K; never computed with

// a[M,K] @ b[N,K].T -> c[M,N]. Grid: one block of WARPS_M x WARPS_N warps per tile of c of BLOCK_M x BLOCK_N,
// grouped order. A warp computes an equal share as 16 x 8 matrices. One tile of a and b is used, STAGES - 1
// are in flight. Rows of a and b are 16-byte aligned; K, BLOCK_K, lda and ldb count pairs.
template <int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M, int WARPS_N, int STAGES>
__global__ __launch_bounds__(WARPS_M * WARPS_N * WARP) void int8_matmul_tensor_core_kernel(
    const Pair* a_ptr, const Pair* b_ptr, const float* scale_a_ptr, const float* scale_b_ptr,
    __nv_bfloat16* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb) {
    constexpr int THREADS = WARPS_M * WARPS_N * WARP, GROUP_M = 8, STEPS = BLOCK_K / 16;
    constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;  // a warp's share
    constexpr int MATRICES_M = WARP_M / 16, MATRICES_N = WARP_N / 8;
    DYNAMIC_SHARED(Pair, a_tiles);
    Pair* const b_tiles = a_tiles + STAGES * BLOCK_M * BLOCK_K;

    const int tiles_m = static_cast<int>((M + BLOCK_M - 1) / BLOCK_M);
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    const TileCoordinates at = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
    const index_t begin_m = static_cast<index_t>(at.m) * BLOCK_M;
    const index_t begin_n = static_cast<index_t>(at.n) * BLOCK_N;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;

    SwizzledCopy<Pair, true, BLOCK_M, BLOCK_K, THREADS> a_copy(a_ptr, lda, begin_m, M, K);
    SwizzledCopy<Pair, true, BLOCK_N, BLOCK_K, THREADS> b_copy(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    int whole = inside ? at_most(K / BLOCK_K, 0x7fffffff) : 0;  // complete tiles not yet fetched
    const auto fetch = [&](int stage) {
        const bool complete = --whole >= 0;
        a_copy.next(a_tiles + stage * BLOCK_M * BLOCK_K, complete);
        b_copy.next(b_tiles + stage * BLOCK_N * BLOCK_K, complete);
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    // ldmatrix: of a lanes 8 to 15 address the lower 8 rows, of b the next 16 bytes along K.
    MatrixRows<Pair, true, BLOCK_K, STEPS> a_rows(warp_m + lane / 8 % 2 * 8, lane / 16 * 8);
    MatrixRows<Pair, true, BLOCK_K, STEPS> b_rows(warp_n + lane / 16 * 8, lane / 8 % 2 * 8);
    int sum[MATRICES_M][MATRICES_N][4] = {};
    const int tiles_k = at_most((K + BLOCK_K - 1) / BLOCK_K, 0x7fffffff);
    for (int tile = 0; tile < tiles_k; ++tile) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has landed, and all have read the one before
        fetch((tile + STAGES - 1) % STAGES);
        const Pair* const a_tile = a_tiles + tile % STAGES * BLOCK_M * BLOCK_K;
        const Pair* const b_tile = b_tiles + tile % STAGES * BLOCK_N * BLOCK_K;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            unsigned a[MATRICES_M][4], b[MATRICES_N / 2][4];
#pragma unroll
            for (int i = 0; i < MATRICES_M; ++i) a_rows.load(a[i], a_tile, i, step);
#pragma unroll
            for (int j = 0; j < MATRICES_N / 2; ++j) b_rows.load(b[j], b_tile, j, step);
#pragma unroll
            for (int i = 0; i < MATRICES_M; ++i) {
#pragma unroll
                for (int j = 0; j < MATRICES_N; ++j) {
                    mma_m16n8k32_s8(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }

#pragma unroll
    for (int j = 0; j < MATRICES_N; ++j) {
        const index_t n = begin_n + warp_n + j * 8 + lane % 4 * 2;
        const float left_scale = n < N ? scale_b_ptr[n] : 0.0f;
        const float right_scale = n + 1 < N ? scale_b_ptr[n + 1] : 0.0f;
#pragma unroll
        for (int i = 0; i < MATRICES_M * 2; ++i) {
            const index_t m = begin_m + warp_m + i * 8 + lane / 4;
            if (m >= M) continue;
            const int* const own = sum[i / 2][j] + i % 2 * 2;
            const float of_row = scale_a_ptr[m];
            store_two(
                c_ptr + m * N, n, N, scaled(own[0], of_row, left_scale), scaled(own[1], of_row, right_scale));
        }
    }
}
