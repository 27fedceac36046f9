// batched_matmul, level 1, naive: one thread per element of c, straight from global memory.
#pragma once

#include "common.cuh"

// Grid: one block per THREADS elements of c; neighbouring threads have neighbouring elements. a and b have
// any strides.
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void batched_matmul_naive_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, index_t N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    const index_t element = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (element >= B * N * N) return;
    const index_t matrix = element / (N * N), i = element / N % N, j = element % N;
    const T* a_row = a_ptr + matrix * stride_ab + i * stride_ai;
    const T* b_column = b_ptr + matrix * stride_bb + j * stride_bj;
    float sum = 0;
    for (index_t k = 0; k < N; ++k) sum += float(a_row[k * stride_aj]) * float(b_column[k * stride_bi]);
    c_ptr[element] = T(sum);
}
