// vector_add: x[N], y[N] -> z[N],  z[n] = x[n] + y[n]
//
// Variants, slow to fast; both are memory-bound and differ in bytes per instruction:
//   scalar      one element per thread
//   vectorized  PACKS 16-byte vectorized accesses per thread, all loads in flight at once
//
// Arrays are contiguous; arithmetic is in fp32.
#pragma once

#include "common.cuh"

// Thread n adds element n.
template <typename T>
__global__ void vector_add_scalar_kernel(const T* __restrict__ x_ptr, const T* __restrict__ y_ptr,
                                         T* __restrict__ z_ptr, index_t N) {
    const index_t n = index_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N) z_ptr[n] = from_float<T>(to_float(x_ptr[n]) + to_float(y_ptr[n]));
}

// A block adds PACKS * blockDim.x consecutive 16-byte vectors; neighbouring threads have neighbouring
// vectors: coalesced. All three arrays are 16-byte aligned.
template <typename T, int PACKS>
__global__ void vector_add_vectorized_kernel(const T* __restrict__ x_ptr, const T* __restrict__ y_ptr,
                                             T* __restrict__ z_ptr, index_t N) {
    constexpr int VEC = 16 / sizeof(T);
    const index_t start = (index_t(blockIdx.x) * PACKS * blockDim.x + threadIdx.x) * VEC;
    const index_t step = index_t(blockDim.x) * VEC;

    Pack<T, VEC> x[PACKS], y[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const index_t n = start + p * step;
        if (n + VEC <= N) {
            x[p] = load<T, VEC>(x_ptr + n);
            y[p] = load<T, VEC>(y_ptr + n);
        }
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const index_t n = start + p * step;
        if (n + VEC <= N) {
            float sum[VEC];
#pragma unroll
            for (int v = 0; v < VEC; ++v) sum[v] = get(x[p], v) + get(y[p], v);
            Pack<T, VEC> z;
            set(z, sum);
            store(z_ptr + n, z);
        } else {  // the partial last vector, and those beyond it
#pragma unroll 1
            for (index_t tail = n; tail < N; ++tail) {
                z_ptr[tail] = from_float<T>(to_float(x_ptr[tail]) + to_float(y_ptr[tail]));
            }
        }
    }
}
