// matmul, level 3, shared. Change: the threads of a block first load a tile of a and one of b into shared
// memory, each element once per block instead of once per thread, then read BLOCK products from there.
#pragma once

#include "common.cuh"

// a[M,K] @ b[K,N] -> c[M,N]; a and b have any strides. Grid: one block of BLOCK x BLOCK threads per tile of c
// of that size, row by row. Each thread loads one element of a and one of b, then adds BLOCK products.
template <typename T, int BLOCK>
__global__ __launch_bounds__(BLOCK* BLOCK) void matmul_shared_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t stride_am,
    index_t stride_ak, index_t stride_bk, index_t stride_bn) {
    __shared__ float a_tile[BLOCK][BLOCK], b_tile[BLOCK][BLOCK];
    const int row = threadIdx.x / BLOCK, column = threadIdx.x % BLOCK;
    const index_t tiles_n = (N + BLOCK - 1) / BLOCK;
    const index_t m = blockIdx.x / tiles_n * BLOCK + row, n = blockIdx.x % tiles_n * BLOCK + column;
    const T* a = a_ptr + m * stride_am + column * stride_ak;
    const T* b = b_ptr + n * stride_bn + row * stride_bk;

    float sum = 0.0f;
    for (index_t begin = 0; begin < K; begin += BLOCK) {
        a_tile[row][column] = m < M && begin + column < K ? float(*a) : 0.0f;
        b_tile[row][column] = n < N && begin + row < K ? float(*b) : 0.0f;
        a += BLOCK * stride_ak;
        b += BLOCK * stride_bk;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK; ++k) sum += a_tile[row][k] * b_tile[k][column];
        __syncthreads();
    }
    if (m < M && n < N) c_ptr[m * N + n] = T(sum);
}
