// matmul, level 1, naive: one thread per element of c, in the order of a first attempt.
#pragma once

#include "common.cuh"

// a[M,K] @ b[K,N] -> c[M,N]; a and b have any strides. Grid: one block per tile of c, row by row.
// Consecutive threads map to consecutive rows: uncoalesced loads of a and stores of c.
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void matmul_naive_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t stride_am,
    index_t stride_ak, index_t stride_bk, index_t stride_bn) {
    constexpr int BLOCK_M = WARP, BLOCK_N = THREADS / WARP;
    const index_t tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const index_t m = blockIdx.x / tiles_n * BLOCK_M + threadIdx.x % WARP;
    const index_t n = blockIdx.x % tiles_n * BLOCK_N + threadIdx.x / WARP;
    if (m >= M || n >= N) return;

    const T* a = a_ptr + m * stride_am;
    const T* b = b_ptr + n * stride_bn;
    float sum = 0.0f;
    for (index_t k = 0; k < K; ++k) {
        sum += float(*a) * float(*b);
        a += stride_ak;
        b += stride_bk;
    }
    c_ptr[m * N + n] = T(sum);
}
