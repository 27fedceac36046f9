// Tiles in shared memory and products on tensor cores, as split and fused use them. A tile has rows of D
// 16-bit elements. A warp computes 16 rows of each product.
#pragma once

#include "attention/mma_tile.cuh"
#include "attention_backward/rows.cuh"

// c[16,COLUMNS] = a[16,D] b[COLUMNS,D]^T, a's rows from `row` on.
template <int D, int COLUMNS, typename T>
__device__ __forceinline__ void multiply_transposed(
    float (&c)[COLUMNS / 8][4], const T* a_tile, int row, const T* b_tile) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[n][i] = 0;
    }
#pragma unroll 4  // not all of D: the fragments of eight steps would spill
    for (int k = 0; k < D / 16; ++k) {
        unsigned a[4], b[4];
        ldmatrix_x4(a, a_tile + swizzle<D>(row + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; ++n) {
            ldmatrix_x4(b, b_tile + swizzle<D>(n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            mma_m16n8k16<T>(c[2 * n], a, b[0], b[1]);
            mma_m16n8k16<T>(c[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// A product's result as the left operand of the next, in registers: c's lanes hold what a's need.
template <typename T, int ROWS>
__device__ __forceinline__ void round_to(unsigned (&a)[ROWS / 16][4], const float (&c)[ROWS / 8][4]) {
#pragma unroll
    for (int n = 0; n < ROWS / 8; ++n) {
        a[n / 2][n % 2 * 2] = to_x2<T>(c[n][0], c[n][1]);
        a[n / 2][n % 2 * 2 + 1] = to_x2<T>(c[n][2], c[n][3]);
    }
}

// c[16,D] += a[16,ROWS] b[ROWS,D].
template <int D, int ROWS, typename T>
__device__ __forceinline__ void multiply_add(
    float (&c)[D / 8][4], const unsigned (&a)[ROWS / 16][4], const T* b_tile) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < ROWS / 16; ++k) {
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            unsigned b[4];
            ldmatrix_x4_trans(b, b_tile + swizzle<D>(k * 16 + lane % 16, 2 * n + lane / 16));
            mma_m16n8k16<T>(c[2 * n], a[k], b[0], b[1]);
            mma_m16n8k16<T>(c[2 * n + 1], a[k], b[2], b[3]);
        }
    }
}

// Stores factor * c[16,D] to rows of a gradient from `row` on, those before `end`.
template <int D, typename T>
__device__ __forceinline__ void store_rows(
    T* head, index_t stride_s, int row, int end, float factor, const float (&c)[D / 8][4]) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own = row + lane / 4 + half * 8;
        if (own >= end) continue;
        unsigned* pairs = reinterpret_cast<unsigned*>(head + own * stride_s);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            pairs[n * 4 + lane % 4] = to_x2<T>(factor * c[n][2 * half], factor * c[n][2 * half + 1]);
        }
    }
}
