"""transpose in CUDA: y = x.t(), contiguous, with the kernels of ``kernels/transpose.cuh``."""

from __future__ import annotations

from collections.abc import Callable

from compare.arguments import check_same
from compare.resources.banks import WARP, Access
from cuda_impl.buffers import Tensor, empty
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int64, variant
from cuda_impl.layouts import vector

TILE = 32


def tiles(M: int, N: int, BLOCK: int) -> int:
    """Number of BLOCK x BLOCK tiles."""
    return ceil_div(M, BLOCK) * ceil_div(N, BLOCK)


def by_elements(run: Kernel, x: Tensor) -> Plan:
    """Element by element, in tiles of 32 x 32: any x."""
    check_same("transpose", 2, x=x)
    M, N = x.shape
    y = empty((N, M), x.dtype, x.device)
    return Plan(y, Launch(run(x.dtype), tiles(M, N, TILE), 256, (x, y, *int64(M, N, *x.stride()))))


NAIVE, SHARED, PADDED, SWIZZLED = (
    Kernel("transpose_" + layout + "_kernel<{T}, 256>")
    for layout in ("naive", "shared", "padded", "swizzled")
)


@variant("transpose", "naive", kernels=[NAIVE], level="naive", algorithm="element by element")
def naive(x: Tensor) -> Plan:
    """Coalesced loads, stores M elements apart: uncoalesced."""
    return by_elements(NAIVE, x)


@variant("transpose", "shared", kernels=[SHARED], level="tiled")
def shared(x: Tensor) -> Plan:
    """A tile in shared memory; bank conflicts when its columns are read."""
    return by_elements(SHARED, x)


@variant("transpose", "padded", kernels=[PADDED], level="tiled")
def padded(x: Tensor) -> Plan:
    """Padding: rows of the tile are one element longer."""
    return by_elements(PADDED, x)


@variant("transpose", "swizzled", kernels=[SWIZZLED], level="tiled")
def swizzled(x: Tensor) -> Plan:
    """XOR swizzle of the tile's columns."""
    return by_elements(SWIZZLED, x)


WINDOWED = Kernel(
    "transpose_windowed_kernel<{T}, {ALONG_M}, {THREADS}>",
    THREADS=lambda T: [128 * T.itemsize],
    ALONG_M=(True, False),
)


def windowed(x: Tensor) -> Plan:
    """Rows of y split at 32-byte sectors; an x smaller than a tile uses `swizzled`."""
    SECTOR, ROWS, COLUMNS = 32 // x.element_size(), 256 // x.element_size(), 64
    M, N = x.shape
    if M < ROWS or N < COLUMNS:
        return swizzled.plan(x)
    y = empty((N, M), x.dtype, x.device)
    THREADS = 128 * x.element_size()
    run = WINDOWED(x.dtype, ALONG_M=x.stride(0) < x.stride(1), THREADS=THREADS)
    grid = ceil_div(M + SECTOR - 1, ROWS - SECTOR) * ceil_div(N, COLUMNS)
    return Plan(y, Launch(run, grid, THREADS, (x, y, *int64(M, N, *x.stride()))))


def whole_vectors(x: Tensor) -> bool:
    """Whether x's rows are contiguous, whole 16-byte vectors, aligned, and y's whole 32-byte sectors."""
    VEC, SECTOR = vector(x), 2 * vector(x)
    M, N = x.shape
    return (
        (x.stride(1) == 1 or N == 1)
        and M % SECTOR == N % VEC == x.stride(0) % VEC == 0
        and x.data_ptr() % 16 == 0
    )


COPY = Kernel("stream_copy_vectorized_kernel<{T}, 1, 128>")


def lies_as_output(x: Tensor) -> bool:
    """Whether x's columns are the rows of a contiguous matrix, 16-byte aligned: y is a copy."""
    M, N = x.shape
    return x.data_ptr() % 16 == 0 and (x.stride(0) == 1 or M == 1) and (x.stride(1) == M or N == 1)


