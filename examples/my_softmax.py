"""Your own kernels beside the project's: one in Triton, one in CUDA C++, as two more rows of softmax.

    python -m compare softmax --load examples/my_softmax.py

Copy this file anywhere, replace the kernels and rename the rows.  Each row is checked against the same
reference, timed in the same rounds and measured by the same readers as the project's own.  A row with wrong
results shows no speed.  It also works without a GPU.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from compare.registry import implementation
from cuda_impl.loader import kernel

# ---- Triton: one program per row, padded to a power of two ------------------------------------------------


@triton.jit
def my_softmax_kernel(x_ptr, y_ptr, N, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * N
    n = tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + row + n, mask=n < N, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + n, e / tl.sum(e, axis=0), mask=n < N)


@implementation("softmax", "triton.mine", level="tiled")
def mine_in_triton(x: torch.Tensor) -> torch.Tensor:
    M, N = x.shape
    if N > 65536:
        raise NotImplementedError(f"a row of {N} elements does not fit into a program's registers")
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() > 0:
        my_softmax_kernel[(M,)](x, y, N, BLOCK_N=triton.next_power_of_2(N), num_warps=8)
    return y


# ---- CUDA C++: one warp per row, three passes over it -----------------------------------------------------

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__global__ void my_softmax_kernel(const T* x_ptr, T* y_ptr, long long N) {
    const T* x_row = x_ptr + blockIdx.x * N;
    T* y_row = y_ptr + blockIdx.x * N;
    const int lane = threadIdx.x;

    float row_max = -__int_as_float(0x7f800000);
    for (long long n = lane; n < N; n += 32) row_max = fmaxf(row_max, static_cast<float>(x_row[n]));
    for (int offset = 16; offset > 0; offset /= 2) {
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, offset));
    }

    float row_sum = 0.0f;
    for (long long n = lane; n < N; n += 32) row_sum += expf(static_cast<float>(x_row[n]) - row_max);
    for (int offset = 16; offset > 0; offset /= 2) row_sum += __shfl_xor_sync(0xffffffffu, row_sum, offset);

    for (long long n = lane; n < N; n += 32) {
        y_row[n] = static_cast<T>(expf(static_cast<float>(x_row[n]) - row_max) / row_sum);
    }
}
"""

CUDA_TYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


@implementation("softmax", "cupy.mine", level="naive")
def mine_in_cuda(x: torch.Tensor) -> torch.Tensor:
    M, N = x.shape
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() > 0:
        launch = kernel(SOURCE, f"my_softmax_kernel<{CUDA_TYPES[x.dtype]}>", x.device)
        # cupy passes a Python int as 64 bits: cast explicitly where the kernel takes another width.
        launch((M,), (32,), (x.data_ptr(), y.data_ptr(), np.int64(N)))
    return y
