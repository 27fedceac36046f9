// matmul, level 15, skinny. Change: for few rows of a, b goes from global memory to the registers that mma
// reads, past shared memory: no tile waits for another, so more bytes are in flight. A tile of c has the 16
// rows of mma.m16n8k16, where wgmma takes 64. 16-bit elements, sm_75; bf16 from sm_80.
//
// A warp multiplies a[16, 32] by b[32, 64] at a time. mma wants two elements of b that are neighbours along
// K in one register, and columns of b 8 apart in its lanes. But sums over K may be in any order, and so may
// columns: lane (g, t) loads columns 8g to 8g+7 of rows 8t to 8t+7 of b, 16 bytes each, and has all it needs.
// Two rows give 8 registers, one per column; the matrix of mma j has columns j, 8 + j, 16 + j ... of the 64.
//
// Warps, and the blocks of a cluster where c has few tiles (SPLIT), divide the terms of a tile, and add their
// sums in a fixed order.
#pragma once

#include "common.cuh"
#include "matmul/14_split_k.cuh"
#include "tensor_core.cuh"
#include "x2.cuh"

// Eight elements of a line; 0 for those from `left` on.
template <bool WHOLE, typename T>
__device__ __forceinline__ uint4 load_eight(const T* ptr, index_t left) {
    if constexpr (!WHOLE) {
        if (left < 8) {
            Vec<T, 8> x;
#pragma unroll
            for (int v = 0; v < 8; ++v) x[v] = v < left ? ptr[v] : T(0.0f);
            return reinterpret_cast<const uint4&>(x);
        }
    }
    return __ldcs(reinterpret_cast<const uint4*>(ptr));
}

// sum[j] += a[16, 32] @ columns j, 8 + j ... of b[32, 64], which begin at term k and column n. The rows of a
// that exist are `rows`. WHOLE: all of both operands' elements exist.
template <typename T, bool B_BY_ROWS, bool WHOLE>
__device__ __forceinline__ void multiply_strip(
    float (&sum)[8][4], const T* a_ptr, const T* b_ptr, index_t k, index_t n, int rows, index_t N, index_t K,
    index_t lda, index_t ldb) {
    const int group = threadIdx.x % WARP / 4;
    k += threadIdx.x % 4 * 8;
    n += group * 8;
    uint4 b[8], a[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const index_t line = B_BY_ROWS ? k + i : n + i, begin = B_BY_ROWS ? n : k;
        const index_t left = WHOLE ? 8 : line < (B_BY_ROWS ? K : N) ? (B_BY_ROWS ? N : K) - begin : 0;
        b[i] = load_eight<WHOLE>(b_ptr + (WHOLE || left > 0 ? line * ldb + begin : 0), left);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int m = group + half * 8;
        a[half] = make_uint4(0, 0, 0, 0);
        if (m < rows && (WHOLE || k < K)) a[half] = load_eight<WHOLE>(a_ptr + m * lda + k, K - k);
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        const unsigned terms[4] = {
            word_of(a[0], step * 2), word_of(a[1], step * 2), word_of(a[0], step * 2 + 1),
            word_of(a[1], step * 2 + 1)};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            unsigned two[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = step * 4 + i * 2;
                const unsigned first = word_of(b[row], j / 2), second = word_of(b[row + 1], j / 2);
                two[i] = B_BY_ROWS ? __byte_perm(first, second, j % 2 == 0 ? 0x5410 : 0x7632)
                                   : word_of(b[j], step * 2 + i);
            }
            mma_m16n8k16<T>(sum[j], terms, two[0], two[1]);
        }
    }
}

// Grid: SPLIT blocks for each tile of c, 16 rows by 64 columns, a cluster; down c first, as tiles share b.
template <typename T, bool B_BY_ROWS, int WARPS, int SPLIT>
__global__ __launch_bounds__(WARPS* WARP, 16 / WARPS) CLUSTER_OF(SPLIT) void matmul_skinny_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb) {
    constexpr int STRIP = 64, STEP = 32, ROWS = 16;
    __shared__ float4 sums[WARPS][ROWS][STRIP / 4];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int rank = static_cast<int>(blockIdx.x % SPLIT);
    const index_t tile = blockIdx.x / SPLIT, tiles_m = (M + ROWS - 1) / ROWS;
    const index_t m = tile % tiles_m * ROWS, n = tile / tiles_m * STRIP;
    const int rows = static_cast<int>(at_most(M - m, ROWS));
    a_ptr += m * lda;
    c_ptr += m * N;
    const index_t whole = n + STRIP <= N ? K / STEP : 0;
#if HAS_WGMMA
    next_grid_may_start();
    previous_grid_wait();
#endif

    float sum[8][4] = {};
    index_t step = rank * WARPS + warp;
#pragma unroll 1
    for (; step < whole; step += SPLIT * WARPS) {
        multiply_strip<T, B_BY_ROWS, true>(sum, a_ptr, b_ptr, step * STEP, n, rows, N, K, lda, ldb);
    }
    for (; step * STEP < K; step += SPLIT * WARPS) {
        multiply_strip<T, B_BY_ROWS, false>(sum, a_ptr, b_ptr, step * STEP, n, rows, N, K, lda, ldb);
    }

    // Lane (g, t) has columns 16t to 16t+15 of rows g and g+8.
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int half = i / 4 * 2, row = lane / 4 + half * 4, column = i % 4 / 2, j = i % 2 * 4;
        sums[warp][row][lane % 4 * 4 + i % 4] = make_float4(
            sum[j][half + column], sum[j + 1][half + column], sum[j + 2][half + column],
            sum[j + 3][half + column]);
    }
    __syncthreads();
    constexpr int QUADS = ROWS * STRIP / 4;
    float4* const quads = &sums[0][0][0];
    for (int q = threadIdx.x; q < rows * STRIP / 4; q += WARPS * WARP) {
        float4 total = quads[q];
#pragma unroll
        for (int other = 1; other < WARPS; ++other) {
            const float4 more = quads[other * QUADS + q];
            total = make_float4(total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w);
        }
        quads[q] = total;
    }
#if HAS_WGMMA
    if constexpr (SPLIT > 1) cluster_sync();
#endif
    for (int q = rank * WARPS * WARP + threadIdx.x; q < rows * STRIP / 4; q += SPLIT * WARPS * WARP) {
        float4 total = quads[q];
#if HAS_WGMMA
        if constexpr (SPLIT > 1) {
            total = load_from_block(quads + q, 0);
#pragma unroll
            for (int block = 1; block < SPLIT; ++block) {
                const float4 more = load_from_block(quads + q, block);
                total = make_float4(total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w);
            }
        }
#endif
        const index_t row = q / (STRIP / 4), column = n + q % (STRIP / 4) * 4;
        const float of_columns[] = {total.x, total.y, total.z, total.w};
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            if (column + v < N) c_ptr[row * N + column + v] = T(of_columns[v]);
        }
    }
#if HAS_WGMMA
    if constexpr (SPLIT > 1) cluster_sync();  // a block's sums must outlive the others' loads
#endif
}
