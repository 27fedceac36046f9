"""topk in CUDA: ``x[M,N] -> values[M,K], indices[M,K]``, with the kernels of ``kernels/topk.cuh``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from compare.arguments import check_largest
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.layouts import BOOLS, VECS, contiguous_rows, in_vectors, vector

OP = "topk"
MOST_K = 256


def checked(x: Tensor, K: int) -> Tensor:
    """x, copied where rows are not contiguous."""
    check_largest(OP, x, K)
    return contiguous_rows(x)


def outputs(x: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Values and indices, of so many columns."""
    shape = (x.size(0), columns)
    return empty(shape, x.dtype, x.device), empty(shape, torch.int64, x.device)


def check_few(K: int) -> None:
    """
    Raises:
        NotImplementedError: K is more than registers or shared memory hold.
    """
    if K > MOST_K:
        raise NotImplementedError(f"K={K}: at most {MOST_K}; passes takes any")


PASSES = Kernel("topk_passes_kernel<{T}, 512>")


@variant(OP, "passes", kernels=[PASSES], level="naive", algorithm="K maxima")
def passes(x: Tensor, *, K: int) -> Plan:
    """K passes over the row."""
    x = checked(x, K)
    values, indices = outputs(x, K)
    M, N = x.shape
    args = (x, values, indices, *int32(N), *int64(x.stride(0)), *int32(K))
    return Plan((values, indices), Launch(PASSES(x.dtype), M, 512, args))


BITONIC = Kernel("topk_bitonic_kernel<{T}, {VEC}, {BLOCK_K}, 256>", VEC=VECS, BLOCK_K=(32, 64, 128, MOST_K))


@variant(OP, "bitonic", kernels=[BITONIC], level="tiled")
def bitonic(x: Tensor, *, K: int) -> Plan:
    """One pass; each warp keeps its best in registers."""
    x = checked(x, K)
    check_few(K)
    values, indices = outputs(x, K)
    M, N = x.shape
    VEC = vector(x) if in_vectors(x) else 1
    BLOCK_K = max(32, 1 << (max(K, 1) - 1).bit_length())
    args = (x, values, indices, *int32(N), *int64(x.stride(0)), *int32(K))
    return Plan((values, indices), Launch(BITONIC(x.dtype, VEC=VEC, BLOCK_K=BLOCK_K), M, 256, args))


# --------------------------------------------------------------------------- radix, delegates, filtered

MOST_COLUMNS = 8192
"""Of a tile: 256 threads with 32 elements each."""


def shape_of(N: int, T: torch.dtype) -> tuple[int, int]:
    """VECTORS and THREADS of the smallest tile for N columns, or of the largest tile."""
    if N <= 1024:
        return T.itemsize // 2, 128
    return 2 * T.itemsize, 128 if N <= MOST_COLUMNS // 2 else 256


def shapes(T: torch.dtype, ALIGNED: bool) -> Iterator[tuple[int, int]]:
    yield from (shape_of(N, T) for N in (1024, 4096, MOST_COLUMNS))


def tiles_of(M: int, N: int, VEC: int, K: int, processors: int, loops: bool) -> int:
    """Parts of a row: as few as registers hold, or one if a block loops over tiles; more if few blocks run.

    A part has many times as many elements as it hands on.
    """
    least = 1 if loops else ceil_div(ceil_div(N, VEC), MOST_COLUMNS // VEC)
    blocks, most = (6 if loops else 2) * processors, N // max(2048, 8 * K)
    return max(1, least, min(ceil_div(blocks, max(M, 1)), most))


def by_tiles(run: Kernel, x: Tensor, K: int, loops: bool = False) -> Plan:
    """Launches that select in parts of rows, and then among their best, until one part is left."""
    x = checked(x, K)
    check_few(K)
    columns, launches, tiles = x, [], 0
    while tiles != 1:
        M, N = x.shape
        tiles = tiles_of(M, N, vector(x), K, multiprocessors(x.device), loops)
        values, indices = outputs(x, tiles * K)
        SHAPE = shape_of(ceil_div(ceil_div(N, vector(x)), tiles) * vector(x), x.dtype)
        sizes = (*int32(N), *int64(x.stride(0)), *int32(tiles, len(launches), K))
        kernel = run(x.dtype, ALIGNED=in_vectors(x), SHAPE=SHAPE)
        launches.append(Launch(kernel, M * tiles, SHAPE[1], (x, columns, values, indices, *sizes)))
        x, columns = values, indices
    return Plan((x, columns), *launches)


RADIX = Kernel("topk_radix_kernel<{T}, {ALIGNED}, {SHAPE}>", ALIGNED=BOOLS, SHAPE=shapes)
DELEGATES = Kernel("topk_delegates_kernel<{T}, {ALIGNED}, {SHAPE}>", ALIGNED=BOOLS, SHAPE=shapes)
FILTERED = Kernel("topk_filtered_kernel<{T}, {ALIGNED}, {SHAPE}>", ALIGNED=BOOLS, SHAPE=shapes)


@variant(OP, "radix", kernels=[RADIX], level="tiled")
def radix(x: Tensor, *, K: int) -> Plan:
    """Histograms of digits find the K-th largest of a tile in registers."""
    return by_tiles(RADIX, x, K)


@variant(OP, "delegates", kernels=[DELEGATES], level="tiled")
def delegates(x: Tensor, *, K: int) -> Plan:
    """Histograms of the groups' largest elements find a bound that few others reach."""
    return by_tiles(DELEGATES, x, K)


@variant(OP, "filtered", kernels=[FILTERED], level="tiled")
def filtered(x: Tensor, *, K: int) -> Plan:
    """A bound from the first tile, which few elements of the others reach."""
    return by_tiles(FILTERED, x, K, loops=True)
