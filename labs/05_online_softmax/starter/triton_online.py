"""Task 2: online softmax in Triton.  A program reads its row tile by tile, twice: any row length."""

import torch
import triton
import triton.language as tl

from compare.registry import implementation


@triton.jit
def softmax_kernel(x_ptr, y_ptr, N, BLOCK_N: tl.constexpr):
    """Grid: one program per row."""
    m = tl.program_id(0).to(tl.int64)
    seen_max = tl.full([], -float("inf"), tl.float32)
    seen_sum = tl.full([], 0.0, tl.float32)
    for begin in range(0, N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        x = tl.load(x_ptr + m * N + n, mask=n < N, other=-float("inf")).to(tl.float32)
        # Step 1: the new maximum, of seen_max and this tile.      tl.maximum(...), tl.max(x, axis=0)
        # Step 2: the new sum, relative to it, as in task 1.       tl.exp(...), tl.sum(..., axis=0)
        # Step 3: keep both: seen_max = ..., seen_sum = ...
        # Step 4: run the tests: a tile may have -inf only.        tl.where(condition, 0.0, new_max)

    # Step 5: a second loop over the tiles: load, and store exp(x - seen_max) / seen_sum.


@implementation("softmax", "triton.mine", level="tiled")
def mine(x: torch.Tensor) -> torch.Tensor:
    """Softmax along the rows of ``x[M,N]``, in a new tensor."""
    raise NotImplementedError("not written yet: write softmax_kernel, then delete this line")
    x = x.contiguous()
    y = torch.empty_like(x)
    M, N = x.shape
    if y.numel() > 0:
        BLOCK_N = min(4096, triton.next_power_of_2(N))
        softmax_kernel[(M,)](x, y, N, BLOCK_N=BLOCK_N)
    return y
