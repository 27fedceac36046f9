// new_op: x[N] -> y[N],  y[n] = x[n] * x[n]
//
// Algorithms, slow to fast:
//   scalar  one element per thread
//
// Arrays are contiguous; arithmetic is in fp32.
#pragma once

#include "common.cuh"

// Thread n squares element n.
template <typename T>
__global__ void new_op_scalar_kernel(const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N) {
    const index_t n = index_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= N) return;
    const float x = float(x_ptr[n]);
    y_ptr[n] = T(x * x);
}
