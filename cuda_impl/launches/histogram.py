"""histogram in CUDA: y[b] = how many x[n] are b, with the kernels of ``kernels/histogram.cuh``."""

from __future__ import annotations

import torch

from compare.arguments import check_bytes
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, zeros
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int32, int64, variant

BINS, COPIES = 256, 64


def checked(x: Tensor) -> tuple[int, Tensor]:
    """The length of x, and counts of 0."""
    check_bytes("histogram", x)
    return x.numel(), zeros((BINS,), torch.int64, x.device)


GLOBAL, SHARED = Kernel("histogram_global_kernel<256>"), Kernel("histogram_shared_kernel<256>")


@variant("histogram", "global", kernels=[GLOBAL], level="naive", algorithm="atomics in global memory")
def globally(x: Tensor) -> Plan:
    """An atomic addition in global memory per element."""
    N, y = checked(x)
    THREADS = 256
    blocks = max(1, ceil_div(N, THREADS))
    return Plan(y, Launch(GLOBAL(), blocks, THREADS, (x, y, *int64(N, x.stride(0)))))


@variant("histogram", "shared", kernels=[SHARED], level="tiled")
def shared(x: Tensor) -> Plan:
    """A block counts in shared memory and adds its counts to y at its end."""
    N, y = checked(x)
    THREADS, BLOCKS = 256, 8
    blocks = max(1, min(ceil_div(N, THREADS), BLOCKS * multiprocessors(x.device)))
    return Plan(y, Launch(SHARED(), blocks, THREADS, (x, y, *int64(N, x.stride(0)))))


def by_chunks(run: Kernel, x: Tensor, VECTORS: int, THREADS: int, BLOCKS: int, shared_bytes: int = 0) -> Plan:
    """Chunks of THREADS * VECTORS vectors, for BLOCKS blocks per multiprocessor, at most one per chunk.

    A strided x uses `shared`.
    """
    N, y = checked(x)
    if N > 1 and x.stride(0) != 1:
        return shared.plan(x)
    head = min(N, -x.data_ptr() % 16)
    BLOCKS = min(BLOCKS, 2048 // THREADS)
    chunks = ceil_div((N - head) // 16, THREADS * VECTORS)
    blocks = max(1, min(chunks, BLOCKS * multiprocessors(x.device)))
    args = (x, y, *int64(N), *int32(head))
    return Plan(y, Launch(run(SHAPE=(VECTORS, THREADS, BLOCKS)), blocks, THREADS, args, shared_bytes))


SIZES = {"VECTORS": (1, 2, 4, 8), "THREADS": (256, 512, 1024), "BLOCKS": (1, 2, 3, 4)}
WARPS = Kernel("histogram_warps_kernel<{SHAPE}>", SHAPE=[(4, 512, 2)])
LANES = Kernel("histogram_lanes_kernel<{SHAPE}>", SHAPE=[(4, 512, 2)])


@variant("histogram", "warps", kernels=[WARPS, SHARED], level="tiled", tunable=SIZES)
def warps(x: Tensor, *, VECTORS: int = 4, THREADS: int = 512, BLOCKS: int = 2) -> Plan:
    """One set of counters per warp; four 16-byte loads per thread in flight."""
    return by_chunks(WARPS, x, VECTORS, THREADS, BLOCKS)


@variant("histogram", "lanes", kernels=[LANES, SHARED], level="tiled", tunable=SIZES)
def lanes(x: Tensor, *, VECTORS: int = 4, THREADS: int = 512, BLOCKS: int = 2) -> Plan:
    """One private counter per lane, in a bank of its own."""
    return by_chunks(LANES, x, VECTORS, THREADS, BLOCKS, shared_bytes=BINS * COPIES * 4)
