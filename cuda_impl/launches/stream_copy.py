"""stream_copy in CUDA: y = x, with the kernels of ``kernels/stream_copy.cuh``."""

from __future__ import annotations

import numpy as np

from compare.arguments import check_same
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty_like
from cuda_impl.launch import CLUSTERED, Kernel, Launch, Plan, ceil_div, int64, variant

WORDS = {4: "unsigned", 2: "unsigned short"}
"""By the size of an element: a copy needs only that."""


def kernel(variant: str, *constants: int) -> Kernel:
    """A variant's, and its template arguments after the type."""
    template = f"stream_copy_{variant}_kernel<{{WORD}}, {{CONSTANTS}}>"
    return Kernel(template, WORD=lambda T: [WORDS[T.itemsize]], CONSTANTS=[constants])


NAIVE = Kernel("stream_copy_naive_kernel<{WORD}>", WORD=lambda T: [WORDS[T.itemsize]])


@variant(
    "stream_copy",
    "naive",
    kernels=[NAIVE],
    level="naive",
    algorithm="element by element",
    tunable={"THREADS": (32, 64, 128, 256, 512, 1024)},
)
def naive(x: Tensor, *, THREADS: int = 256) -> Plan:
    """One element per thread: any x."""
    check_same("stream_copy", 1, x=x)
    y, N = empty_like(x), x.numel()
    args = (x, y, *int64(N, x.stride(0)))
    return Plan(y, Launch(NAIVE(WORD=WORDS[x.element_size()]), ceil_div(N, THREADS), THREADS, args))


def whole_vectors(x: Tensor) -> bool:
    """Whether x is contiguous and 16-byte aligned, as y is."""
    return (x.stride(0) == 1 or x.numel() <= 1) and x.data_ptr() % 16 == 0


def bytes_of(x: Tensor) -> int:
    return x.numel() * x.element_size()


def by_chunks(
    run: Kernel,
    x: Tensor,
    constants: tuple[int, ...],
    blocks: int,
    THREADS: int,
    shared_bytes: int = 0,
    more: tuple[np.int64, ...] = (),
) -> Plan:
    """A kernel with these template arguments after the type, on this number of blocks.

    ``more`` are its arguments besides the vectors and their length.
    """
    y = empty_like(x)
    instance = run(WORD=WORDS[x.element_size()], CONSTANTS=constants)
    return Plan(y, Launch(instance, blocks, THREADS, (x, y, *int64(x.numel()), *more), shared_bytes))


SIZES = {"VECTORS": (1, 2, 4, 8), "THREADS": (32, 64, 128, 256, 512)}
VECTORIZED, GATHERED = kernel("vectorized", 1, 128), kernel("gathered", 128)


@variant(
    "stream_copy",
    "vectorized",
    kernels=[VECTORIZED, GATHERED],
    level="tiled",
    algorithm="vectorized copy",
    tunable=SIZES,
    matches="triton.vectorized",
)
def vectorized(x: Tensor, *, VECTORS: int = 1, THREADS: int = 128) -> Plan:
    """VECTORS 16-byte accesses per thread; a strided or unaligned x is read element by element."""
    check_same("stream_copy", 1, x=x)
    if not whole_vectors(x):
        blocks = ceil_div(bytes_of(x), THREADS * 16)
        return by_chunks(GATHERED, x, (THREADS,), blocks, THREADS, more=int64(x.stride(0)))
    blocks = ceil_div(bytes_of(x), VECTORS * THREADS * 16)
    return by_chunks(VECTORIZED, x, (VECTORS, THREADS), blocks, THREADS)


HINTED = kernel("hinted", 1, 128, 2, 0)


