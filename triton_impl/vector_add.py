"""vector_add in Triton: ``x[N], y[N] -> z[N]``.

Variants; ``cuda_impl/kernels/vector_add.cuh`` goes from one element per thread to 16-byte vectors:

* ``blocked``: one block of elements per program; the compiler distributes them over threads
"""

import torch
import triton
import triton.language as tl

from compare.arguments import check_same
from compare.registry import implementation
from triton_impl.counts import cdiv


@triton.jit
def vector_add_blocked_kernel(x_ptr, y_ptr, z_ptr, N, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per BLOCK_SIZE elements of x, y and z, all contiguous."""
    # 64-bit: program_id * BLOCK_SIZE exceeds 2^31 for vectors that fit in a GPU's memory.
    begin = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    n = begin + tl.arange(0, BLOCK_SIZE)
    inside = n < N
    x = tl.load(x_ptr + n, mask=inside)
    y = tl.load(y_ptr + n, mask=inside)
    # fp16 and bf16 are added in fp32, so that every implementation rounds once, at the end.
    tl.store(z_ptr + n, x.to(tl.float32) + y.to(tl.float32), mask=inside)


@implementation(
    "vector_add",
    "triton.blocked",
    level="tiled",
    tunable={"BLOCK_SIZE": (128, 256, 512, 1024, 2048, 4096), "WARPS": (1, 2, 4, 8, 16)},
)
def blocked(x: torch.Tensor, y: torch.Tensor, *, BLOCK_SIZE: int = 1024, WARPS: int = 4) -> torch.Tensor:
    check_same("vector_add", 1, x=x, y=y)
    x, y = x.contiguous(), y.contiguous()
    z = torch.empty_like(x)
    N = x.numel()
    # Default: one 16-byte access per thread and load, two for fp32: enough in flight to keep the memory busy.
    if N > 0:
        grid = (cdiv(N, BLOCK_SIZE),)
        vector_add_blocked_kernel[grid](x, y, z, N, BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return z
