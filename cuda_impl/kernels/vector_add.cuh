// vector_add: x[N], y[N] -> z[N],  z[n] = x[n] + y[n]
//
// Variants, slow to fast; both are memory-bound and differ in bytes per instruction:
//   scalar      one element per thread
//   vectorized  VECTORS vectorized accesses of VEC elements per thread, all loads in flight at once
//
// Arrays are contiguous; arithmetic is in fp32.
#pragma once

#include "common.cuh"

// Thread n adds element n.
template <typename T>
__global__ void vector_add_scalar_kernel(
    const T* __restrict__ x_ptr, const T* __restrict__ y_ptr, T* __restrict__ z_ptr, index_t N) {
    const index_t n = index_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N) z_ptr[n] = T(float(x_ptr[n]) + float(y_ptr[n]));
}

// A block adds VECTORS * blockDim.x consecutive vectors of VEC elements; neighbouring threads have
// neighbouring vectors: coalesced. A vector of 16 bytes needs arrays that are 16-byte aligned; otherwise
// VEC is 1 and VECTORS is larger, for as many bytes in flight.
template <typename T, int VEC, int VECTORS>
__global__ void vector_add_vectorized_kernel(
    const T* __restrict__ x_ptr, const T* __restrict__ y_ptr, T* __restrict__ z_ptr, index_t N) {
    const index_t first = index_t(blockIdx.x) * VECTORS * blockDim.x + threadIdx.x, vectors = N / VEC;

    Vec<T, VEC> x[VECTORS], y[VECTORS];
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const index_t i = first + p * blockDim.x;
        if (i >= vectors) break;
        x[p] = reinterpret_cast<const Vec<T, VEC>*>(x_ptr)[i];
        y[p] = reinterpret_cast<const Vec<T, VEC>*>(y_ptr)[i];
    }
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const index_t i = first + p * blockDim.x;
        if (i >= vectors) break;
        Vec<T, VEC> z;
#pragma unroll
        for (int v = 0; v < VEC; ++v) z[v] = T(to_float(x[p], v) + to_float(y[p], v));
        reinterpret_cast<Vec<T, VEC>*>(z_ptr)[i] = z;
    }
    // The elements after the last whole vector.
    const index_t n = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && n < N) z_ptr[n] = T(float(x_ptr[n]) + float(y_ptr[n]));
}
