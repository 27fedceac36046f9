"""Task 2: c = a @ b in CUDA C++, with tiles of a and b in shared memory."""

import numpy as np
import torch

from compare.registry import implementation
from cuda_impl.loader import kernel

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int BLOCK = 32;

// a[M,K] @ b[K,N] -> c[M,N], row-major. Grid: one block of BLOCK x BLOCK threads per tile of c of that size.
template <typename T>
__global__ __launch_bounds__(BLOCK* BLOCK) void matmul_kernel(const T* a_ptr, const T* b_ptr, T* c_ptr,
                                                              long long M, long long N, long long K) {
    __shared__ float a_tile[BLOCK][BLOCK], b_tile[BLOCK][BLOCK];
    const int row = threadIdx.y, column = threadIdx.x;
    const long long m = blockIdx.y * BLOCK + row, n = blockIdx.x * BLOCK + column;

    float sum = 0.0f;
    for (long long begin = 0; begin < K; begin += BLOCK) {
        // Step 1: each thread loads one element of each tile:
        //         a_tile[row][column] is a[m, begin + column], b_tile[row][column] is b[begin + row, n].
        // Step 2: wait until all threads have loaded.              __syncthreads();
        // Step 3: add the BLOCK products that these tiles have for c[m, n].
        // Step 4: wait again. Who would read what too late without it?
    }
    // Step 5: store sum.
    // Step 6: run the tests. Outside a and b the tiles have to be 0; outside c nothing is stored. No thread
    //         may return before the loop ends: all of them have to reach each __syncthreads().
}
"""

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
BLOCK = 32


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@implementation("matmul", "cupy.mine_shared", level="tiled")
def mine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of ``a[M,K]`` and ``b[K,N]``, in a new tensor."""
    raise NotImplementedError("not written yet: write matmul_kernel, then delete this line")
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    if c.numel() > 0:
        sizes = (np.int64(M), np.int64(N), np.int64(K))
        launch = kernel(SOURCE, f"matmul_kernel<{CTYPES[a.dtype]}>", a.device)
        grid = (ceil_div(N, BLOCK), ceil_div(M, BLOCK))
        launch(grid, (BLOCK, BLOCK), (a.data_ptr(), b.data_ptr(), c.data_ptr(), *sizes))
    return c
