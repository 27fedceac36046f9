"""transpose in Triton: ``x[M,N] -> y[N,M]``.

Variants; ``cuda_impl/kernels/transpose.cuh`` has these two under the same names, and three between them:

* ``naive``: coalesced loads, stores M elements apart: uncoalesced
* ``vectorized``: one tile per program, transposed through shared memory by the compiler
  (unaligned rows: each row of y is split at its own sector boundaries; an x that lies in memory as y shall:
  stream_copy's vectorized copy)

What CUDA's ``shared``, ``padded`` and ``swizzled`` do explicitly, Triton neither expresses nor prevents.  A
tile's load and its store each get a coalesced layout.  Between the two the compiler moves the tile through
shared memory with a swizzle of its choice.
"""

import torch
import triton
import triton.language as tl

from compare.arguments import check_same
from compare.registry import implementation
from triton_impl.counts import cdiv
from triton_impl.stream_copy import chunk_size, stream_copy_vectorized_kernel


@triton.jit
def transpose_naive_kernel(x_ptr, y_ptr, M, N, stride_xm, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per BLOCK_SIZE elements of x, in row-major order.

    In any layout of the compiler's, neighbouring threads have neighbouring addresses in x, but not in y.
    """
    begin = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    i = begin + tl.arange(0, BLOCK_SIZE)
    m, n = i // N, i % N
    inside = m < M
    x = tl.load(x_ptr + m * stride_xm + n * stride_xn, mask=inside)
    tl.store(y_ptr + n * M + m, x, mask=inside)


@triton.jit
def transpose_vectorized_kernel(x_ptr, y_ptr, M, N, stride_xm, stride_xn, BLOCK: tl.constexpr):
    """Grid: one program per BLOCK x BLOCK tile; tiles are numbered along x's rows.

    Accesses are 16-byte vectorized if M, N and x's strides are multiples of 16, which Triton's specialization
    sees.
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
    """Grid: one program per tile of ROWS x COLUMNS, numbered down x's columns.

    x is no smaller than a tile.  Tiles at the end are shifted back inside: no load has a mask.

    Two programs writing parts of one 32-byte sector take far longer than one program writing it whole.  So a
    tile reads SECTOR rows more than a WINDOW is wide, and writes the window of each row of y that starts at a
    sector. The compiler cannot know that alignment: accesses are one element per thread.
    """
    WINDOW: tl.constexpr = ROWS - SECTOR
    tiles_m = (M + SECTOR - 2) // WINDOW + 1
    window = (tl.program_id(0) % tiles_m).to(tl.int64) * WINDOW
    begin = tl.minimum(tl.maximum(window - (SECTOR - 1), 0), M - ROWS)
    right = (tl.program_id(0) // tiles_m).to(tl.int64) * COLUMNS
    n = tl.minimum(right, N - COLUMNS) + tl.arange(0, COLUMNS)
    m = tl.arange(0, ROWS)
    x = tl.load(x_ptr + (begin + m)[:, None] * stride_xm + n[None, :] * stride_xn)
    past_boundary = n * M % SECTOR  # a row of y begins so many elements after a sector boundary
    # Offsets within the tile, so that the mask is computed in 32 bits.
    window_begin = (window - begin - past_boundary).to(tl.int32)[:, None]
    inside = (m[None, :] >= window_begin) & (m[None, :] < window_begin + WINDOW)
    tl.store(y_ptr + (n * M + begin)[:, None] + m[None, :], tl.trans(x), mask=inside)


@implementation("transpose", "triton.naive", level="naive", algorithm="element by element")
def naive(x: torch.Tensor) -> torch.Tensor:
    """Coalesced loads, stores M elements apart."""
    check_same("transpose", 2, x=x)
    M, N = x.shape
    y = x.new_empty((N, M))
    if y.numel() > 0:
        BLOCK_SIZE = 1024
        grid = (cdiv(M * N, BLOCK_SIZE),)
        transpose_naive_kernel[grid](x, y, M, N, x.stride(0), x.stride(1), BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
    return y


@implementation(
    "transpose",
    "triton.vectorized",
    level="tiled",
    algorithm="tiles through shared memory",
    tunable={"ROW_BYTES": (256, 512), "WARPS": (4, 8, 16, 32)},
)
def vectorized(x: torch.Tensor, *, ROW_BYTES: int = 256, WARPS: int = 16) -> torch.Tensor:
    """A tile at a time, transposed through shared memory; rows of odd lengths by windows."""
    check_same("transpose", 2, x=x)
    M, N = x.shape
    y = x.new_empty((N, M))
    SECTOR, ROWS, COLUMNS = 32 // x.element_size(), 512 // x.element_size(), 8 * x.element_size()
    if x.t().is_contiguous() and y.numel() > 0:
        BLOCK_SIZE = chunk_size(x, VECTORS=1, WARPS=4)
        grid = (cdiv(M * N, BLOCK_SIZE),)
        stream_copy_vectorized_kernel[grid](x, y, M * N, 1, BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
    elif M % SECTOR != 0 and ROWS <= M < (1 << 31) - SECTOR and N >= COLUMNS:  # M + SECTOR is 32-bit
        tile = {"SECTOR": SECTOR, "ROWS": ROWS, "COLUMNS": COLUMNS}
        grid = (cdiv(M + SECTOR - 1, ROWS - SECTOR) * cdiv(N, COLUMNS),)
        transpose_windowed_kernel[grid](x, y, M, N, x.stride(0), x.stride(1), **tile, num_warps=4)
    elif y.numel() > 0:
        BLOCK = ROW_BYTES // x.element_size()
        grid = (cdiv(M, BLOCK) * cdiv(N, BLOCK),)
        transpose_vectorized_kernel[grid](x, y, M, N, x.stride(0), x.stride(1), BLOCK=BLOCK, num_warps=WARPS)
    return y
