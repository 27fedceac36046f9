// matmul, level 2, coalesced. Change: consecutive threads map to consecutive columns, not rows, so that a
// warp reads one element of a and 32 neighbours of b per iteration: one or four sectors, not 32.
#pragma once

#include "common.cuh"

// a[M,K] @ b[K,N] -> c[M,N]; a and b have any strides. Grid: one block per tile of c, row by row.
// Consecutive threads map to consecutive columns: coalesced loads of b and stores of c.
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void matmul_coalesced_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t stride_am,
    index_t stride_ak, index_t stride_bk, index_t stride_bn) {
    constexpr int BLOCK_M = THREADS / WARP, BLOCK_N = WARP;
    const index_t tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const index_t m = blockIdx.x / tiles_n * BLOCK_M + threadIdx.x / WARP;
    const index_t n = blockIdx.x % tiles_n * BLOCK_N + threadIdx.x % WARP;
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
