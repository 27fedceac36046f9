"""stream_copy through cupy: y = x, with the kernels of ``kernels/stream_copy.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_same
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.loader import kernel

# A copy needs only the size of an element.
CTYPES = {4: "unsigned", 2: "unsigned short"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@implementation(
    "stream_copy",
    "cupy.naive",
    level="naive",
    algorithm="element by element",
    tunable={"THREADS": (32, 64, 128, 256, 512, 1024)},
)
def naive(x: torch.Tensor, *, THREADS: int = 256) -> torch.Tensor:
    """One element per thread: any x."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    if N == 0:
        return y
    run = kernel("stream_copy", f"stream_copy_naive_kernel<{CTYPES[x.element_size()]}>", x.device)
    grid = (ceil_div(N, THREADS),)
    run(grid, (THREADS,), (x.data_ptr(), y.data_ptr(), np.int64(N), np.int64(x.stride(0))))
    return y


def whole_packs(x: torch.Tensor) -> bool:
    """Whether x is contiguous and 16-byte aligned, as y is."""
    return (x.stride(0) == 1 or x.numel() <= 1) and x.data_ptr() % 16 == 0


def by_chunks(
    variant: str,
    x: torch.Tensor,
    constants: tuple[int, ...],
    blocks: int,
    THREADS: int,
    shared_bytes: int = 0,
    more: tuple[np.int64, ...] = (),
) -> torch.Tensor:
    """Launch a variant's kernel with these template arguments after the type, on this number of blocks.

    ``more`` are its arguments besides the vectors and their length.
    """
    N = x.numel()
    y = x.new_empty(N)
    if N == 0:
        return y
    arguments = ", ".join(map(str, (CTYPES[x.element_size()], *constants)))
    run = kernel("stream_copy", f"stream_copy_{variant}_kernel<{arguments}>", x.device)
    run((blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), np.int64(N), *more), shared_mem=shared_bytes)
    return y


SIZES = {"PACKS": (1, 2, 4, 8), "THREADS": (32, 64, 128, 256, 512)}


@implementation(
    "stream_copy",
    "cupy.vectorized",
    level="tiled",
    algorithm="vectorized copy",
    tunable=SIZES,
    matches="triton.vectorized",
)
def vectorized(x: torch.Tensor, *, PACKS: int = 1, THREADS: int = 128) -> torch.Tensor:
    """16-byte vectorized accesses, PACKS per thread; a strided or unaligned x is read element by element."""
    check_same("stream_copy", 1, x=x)
    if not whole_packs(x):
        blocks = ceil_div(x.nbytes, THREADS * 16)
        return by_chunks("gathered", x, (THREADS,), blocks, THREADS, more=(np.int64(x.stride(0)),))
    blocks = ceil_div(x.nbytes, PACKS * THREADS * 16)
    return by_chunks("vectorized", x, (PACKS, THREADS), blocks, THREADS)


@implementation(
    "stream_copy",
    "cupy.hinted",
    level="tiled",
    algorithm="vectorized copy with cache hints",
    tunable={**SIZES, "LOAD_HINT": (0, 1, 2, 3), "STORE_HINT": (0, 1, 2)},
    matches="triton.hinted",
)
def hinted(
    x: torch.Tensor, *, PACKS: int = 1, THREADS: int = 128, LOAD_HINT: int = 2, STORE_HINT: int = 0
) -> torch.Tensor:
    """As `vectorized`, with cache hints; the kernels' file lists them."""
    check_same("stream_copy", 1, x=x)
    if not whole_packs(x):
        return vectorized(x)
    blocks = ceil_div(x.nbytes, PACKS * THREADS * 16)
    return by_chunks("hinted", x, (PACKS, THREADS, LOAD_HINT, STORE_HINT), blocks, THREADS)


def blocks_for(x: torch.Tensor, chunks: int, BLOCKS: int) -> int:
    """BLOCKS per multiprocessor, at most one per chunk; at least one, for the tail."""
    return max(1, min(chunks, BLOCKS * multiprocessors(x.device)))


@implementation(
    "stream_copy",
    "cupy.prefetch",
    level="tiled",
    algorithm="vectorized copy with prefetching",
    tunable={"PACKS": (1, 2, 4), "THREADS": (128, 256, 512), "STAGES": (1, 2, 3, 4), "BLOCKS": (1, 2, 3, 4)},
    matches="triton.prefetch",
)
def prefetch(
    x: torch.Tensor, *, PACKS: int = 4, THREADS: int = 256, STAGES: int = 2, BLOCKS: int = 1
) -> torch.Tensor:
    """Persistent; STAGES chunks per block are prefetched into registers."""
    check_same("stream_copy", 1, x=x)
    if not whole_packs(x):
        return vectorized(x)
    blocks = blocks_for(x, x.nbytes // (PACKS * THREADS * 16), BLOCKS)
    return by_chunks("prefetch", x, (PACKS, THREADS, STAGES, BLOCKS), blocks, THREADS)


@implementation(
    "stream_copy",
    "cupy.cp_async",
    level="tiled",
    algorithm="through shared memory by cp.async",
    tunable={
        "PACKS": (1, 2, 4),
        "THREADS": (64, 128, 256, 512),
        "STAGES": (2, 3, 4, 6),
        "BLOCKS": (1, 2, 3, 4),
    },
    matches="triton.cp_async",
)
def cp_async(
    x: torch.Tensor, *, PACKS: int = 4, THREADS: int = 256, STAGES: int = 4, BLOCKS: int = 1
) -> torch.Tensor:
    """Persistent; STAGES chunks per block are prefetched into shared memory by cp.async."""
    check_same("stream_copy", 1, x=x)
    if not whole_packs(x):
        return vectorized(x)
    chunk_bytes = PACKS * THREADS * 16
    blocks = blocks_for(x, x.nbytes // chunk_bytes, BLOCKS)
    constants = (PACKS, THREADS, STAGES, BLOCKS)
    return by_chunks("cp_async", x, constants, blocks, THREADS, STAGES * chunk_bytes)


BARRIER_BYTES = 8


@implementation(
    "stream_copy",
    "cupy.tma",
    level="hopper",
    algorithm="through shared memory by TMA",
    requires="sm_90",
    tunable={"CHUNK_BYTES": (1024, 2048, 4096, 8192, 16384, 32768)},
    matches="triton.tma",
)
def tma(x: torch.Tensor, *, CHUNK_BYTES: int = 4096) -> torch.Tensor:
    """One chunk per block, moved by TMA."""
    check_same("stream_copy", 1, x=x)
    if not whole_packs(x):
        return vectorized(x)
    blocks = max(1, ceil_div(x.nbytes // 16 * 16, CHUNK_BYTES))  # at least one, for the tail
    return by_chunks("tma", x, (CHUNK_BYTES,), blocks, 32, CHUNK_BYTES + BARRIER_BYTES)
