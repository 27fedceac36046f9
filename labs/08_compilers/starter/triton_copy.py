"""Task 1: y = x in Triton.  The kernel is right; its loads are narrow."""

import torch
import triton
import triton.language as tl

from compare.registry import implementation


@triton.jit
def copy_kernel(x_ptr, y_ptr, N, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per BLOCK_SIZE elements."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    # Step 2: look at the loads of a length that 16 divides and of one that it does not. What can the compiler
    #         know of the mask n < N in the second case?
    # Step 3: break the cause: a program whose block is whole, begin + BLOCK_SIZE <= N, needs no mask. Only
    #         the last program does. An if on a number of the whole program is a branch, as in Python.
    n = begin + tl.arange(0, BLOCK_SIZE)
    inside = n < N
    tl.store(y_ptr + n, tl.load(x_ptr + n, mask=inside), mask=inside)


@implementation("stream_copy", "triton.mine", level="tiled")
def mine(x: torch.Tensor) -> torch.Tensor:
    """A copy of contiguous ``x[N]``, in a new tensor."""
    # Step 1: delete the next line. The tests pass, and the one about the machine code says what to change.
    raise NotImplementedError("not written yet: delete this line, then look at the machine code")
    if x.numel() > 1 and x.stride(0) != 1:
        raise NotImplementedError("this kernel takes a contiguous x")
    N = x.numel()
    y = x.new_empty(N)
    if N > 0:
        BLOCK_SIZE = 1024
        copy_kernel[(triton.cdiv(N, BLOCK_SIZE),)](x, y, N, BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
    return y