VECTORIZED = Kernel(
    "transpose_vectorized_kernel<{T}, {BLOCK}, {THREADS}>",
    BLOCK=lambda T: [256 // T.itemsize],
    THREADS=(256,),
)


@variant(
    "transpose",
    "vectorized",
    kernels=[VECTORIZED, WINDOWED, SWIZZLED, COPY],
    level="tiled",
    algorithm="tiles through shared memory",
    tunable={"ROW_BYTES": (256, 512), "THREADS": (64, 128, 256)},
    matches="triton.vectorized",
)
def vectorized(x: Tensor, *, ROW_BYTES: int = 256, THREADS: int = 256) -> Plan:
    """16-byte vectorized accesses on both sides; an unaligned x or y uses `windowed`."""
    check_same("transpose", 2, x=x)
    M, N = x.shape
    if lies_as_output(x):
        y = empty((N, M), x.dtype, x.device)
        return Plan(y, Launch(COPY(x.dtype), ceil_div(M * N, 128 * vector(x)), 128, (x, y, *int64(M * N))))
    if not whole_vectors(x):
        return windowed(x)
    y = empty((N, M), x.dtype, x.device)
    BLOCK = ROW_BYTES // x.element_size()
    run = VECTORIZED(x.dtype, BLOCK=BLOCK, THREADS=THREADS)
    args = (x, y, *int64(M, N, x.stride(0)))
    return Plan(y, Launch(run, tiles(M, N, BLOCK), THREADS, args, BLOCK * ROW_BYTES))


# --------------------------------------------------------------------------- shared memory layouts

PLACES: dict[str, Callable[[int, int], int]] = {
    "Shared": lambda row, column: row * TILE + column,
    "Padded": lambda row, column: row * (TILE + 1) + column,
    "Swizzled": lambda row, column: row * TILE + (column ^ row),
}
"""As in the kernels' file: offset of an element of a 32 x 32 tile, in elements."""


def packed_place(row: int, pack: int, itemsize: int, ROW_BYTES: int = 256) -> int:
    """As in the kernels' file: offset of a 16-byte vector of `vectorized`'s tile, in vectors."""
    VEC = 16 // itemsize
    return row * (ROW_BYTES // 16) + (pack ^ (row // VEC % 8))


def windowed_place(word: int, column: int) -> int:
    """As in the kernels' file: offset of a word of the unaligned kernel's tile, in words."""
    return word * (64 + 1) + column


def shared_accesses(itemsize: int) -> dict[str, tuple[Access, ...]]:
    """Shared-memory accesses of each variant's first warp, for elements of ``itemsize`` bytes."""
    accesses: dict[str, tuple[Access, ...]] = {"naive": ()}
    lanes = range(WARP)
    for layout, place in PLACES.items():
        row = tuple(place(0, lane) * itemsize for lane in lanes)
        column = tuple(place(lane, 0) * itemsize for lane in lanes)
        accesses[layout.lower()] = (Access("store", row, itemsize), Access("load", column, itemsize))
    VEC, ROW_VECTORS = 16 // itemsize, 256 // 16
    # The first vector of each lane's first transposed square, and what a warp loads of them.
    down = tuple(
        16 * packed_place(lane % ROW_VECTORS * VEC, lane // ROW_VECTORS, itemsize) for lane in range(WARP)
    )
    along = tuple(
        16 * packed_place(lane // ROW_VECTORS, lane % ROW_VECTORS, itemsize) for lane in range(WARP)
    )
    accesses["vectorized"] = (Access("store", down, 16), Access("load", along, 16))
    # The first words of the first row, and what a warp loads of them for the first two rows of y.
    words = tuple(4 * windowed_place(0, lane) for lane in lanes)
    vectors = tuple(4 * windowed_place(4 * (lane % ROW_VECTORS), lane // ROW_VECTORS) for lane in lanes)
    accesses["windowed"] = (Access("store", words, 4), Access("load", vectors, 4))
    return accesses
