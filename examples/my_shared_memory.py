"""Two kernels with shared memory: a softmax that reduces a row in a block, and a tiled transpose.

    python -m compare softmax --load examples/my_shared_memory.py
    python -m compare transpose --load examples/my_shared_memory.py

The CUDA text is plain CUDA C++.  On a GPU it is compiled unchanged; on a CPU by g++, which needs nothing
added to it.
"""

import numpy as np
import torch

from compare.registry import implementation
from cuda_impl.loader import kernel

# ---- dynamic shared memory: its size is an argument of the launch -----------------------------------------

SOFTMAX = r"""
#include <math_constants.h>

// One block per row; blockDim.x is a power of two. The row is read three times.
__global__ void softmax_in_blocks(const float* x_ptr, float* y_ptr, long long N) {
    extern __shared__ float partial[];
    const int t = threadIdx.x;
    const float* x_row = x_ptr + blockIdx.x * N;
    float* y_row = y_ptr + blockIdx.x * N;

    float row_max = -CUDART_INF_F;
    for (long long n = t; n < N; n += blockDim.x) row_max = fmaxf(row_max, x_row[n]);
    partial[t] = row_max;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) partial[t] = fmaxf(partial[t], partial[t + half]);
        __syncthreads();
    }
    row_max = partial[0];
    __syncthreads();  // before partial is used again

    float row_sum = 0.0f;
    for (long long n = t; n < N; n += blockDim.x) row_sum += expf(x_row[n] - row_max);
    partial[t] = row_sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];
        __syncthreads();
    }
    for (long long n = t; n < N; n += blockDim.x) y_row[n] = expf(x_row[n] - row_max) / partial[0];
}
"""

THREADS = 256


@implementation("softmax", "cupy.in_blocks", level="naive")
def in_blocks(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise NotImplementedError("fp32 only")
    M, N = x.shape
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() > 0:
        launch = kernel(SOFTMAX, "softmax_in_blocks", x.device)
        arguments = (x.data_ptr(), y.data_ptr(), np.int64(N))
        launch((M,), (THREADS,), arguments, shared_mem=THREADS * 4)  # in bytes
    return y


# ---- static shared memory: its size is a constant ---------------------------------------------------------

TRANSPOSE = r"""
constexpr int TILE = 32, ROWS = 8;

// A block transposes a tile of 32 x 32 with 32 x 8 threads.
__global__ void transpose_tiled(const float* x_ptr, float* y_ptr, long long M, long long N) {
    __shared__ float tile[TILE][TILE + 1];  // padding: 32-way bank conflict -> none
    const long long m = blockIdx.y * TILE, n = blockIdx.x * TILE;
    for (int i = threadIdx.y; i < TILE; i += ROWS) {
        if (m + i < M && n + threadIdx.x < N) tile[i][threadIdx.x] = x_ptr[(m + i) * N + n + threadIdx.x];
    }
    __syncthreads();
    for (int i = threadIdx.y; i < TILE; i += ROWS) {
        if (n + i < N && m + threadIdx.x < M) y_ptr[(n + i) * M + m + threadIdx.x] = tile[threadIdx.x][i];
    }
}
"""


@implementation("transpose", "cupy.in_tiles", level="tiled")
def in_tiles(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise NotImplementedError("fp32 only")
    M, N = x.shape
    if M > 65535 * 32:
        raise NotImplementedError("a grid has at most 65535 blocks along y")
    x = x.contiguous()
    y = torch.empty((N, M), dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        launch = kernel(TRANSPOSE, "transpose_tiled", x.device)
        launch((-(-N // 32), -(-M // 32)), (32, 8), (x.data_ptr(), y.data_ptr(), np.int64(M), np.int64(N)))
    return y
