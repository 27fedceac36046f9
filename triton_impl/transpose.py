"""transpose in Triton: ``x[M,N] -> y[N,M]``.

The ladder; ``cuda_impl/kernels/transpose.cuh`` has these two under the same names, and three between them:

* ``naive``: a program moves a stretch of x's elements, which land M elements apart
* ``vectorized``: a program moves a tile, and the compiler finds out how
  (where rows begin anywhere, each row of y is cut where its own sectors begin)

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


@triton.jit
def transpose_windowed_kernel(
    x_ptr, y_ptr, M, N, stride_xm, stride_xn, SECTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Grid: a program a tile of ROWS x COLUMNS, counted down x's columns.

    x is no smaller than a tile, and tiles that would reach past its end lie against it: no load has a mask.

    Memory takes far longer for a sector of 32 bytes of which two programs write a part each than for a whole
    one. So a tile reads SECTOR rows more than a WINDOW is wide, and writes of each row of y the window that
    begins with a sector. The compiler is not told that it does: it moves an element a thread and access.
    """
    WINDOW: tl.constexpr = ROWS - SECTOR
    tiles_m = (M + SECTOR - 2) // WINDOW + 1
    window = (tl.program_id(0) % tiles_m).to(tl.int64) * WINDOW
    begin = tl.minimum(tl.maximum(window - (SECTOR - 1), 0), M - ROWS)
    right = (tl.program_id(0) // tiles_m).to(tl.int64) * COLUMNS
    n = tl.minimum(right, N - COLUMNS) + tl.arange(0, COLUMNS)
    m = tl.arange(0, ROWS)
    x = tl.load(x_ptr + (begin + m)[:, None] * stride_xm + n[None, :] * stride_xn)
    # Numbers within the tile, so that the mask is made of 32 bits.
    first = (window - begin - n * M % SECTOR).to(tl.int32)[:, None]
    inside = (m[None, :] >= first) & (m[None, :] < first + WINDOW)
    tl.store(y_ptr + (n * M + begin)[:, None] + m[None, :], tl.trans(x), mask=inside)


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
    """A tile at a time, which the compiler turns round in shared memory; rows of odd lengths, by windows."""
    check_same("transpose", 2, x=x)
    M, N = x.shape
    y = x.new_empty((N, M))
    SECTOR, ROWS, COLUMNS = 32 // x.element_size(), 512 // x.element_size(), 8 * x.element_size()
    if M % SECTOR != 0 and M >= ROWS and N >= COLUMNS:
        tile = {"SECTOR": SECTOR, "ROWS": ROWS, "COLUMNS": COLUMNS}
        grid = (triton.cdiv(M + SECTOR - 1, ROWS - SECTOR) * triton.cdiv(N, COLUMNS),)
        transpose_windowed_kernel[grid](x, y, M, N, x.stride(0), x.stride(1), **tile, num_warps=4)
    elif y.numel() > 0:
        BLOCK = ROW_BYTES // x.element_size()
        grid = (triton.cdiv(M, BLOCK) * triton.cdiv(N, BLOCK),)
        transpose_vectorized_kernel[grid](x, y, M, N, x.stride(0), x.stride(1), BLOCK=BLOCK, num_warps=WARPS)
    return y
