"""Task 1: y = the sum of x in Triton.  One reduction per program, one atomic addition per program."""

import torch
import triton
import triton.language as tl

from compare.registry import implementation


@triton.jit
def sum_kernel(x_ptr, y_ptr, N, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per BLOCK_SIZE elements.  y, one fp32 number, starts as 0."""
    # Step 1: n[BLOCK_SIZE], the elements of this program, in 64 bits, as in lab 1.
    # Step 2: load them, then x.to(tl.float32). Past the end load the value that does not change a sum.
    # Step 3: their sum, one number:                               tl.sum(x, axis=0)
    # Step 4: add it to y. Every program adds to the same address: tl.atomic_add(y_ptr, ..., sem="relaxed")


@implementation("reduce_sum", "triton.mine", level="tiled", deterministic=False)
def mine(x: torch.Tensor) -> torch.Tensor:
    """The sum of ``x[N]``, a new fp32 tensor without dimensions."""
    raise NotImplementedError("not written yet: write sum_kernel, then delete this line")
    x = x.contiguous()
    y = torch.zeros((), dtype=torch.float32, device=x.device)
    N = x.numel()
    if N > 0:
        BLOCK_SIZE = 1024  # Step 5: on a GPU, find the value from which the atomics no longer cost time.
        sum_kernel[(triton.cdiv(N, BLOCK_SIZE),)](x, y, N, BLOCK_SIZE=BLOCK_SIZE)
    return y
