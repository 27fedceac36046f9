// Tiles of a head in shared memory, for ldmatrix and mma.sync. A tile has rows of D 16-bit elements. A warp
// computes 16 rows of each product; accumulators are numbered as in online_softmax.cuh.
#pragma once

#include "swizzle.cuh"
#include "tensor_core.cuh"

// cp.async of ROWS rows of a head from row `begin` on; rows from `end` on are 0.
template <int D, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void fetch_rows(T* tile, const T* head, index_t stride_s, int begin, int end) {
    constexpr int VECTORS = D / 8, STEP = THREADS / VECTORS;
    static_assert(STEP % 8 == 0, "a thread's rows are whole swizzles apart");
    const int row = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    const T* from = head + (begin + row) * stride_s + vector * 8;
    T* to = tile + swizzle<D>(row, vector);
    if (begin + ROWS <= end) {
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP, from += STEP * stride_s) cp_async_16(to + i * D, from, 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, from += STEP * stride_s, to += STEP * D) {
        const bool inside = begin + row + i < end;
        cp_async_16(to, inside ? from : head, inside ? 16 : 0);
    }
}

template <typename T>
__device__ __forceinline__ void mma(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    mma_m16n8k16<T>(*reinterpret_cast<float (*)[4]>(c), *reinterpret_cast<const unsigned (*)[4]>(a), b0, b1);
}

// c[16 * COUNT,COLUMNS] = a[16 * COUNT,D] @ b[COLUMNS,D]^T, a's rows from `row` on. Each fragment of b serves
// COUNT products.
template <int D, int COLUMNS, int COUNT, typename T>
__device__ __forceinline__ void multiply_transposed(
    float (&c)[COUNT][COLUMNS / 2], const T* a_tile, int row, const T* b_tile) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) c[r][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        unsigned a[COUNT][4], b[4];
#pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            ldmatrix_x4(a[r], a_tile + swizzle<D>(row + r * 16 + lane % 16, 2 * k + lane / 16));
        }
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; ++n) {
            ldmatrix_x4(b, b_tile + swizzle<D>(n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int r = 0; r < COUNT; ++r) {
                mma<T>(c[r] + n * 8, a[r], b[0], b[1]);
                mma<T>(c[r] + n * 8 + 4, a[r], b[2], b[3]);
            }
        }
    }
}

// c[16 * COUNT,D] += a[16 * COUNT,ROWS] @ b[ROWS,D].
template <int D, int ROWS, int COUNT, typename T>
__device__ __forceinline__ void multiply_add(
    float (&c)[COUNT][D / 2], const unsigned (&a)[COUNT][ROWS / 4], const T* b_tile) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < ROWS / 16; ++k) {
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            unsigned b[4];
            ldmatrix_x4_trans(b, b_tile + swizzle<D>(k * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
            for (int r = 0; r < COUNT; ++r) {
                mma<T>(c[r] + n * 8, a[r] + k * 4, b[0], b[1]);
                mma<T>(c[r] + n * 8 + 4, a[r] + k * 4, b[2], b[3]);
            }
        }
    }
}
