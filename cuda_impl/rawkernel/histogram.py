"""histogram through cupy: y[b] = how many x[n] are b, with the kernels of ``kernels/histogram.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_bytes
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.loader import kernel

BINS, COPIES = 256, 64


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@implementation("histogram", "cupy.global", level="naive", algorithm="atomics in global memory")
def globally(x: torch.Tensor) -> torch.Tensor:
    """An atomic addition in global memory per element."""
    check_bytes("histogram", x)
    THREADS = 256
    N = x.numel()
    y = torch.zeros(BINS, dtype=torch.int64, device=x.device)
    run = kernel("histogram", f"histogram_global_kernel<{THREADS}>", x.device)
    blocks = max(1, ceil_div(N, THREADS))
    run((blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), np.int64(N), np.int64(x.stride(0))))
    return y


@implementation("histogram", "cupy.shared", level="tiled")
def shared(x: torch.Tensor) -> torch.Tensor:
    """A block counts in shared memory and adds its counts to y at its end."""
    check_bytes("histogram", x)
    THREADS, BLOCKS = 256, 8
    N = x.numel()
    y = torch.zeros(BINS, dtype=torch.int64, device=x.device)
    run = kernel("histogram", f"histogram_shared_kernel<{THREADS}>", x.device)
    blocks = max(1, min(ceil_div(N, THREADS), BLOCKS * multiprocessors(x.device)))
    run((blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), np.int64(N), np.int64(x.stride(0))))
    return y


def by_chunks(
    variant: str, x: torch.Tensor, PACKS: int, THREADS: int, BLOCKS: int, shared_bytes: int = 0
) -> torch.Tensor:
    """Chunks of THREADS * PACKS vectors, for BLOCKS blocks per multiprocessor, at most one per chunk.

    A strided x uses `shared`.
    """
    check_bytes("histogram", x)
    N = x.numel()
    if N > 1 and x.stride(0) != 1:
        return shared(x)
    head = min(N, -x.data_ptr() % 16)
    BLOCKS = min(BLOCKS, 2048 // THREADS)
    chunks = ceil_div((N - head) // 16, THREADS * PACKS)
    blocks = max(1, min(chunks, BLOCKS * multiprocessors(x.device)))
    y = torch.zeros(BINS, dtype=torch.int64, device=x.device)
    run = kernel("histogram", f"histogram_{variant}_kernel<{PACKS}, {THREADS}, {BLOCKS}>", x.device)
    arguments = (x.data_ptr(), y.data_ptr(), np.int64(N), np.int32(head))
    run((blocks,), (THREADS,), arguments, shared_mem=shared_bytes)
    return y


SIZES = {"PACKS": (1, 2, 4, 8), "THREADS": (256, 512, 1024), "BLOCKS": (1, 2, 3, 4)}


@implementation("histogram", "cupy.warps", level="tiled", tunable=SIZES)
def warps(x: torch.Tensor, *, PACKS: int = 4, THREADS: int = 512, BLOCKS: int = 2) -> torch.Tensor:
    """One set of counters per warp; four 16-byte loads per thread in flight."""
    return by_chunks("warps", x, PACKS, THREADS, BLOCKS)


@implementation("histogram", "cupy.lanes", level="tiled", tunable=SIZES)
def lanes(x: torch.Tensor, *, PACKS: int = 4, THREADS: int = 512, BLOCKS: int = 2) -> torch.Tensor:
    """One private counter per lane, in a bank of its own."""
    return by_chunks("lanes", x, PACKS, THREADS, BLOCKS, shared_bytes=BINS * COPIES * 4)
