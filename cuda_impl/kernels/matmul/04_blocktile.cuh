// matmul, level 4, blocktile. Change: a thread computes THREAD_M x THREAD_N elements of c, not one. It reads
// THREAD_M + THREAD_N elements of shared memory into registers and uses them for THREAD_M * THREAD_N
// products, where shared reads two elements per product.
#pragma once

#include "common.cuh"

// a[M,K] @ b[K,N] -> c[M,N]; a and b have any strides. Grid: one block per tile of c of BLOCK_M x BLOCK_N,
// row by row. A thread's rows and columns are interleaved with other threads': bank-conflict-free, coalesced.
template <typename T, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N>
__global__ __launch_bounds__((BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N), 2) void matmul_blocktile_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t stride_am,
    index_t stride_ak, index_t stride_bk, index_t stride_bn) {
    constexpr int THREADS_M = BLOCK_M / THREAD_M, THREADS_N = BLOCK_N / THREAD_N;
    constexpr int THREADS = THREADS_M * THREADS_N;
    static_assert(
        BLOCK_M * BLOCK_K % THREADS == 0 && BLOCK_K * BLOCK_N % THREADS == 0, "threads share a tile evenly");
    __shared__ float a_tile[BLOCK_M][BLOCK_K], b_tile[BLOCK_K][BLOCK_N];
    const int thread_m = threadIdx.x / THREADS_N, thread_n = threadIdx.x % THREADS_N;
    const index_t tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const index_t begin_m = blockIdx.x / tiles_n * BLOCK_M, begin_n = blockIdx.x % tiles_n * BLOCK_N;

    float sum[THREAD_M][THREAD_N] = {};
    for (index_t begin_k = 0; begin_k < K; begin_k += BLOCK_K) {
#pragma unroll
        for (int first = 0; first < BLOCK_M * BLOCK_K; first += THREADS) {
            const int row = (first + threadIdx.x) / BLOCK_K, column = (first + threadIdx.x) % BLOCK_K;
            const index_t m = begin_m + row, k = begin_k + column;
            a_tile[row][column] = m < M && k < K ? float(a_ptr[m * stride_am + k * stride_ak]) : 0.0f;
        }
#pragma unroll
        for (int first = 0; first < BLOCK_K * BLOCK_N; first += THREADS) {
            const int row = (first + threadIdx.x) / BLOCK_N, column = (first + threadIdx.x) % BLOCK_N;
            const index_t k = begin_k + row, n = begin_n + column;
            b_tile[row][column] = k < K && n < N ? float(b_ptr[k * stride_bk + n * stride_bn]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK_K; ++k) {
            float a[THREAD_M], b[THREAD_N];
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) a[i] = a_tile[i * THREADS_M + thread_m][k];
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) b[j] = b_tile[k][j * THREADS_N + thread_n];
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j) sum[i][j] += a[i] * b[j];
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const index_t m = begin_m + i * THREADS_M + thread_m;
        if (m >= M) continue;
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            const index_t n = begin_n + j * THREADS_N + thread_n;
            if (n < N) c_ptr[m * N + n] = T(sum[i][j]);
        }
    }
}