@variant(
    "stream_copy",
    "hinted",
    kernels=[HINTED, GATHERED],
    level="tiled",
    algorithm="vectorized copy with cache hints",
    tunable={**SIZES, "LOAD_HINT": (0, 1, 2, 3), "STORE_HINT": (0, 1, 2)},
    matches="triton.hinted",
)
def hinted(
    x: Tensor, *, VECTORS: int = 1, THREADS: int = 128, LOAD_HINT: int = 2, STORE_HINT: int = 0
) -> Plan:
    """As `vectorized`, with cache hints; the kernels' file lists them."""
    check_same("stream_copy", 1, x=x)
    if not whole_vectors(x):
        return vectorized.plan(x)
    blocks = ceil_div(bytes_of(x), VECTORS * THREADS * 16)
    return by_chunks(HINTED, x, (VECTORS, THREADS, LOAD_HINT, STORE_HINT), blocks, THREADS)


def blocks_for(x: Tensor, chunks: int, BLOCKS: int) -> int:
    """BLOCKS per multiprocessor, at most one per chunk; at least one, for the tail."""
    return max(1, min(chunks, BLOCKS * multiprocessors(x.device)))


PREFETCH = kernel("prefetch", 4, 256, 2, 1)


@variant(
    "stream_copy",
    "prefetch",
    kernels=[PREFETCH, GATHERED],
    level="tiled",
    algorithm="vectorized copy with prefetching",
    tunable={
        "VECTORS": (1, 2, 4),
        "THREADS": (128, 256, 512),
        "STAGES": (1, 2, 3, 4),
        "BLOCKS": (1, 2, 3, 4),
    },
    matches="triton.prefetch",
)
def prefetch(x: Tensor, *, VECTORS: int = 4, THREADS: int = 256, STAGES: int = 2, BLOCKS: int = 1) -> Plan:
    """Persistent; STAGES chunks per block are prefetched into registers."""
    check_same("stream_copy", 1, x=x)
    if not whole_vectors(x):
        return vectorized.plan(x)
    blocks = blocks_for(x, bytes_of(x) // (VECTORS * THREADS * 16), BLOCKS)
    return by_chunks(PREFETCH, x, (VECTORS, THREADS, STAGES, BLOCKS), blocks, THREADS)


CP_ASYNC = kernel("cp_async", 4, 256, 4, 1)


@variant(
    "stream_copy",
    "cp_async",
    kernels=[CP_ASYNC, GATHERED],
    level="tiled",
    algorithm="through shared memory by cp.async",
    tunable={
        "VECTORS": (1, 2, 4),
        "THREADS": (64, 128, 256, 512),
        "STAGES": (2, 3, 4, 6),
        "BLOCKS": (1, 2, 3, 4),
    },
    matches="triton.cp_async",
)
def cp_async(x: Tensor, *, VECTORS: int = 4, THREADS: int = 256, STAGES: int = 4, BLOCKS: int = 1) -> Plan:
    """Persistent; STAGES chunks per block are prefetched into shared memory by cp.async."""
    check_same("stream_copy", 1, x=x)
    if not whole_vectors(x):
        return vectorized.plan(x)
    chunk_bytes = VECTORS * THREADS * 16
    blocks = blocks_for(x, bytes_of(x) // chunk_bytes, BLOCKS)
    return by_chunks(CP_ASYNC, x, (VECTORS, THREADS, STAGES, BLOCKS), blocks, THREADS, STAGES * chunk_bytes)


BARRIER_BYTES = 8
TMA = kernel("tma", 4096)


@variant(
    "stream_copy",
    "tma",
    kernels=[TMA, GATHERED],
    algorithm="through shared memory by TMA",
    **CLUSTERED,
    tunable={"CHUNK_BYTES": (1024, 2048, 4096, 8192, 16384, 32768)},
    matches="triton.tma",
)
def tma(x: Tensor, *, CHUNK_BYTES: int = 4096) -> Plan:
    """One chunk per block, moved by TMA."""
    check_same("stream_copy", 1, x=x)
    if not whole_vectors(x):
        return vectorized.plan(x)
    blocks = max(1, ceil_div(bytes_of(x) // 16 * 16, CHUNK_BYTES))  # at least one, for the tail
    return by_chunks(TMA, x, (CHUNK_BYTES,), blocks, 32, CHUNK_BYTES + BARRIER_BYTES)
