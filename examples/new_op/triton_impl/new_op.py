"""new_op in Triton: ``x[N] -> y[N]``.

Algorithms, slow to fast:

* ``blocked``: one block of elements per program; the compiler distributes them over threads
"""

import torch
import triton
import triton.language as tl

from compare.arguments import check_same
from compare.registry import implementation


@triton.jit
def new_op_blocked_kernel(x_ptr, y_ptr, N, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per BLOCK_SIZE elements of x and y, both contiguous."""
    # 64-bit: program_id * BLOCK_SIZE exceeds 2^31 for vectors that fit in a GPU's memory.
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = n < N
    x = tl.load(x_ptr + n, mask=inside).to(tl.float32)
    tl.store(y_ptr + n, x * x, mask=inside)


@implementation("new_op", "triton.blocked", level="tiled")
def blocked(x: torch.Tensor, *, BLOCK_SIZE: int = 1024) -> torch.Tensor:
    check_same("new_op", 1, x=x)
    x = x.contiguous()
    y = torch.empty_like(x)
    N = x.numel()
    if N > 0:
        grid = (triton.cdiv(N, BLOCK_SIZE),)
        new_op_blocked_kernel[grid](x, y, N, BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
    return y
