"""transpose through cupy: y = x.t(), contiguous, with the kernels of ``kernels/transpose.cuh``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from compare.arguments import check_same
from compare.registry import implementation
from compare.resources.banks import WARP, Access
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
TILE = 32


def tiles(M: int, N: int, BLOCK: int) -> int:
    """Number of BLOCK x BLOCK tiles."""
    return -(-M // BLOCK) * -(-N // BLOCK)


def by_elements(variant: str, x: torch.Tensor) -> torch.Tensor:
    """Element by element, in tiles of 32 x 32: any x."""
    check_same("transpose", 2, x=x)
    M, N = x.shape
    y = x.new_empty((N, M))
    if y.numel() == 0:
        return y
    THREADS = 256
    run = kernel("transpose", f"transpose_{variant}_kernel<{CTYPES[x.dtype]}, {THREADS}>", x.device)
    sizes = (np.int64(M), np.int64(N), np.int64(x.stride(0)), np.int64(x.stride(1)))
    run((tiles(M, N, TILE),), (THREADS,), (x.data_ptr(), y.data_ptr(), *sizes))
    return y


@implementation("transpose", "cupy.naive", level="naive", algorithm="element by element")
def naive(x: torch.Tensor) -> torch.Tensor:
    """Coalesced loads, stores M elements apart: uncoalesced."""
    return by_elements("naive", x)


@implementation("transpose", "cupy.shared", level="tiled")
def shared(x: torch.Tensor) -> torch.Tensor:
    """A tile in shared memory; bank conflicts when its columns are read."""
    return by_elements("shared", x)


@implementation("transpose", "cupy.padded", level="tiled")
def padded(x: torch.Tensor) -> torch.Tensor:
    """Padding: rows of the tile are one element longer."""
    return by_elements("padded", x)


@implementation("transpose", "cupy.swizzled", level="tiled")
def swizzled(x: torch.Tensor) -> torch.Tensor:
    """XOR swizzle of the tile's columns."""
    return by_elements("swizzled", x)


def windowed(x: torch.Tensor) -> torch.Tensor:
    """Rows of y split at 32-byte sectors; an x smaller than a tile uses `swizzled`."""
    SECTOR, ROWS, COLUMNS = 32 // x.element_size(), 256 // x.element_size(), 64
    M, N = x.shape
    if M < ROWS or N < COLUMNS:
        return swizzled(x)
    y = x.new_empty((N, M))
    THREADS = 128 * x.element_size()
    ALONG_M = str(x.stride(0) < x.stride(1)).lower()
    run = kernel("transpose", f"transpose_windowed_kernel<{CTYPES[x.dtype]}, {ALONG_M}, {THREADS}>", x.device)
    grid = ((M + SECTOR - 2) // (ROWS - SECTOR) + 1) * -(-N // COLUMNS)
    sizes = (np.int64(M), np.int64(N), np.int64(x.stride(0)), np.int64(x.stride(1)))
    run((grid,), (THREADS,), (x.data_ptr(), y.data_ptr(), *sizes))
    return y


def whole_packs(x: torch.Tensor) -> bool:
    """Whether x's rows are contiguous, whole 16-byte vectors, aligned, and y's whole 32-byte sectors."""
    VEC, SECTOR = 16 // x.element_size(), 32 // x.element_size()
    M, N = x.shape
    return (
        (x.stride(1) == 1 or N == 1)
        and M % SECTOR == N % VEC == x.stride(0) % VEC == 0
        and x.data_ptr() % 16 == 0
    )


@implementation(
    "transpose",
    "cupy.vectorized",
    level="tiled",
    algorithm="tiles through shared memory",
    tunable={"ROW_BYTES": (256, 512), "THREADS": (64, 128, 256)},
    matches="triton.vectorized",
)
def vectorized(x: torch.Tensor, *, ROW_BYTES: int = 256, THREADS: int = 256) -> torch.Tensor:
    """16-byte vectorized accesses on both sides; an unaligned x or y uses `windowed`."""
    check_same("transpose", 2, x=x)
    if not whole_packs(x):
        return windowed(x)
    M, N = x.shape
    y = x.new_empty((N, M))
    if y.numel() == 0:
        return y
    BLOCK = ROW_BYTES // x.element_size()
    name = f"transpose_vectorized_kernel<{CTYPES[x.dtype]}, {BLOCK}, {THREADS}>"
    run = kernel("transpose", name, x.device)
    sizes = (np.int64(M), np.int64(N), np.int64(x.stride(0)))
    run(
        (tiles(M, N, BLOCK),),
        (THREADS,),
        (x.data_ptr(), y.data_ptr(), *sizes),
        shared_mem=BLOCK * ROW_BYTES,
    )
    return y


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
    found: dict[str, tuple[Access, ...]] = {"naive": ()}
    lanes = range(WARP)
    for layout, place in PLACES.items():
        row = tuple(place(0, lane) * itemsize for lane in lanes)
        column = tuple(place(lane, 0) * itemsize for lane in lanes)
        found[layout.lower()] = (Access("store", row, itemsize), Access("load", column, itemsize))
    VEC, ROW_PACKS = 16 // itemsize, 256 // 16
    # The first vector of each lane's first transposed square, and what a warp loads of them.
    down = tuple(
        16 * packed_place(lane % ROW_PACKS * VEC, lane // ROW_PACKS, itemsize) for lane in range(WARP)
    )
    along = tuple(16 * packed_place(lane // ROW_PACKS, lane % ROW_PACKS, itemsize) for lane in range(WARP))
    found["vectorized"] = (Access("store", down, 16), Access("load", along, 16))
    # The first words of the first row, and what a warp loads of them for the first two rows of y.
    words = tuple(4 * windowed_place(0, lane) for lane in lanes)
    packs = tuple(4 * windowed_place(4 * (lane % ROW_PACKS), lane // ROW_PACKS) for lane in lanes)
    found["windowed"] = (Access("store", words, 4), Access("load", packs, 4))
    return found
