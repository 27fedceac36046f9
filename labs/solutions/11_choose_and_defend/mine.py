"""The choice: a row stays in registers, so that it is read once and written once."""

import torch
import triton
import triton.language as tl

from compare.registry import implementation

EPS = 1e-5


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, N, stride_xm, eps, BLOCK_N: tl.constexpr):
    """Grid: one program per row of N <= BLOCK_N columns."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + m * stride_xm + n, mask=n < N, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / N + eps)
    tl.store(y_ptr + m * N + n, x * scale * weight, mask=n < N)


@implementation("rms_norm", "triton.mine", level="tiled")
def mine(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x if x.stride(1) == 1 else x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    M, N = x.shape
    if y.numel():
        grid, BLOCK_N = (M,), triton.next_power_of_2(N)
        rms_norm_kernel[grid](x, weight.contiguous(), y, N, x.stride(0), EPS, BLOCK_N, num_warps=8)
    return y
