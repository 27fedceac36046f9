"""scan in CUDA: the inclusive sum along rows, with the kernels of ``kernels/scan.cuh``."""

from __future__ import annotations

import torch

from compare.arguments import check_same
from cuda_impl.buffers import Tensor, empty, empty_like, zeros
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.layouts import contiguous_rows, vector


def checked(x: Tensor) -> Tensor:
    check_same("scan", 2, x=x)
    return contiguous_rows(x)


def tiles_of(x: Tensor, BLOCK_N: int) -> int:
    """Tiles per row; one that starts between 16-byte boundaries has up to VEC - 1 columns before it."""
    (M, N), VEC = x.shape, vector(x)
    return ceil_div(N if M == 1 or N % VEC == 0 else N + VEC - 1, BLOCK_N)


ROW_SHAPES = (
    *((1, 8, 16), (1, 16, 8), (1, 32, 4), (4, 32, 4)),  # several rows a block
    *((4, 64, 1), (4, 128, 1), (4, 256, 1), (4, 512, 1)),
)
"""VECTORS, THREADS and BLOCK_M: a row is at most one tile, of the last shape many."""
ROW = Kernel("scan_row_kernel<{T}, {SHAPE}>", SHAPE=ROW_SHAPES)


def row_launch(x: Tensor, y: Tensor) -> Launch:
    """Scans the rows of ``x`` with the first shape that holds one in a tile."""
    M, N = x.shape
    tiles = {shape: tiles_of(x, shape[0] * shape[1] * vector(x)) for shape in ROW_SHAPES}
    SHAPE = next((shape for shape in ROW_SHAPES if tiles[shape] <= 1), ROW_SHAPES[-1])
    _, THREADS, BLOCK_M = SHAPE
    args = (x, y, *int64(M, N, x.stride(0)), *int32(tiles[SHAPE]))
    return Launch(ROW(x.dtype, SHAPE=SHAPE), ceil_div(M, BLOCK_M), THREADS * BLOCK_M, args)


@variant("scan", "row", kernels=[ROW], level="tiled", algorithm="tiles of a row one after another")
def row(x: Tensor) -> Plan:
    """A block scans a row tile by tile."""
    x = checked(x)
    y = empty_like(x)
    return Plan(y, row_launch(x, y))


FEW_TILES = 1024
"""About four waves of an H100, with two blocks on each multiprocessor."""


def vectors_for(x: Tensor, most: int, THREADS: int) -> int:
    """Vectors per thread: ``most``, or fewer where there were few tiles of so many."""
    while most > 2 and x.size(0) * tiles_of(x, most * THREADS * vector(x)) < FEW_TILES:
        most //= 2
    return most


TILES = {"VECTORS": (2, 4, 8, 16), "THREADS": (64, 128, 256)}

TWOPASS_SHAPES = [(VECTORS, 128) for VECTORS in (2, 4, 8)]
REDUCE = Kernel("scan_reduce_kernel<{T}, {SHAPE}>", SHAPE=TWOPASS_SHAPES)
SCAN = Kernel("scan_row_kernel<float, 4, 512, 1>")
ADD = Kernel("scan_add_kernel<{T}, {SHAPE}>", SHAPE=TWOPASS_SHAPES)


@variant(
    "scan",
    "twopass",
    kernels=[REDUCE, SCAN, ADD, ROW],
    level="tiled",
    algorithm="sum of each tile, scan of the sums, scan of each tile",
    tunable=TILES,
)
def twopass(x: Tensor, *, VECTORS: int = 8, THREADS: int = 128) -> Plan:
    """Sum each tile, scan the sums, read x again and scan.  Rows of one tile use `row`, here and below."""
    x = checked(x)
    y, (M, N) = empty_like(x), x.shape
    VECTORS = vectors_for(x, VECTORS, THREADS)
    tiles = tiles_of(x, VECTORS * THREADS * vector(x))
    if tiles <= 1:
        return Plan(y, row_launch(x, y))
    tile_sums, scanned_sums = (empty((M, tiles), torch.float32, x.device) for _ in range(2))
    scan_tiles = tiles_of(tile_sums, 4 * 512 * vector(tile_sums))
    args = (x, y, *int64(N, x.stride(0)), *int32(tiles))
    return Plan(
        y,
        Launch(REDUCE(x.dtype, SHAPE=(VECTORS, THREADS)), M * tiles, THREADS, (*args, tile_sums)),
        Launch(SCAN(), M, 512, (tile_sums, scanned_sums, *int64(M, tiles, tiles), *int32(scan_tiles))),
        Launch(ADD(x.dtype, SHAPE=(VECTORS, THREADS)), M * tiles, THREADS, (*args, scanned_sums)),
    )


LOOKBACK = Kernel(
    "scan_lookback_kernel<{T}, {SHAPE}>", SHAPE=[(VECTORS, 256, 2) for VECTORS in (2, 4, 8, 16)]
)


@variant(
    "scan",
    "lookback",
    kernels=[LOOKBACK, ROW],
    level="tiled",
    algorithm="decoupled look-back over a fixed tree",
    tunable={**TILES, "BLOCKS": (2, 3, 4, 6, 8, 12)},
    matches="triton.lookback",
)
def lookback(x: Tensor, *, VECTORS: int = 16, THREADS: int = 256, BLOCKS: int = 2) -> Plan:
    """Single-pass scan: tiles read the sums that earlier tiles have published."""
    x = checked(x)
    y, (M, N) = empty_like(x), x.shape
    VECTORS = vectors_for(x, VECTORS, THREADS)
    tiles = tiles_of(x, VECTORS * THREADS * vector(x))
    if tiles <= 1:
        return Plan(y, row_launch(x, y))
    row_words = tiles + tiles // 32 + tiles // 32**2
    words = zeros((1 + M * row_words,), torch.int64, x.device)
    args = (x, y, *int64(N, x.stride(0)), *int32(tiles), words)
    BLOCKS = min(BLOCKS, 2048 // THREADS)  # no more threads fit
    return Plan(y, Launch(LOOKBACK(x.dtype, SHAPE=(VECTORS, THREADS, BLOCKS)), M * tiles, THREADS, args))
