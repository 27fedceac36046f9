"""transpose in Triton: ``x[M,N] -> y[N,M]``.

The ladder; ``cuda_impl/kernels/transpose.cuh`` has these two under the same names, and three between them:

* ``naive``: a program moves a stretch of x's elements, which land M elements apart
* ``vectorized``: a program moves a tile, and the compiler finds out how

What CUDA's ``shared``, ``padded`` and ``swizzled`` do by hand cannot be said here, nor kept from happening. A
tile's load and its store each get a layout of their own, that in which neighbouring threads have neighbouring
addresses, and between the two the compiler moves the tile through shared memory, swizzled as it sees fit.
"""

import torch
import triton
import triton.language as tl

from compare.arguments import check_same
from compare.registry import implementation


@triton.jit
def transpose_naive_kernel(x_ptr, y_ptr, M, N, stride_xm, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: a program for BLOCK_SIZE elements of x, counted row by row.

    However the compiler shares these out, neighbouring threads have neighbours of x, and none of y.
    """
    begin = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    i = begin + tl.arange(0, BLOCK_SIZE)
    m, n = i // N, i % N
    inside = m < M
    x = tl.load(x_ptr + m * stride_xm + n * stride_xn, mask=inside)
    tl.store(y_ptr + n * M + m, x, mask=inside)


@triton.jit
def transpose_vectorized_kernel(x_ptr, y_ptr, M, N, stride_xm, stride_xn, BLOCK: tl.constexpr):
    """Grid: a program a tile of BLOCK x BLOCK; tiles are counted along x's rows.

    Where M, N and x's strides are multiples of 16, which the compiler is told, it moves 16 bytes a thread.
    """
    tiles_n = (N - 1) // BLOCK + 1
    tile = tl.program_id(0)
    m = (tile // tiles_n).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = (tile % tiles_n).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = (m < M)[:, None] & (n < N)[None, :]
    x = tl.load(x_ptr + m[:, None] * stride_xm + n[None, :] * stride_xn, mask=inside)
    tl.store(y_ptr + n[:, None] * M + m[None, :], tl.trans(x), mask=tl.trans(inside))


@implementation("transpose", "triton.naive", rung="naive")
def naive(x: torch.Tensor) -> torch.Tensor:
    """Neighbours are read together and written M elements apart."""
    check_same("transpose", 2, x=x)
    M, N = x.shape
    y = x.new_empty((N, M))
    if y.numel() > 0:
        BLOCK_SIZE = 1024
        grid = (triton.cdiv(M * N, BLOCK_SIZE),)
        transpose_naive_kernel[grid](x, y, M, N, x.stride(0), x.stride(1), BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
    return y


@implementation(
    "transpose",
    "triton.vectorized",
    rung="tiled",
    tunable={"ROW_BYTES": (256, 512), "WARPS": (4, 8, 16, 32)},
)
def vectorized(x: torch.Tensor, *, ROW_BYTES: int = 256, WARPS: int = 16) -> torch.Tensor:
    """A tile at a time, which the compiler turns round in shared memory."""
    check_same("transpose", 2, x=x)
    M, N = x.shape
    y = x.new_empty((N, M))
    if y.numel() > 0:
        BLOCK = ROW_BYTES // x.element_size()
        grid = (triton.cdiv(M, BLOCK) * triton.cdiv(N, BLOCK),)
        transpose_vectorized_kernel[grid](x, y, M, N, x.stride(0), x.stride(1), BLOCK=BLOCK, num_warps=WARPS)
    return y
