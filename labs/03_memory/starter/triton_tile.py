"""Task 4: y[N,M] = the transpose of x[M,N] in Triton, a tile per program."""

import torch
import triton
import triton.language as tl

from compare.registry import implementation


@triton.jit
def transpose_kernel(x_ptr, y_ptr, M, N, BLOCK: tl.constexpr):
    """Grid: one program per BLOCK x BLOCK tile, numbered along the rows of x."""
    tiles_n = tl.cdiv(N, BLOCK)
    tile = tl.program_id(0)
    m = (tile // tiles_n).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = (tile % tiles_n).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # Step 1: load the tile x[m, n].        x_ptr + m[:, None] * N + n[None, :], with a mask for both ends
    # Step 2: exchange its axes.            tl.trans(...)
    # Step 3: store it as y[n, m].          y_ptr + n[:, None] * M + m[None, :], with a mask of that shape


@implementation("transpose", "triton.mine", level="tiled")
def mine(x: torch.Tensor) -> torch.Tensor:
    """The transpose of ``x[M,N]``, in a new contiguous tensor."""
    raise NotImplementedError("not written yet: write transpose_kernel, then delete this line")
    x = x.contiguous()
    M, N = x.shape
    y = x.new_empty((N, M))
    if y.numel() > 0:
        BLOCK = 64
        grid = (triton.cdiv(M, BLOCK) * triton.cdiv(N, BLOCK),)
        transpose_kernel[grid](x, y, M, N, BLOCK=BLOCK, num_warps=8)
    return y
