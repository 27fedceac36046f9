"""Task 4: c = a @ b in CUDA C++ on tensor cores, one tile of 16 x 8 per warp."""

import numpy as np
import torch

from compare.registry import implementation
from cuda_impl.loader import kernel

SOURCE = r"""
#include "tensor_core.cuh"  // of this project: mma_m16n8k16

// x[row, column] of a row-major matrix; 0 outside.
template <typename T>
__device__ T element(const T* x, long long rows, long long columns, long long row, long long column) {
    return row < rows && column < columns ? x[row * columns + column] : T(0.0f);
}

// Two 16-bit elements in a word; the first is its lower half.
template <typename T>
__device__ unsigned word(T first, T second) {
    const unsigned low = *reinterpret_cast<const unsigned short*>(&first);
    const unsigned high = *reinterpret_cast<const unsigned short*>(&second);
    return low | high << 16;
}

// a[M,K] @ b[K,N] -> c[M,N], row-major. Grid: one block of 4 warps per 16 rows and 32 columns of c.
// The warp's tile begins at row `m` and column `n`.
//
// mma_m16n8k16<T>(c, a, b0, b1) multiplies 16 x 16 elements of a by 16 x 8 of b and adds to 16 x 8 sums c.
// All 32 lanes of a warp call it together. With g = lane / 4 and t = lane % 4, a lane holds
//   float c[4]     rows g, g, g + 8, g + 8;                   columns 2t, 2t + 1, 2t, 2t + 1
//   unsigned a[4]  rows g, g + 8, g, g + 8;                   k = 2t and 2t + 1; in a[2], a[3] 8 further
//   unsigned b0    column g;                                  k = 2t and 2t + 1
//   unsigned b1    column g;                                  k = 2t + 8 and 2t + 9
template <typename T>
__global__ __launch_bounds__(128) void matmul_kernel(const T* a_ptr, const T* b_ptr, T* c_ptr, long long M,
                                                     long long N, long long K) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    const long long m = blockIdx.y * 16, n = blockIdx.x * 32 + warp * 8;

    float c[4] = {};
    for (long long begin = 0; begin < K; begin += 16) {
        // Step 1: unsigned a[4], each a word of two elements of a_ptr. The first element of a[0] is
        //         element(a_ptr, M, K, m + g, begin + 2 * t), the second has begin + 2 * t + 1.
        // Step 2: unsigned b0 and b1, of b_ptr, which has K rows and N columns.
        // Step 3: mma_m16n8k16<T>(c, a, b0, b1);
    }
    // Step 4: store the four elements of c where c has such rows and columns.
}
"""

CTYPES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@implementation("matmul", "cupy.mine_mma", level="tensor_core")
def mine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of ``a[M,K]`` and ``b[K,N]``, in a new tensor."""
    raise NotImplementedError("not written yet: write matmul_kernel, then delete this line")
    if a.dtype not in CTYPES:
        raise NotImplementedError(f"{a.dtype}: this kernel multiplies 16-bit elements")
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    if c.numel() > 0:
        sizes = (np.int64(M), np.int64(N), np.int64(K))
        launch = kernel(SOURCE, f"matmul_kernel<{CTYPES[a.dtype]}>", a.device)
        grid = (ceil_div(N, 32), ceil_div(M, 16))
        launch(grid, (128,), (a.data_ptr(), b.data_ptr(), c.data_ptr(), *sizes))
    return c
