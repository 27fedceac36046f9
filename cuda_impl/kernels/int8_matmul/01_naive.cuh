// int8_matmul, level 1, naive. One thread per element of c. dp4a multiplies four pairs of int8 and adds them
// to an int32 sum: a quarter of the instructions, and of the loads, of a loop over elements.
#pragma once

#include "scaled_matmul/scales.cuh"
#include "tensor_core_8bit.cuh"

// a[M,K] @ b[N,K].T -> c[M,N]. Grid: one block per 8 x 32 elements of c. A warp's threads have consecutive
// columns: they read the same word of a, and words of b that are a row apart (uncoalesced). Rows are 4-byte
// aligned.
template <int THREADS>
__global__ __launch_bounds__(THREADS) void int8_matmul_naive_kernel(
    const signed char* a_ptr, const signed char* b_ptr, const float* scale_a_ptr, const float* scale_b_ptr,
    __nv_bfloat16* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb) {
    const index_t tiles_n = (N + WARP - 1) / WARP;
    const index_t m = blockIdx.x / tiles_n * (THREADS / WARP) + threadIdx.x / WARP;
    const index_t n = blockIdx.x % tiles_n * WARP + threadIdx.x % WARP;
    if (m >= M || n >= N) return;
    const signed char *const a = a_ptr + m * lda, *const b = b_ptr + n * ldb;
    int sum = 0;
    index_t k = 0;
    for (; k + 4 <= K; k += 4) {
        sum = __dp4a(*reinterpret_cast<const int*>(a + k), *reinterpret_cast<const int*>(b + k), sum);
    }
    for (; k < K; ++k) sum += a[k] * b[k];
    c_ptr[m * N + n] = __float2bfloat16_rn(scaled(sum, scale_a_ptr[m], scale_b_ptr[n]));
}
