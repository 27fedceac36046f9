"""compact in CUDA: the elements greater than 0, with the kernels of ``kernels/compact.cuh``."""

from __future__ import annotations

import torch

from compare.arguments import check_same
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty_like, zeros
from cuda_impl.launch import CLUSTERED, Kernel, Launch, Plan, ceil_div, int32, int64, variant

COUNT = Kernel("compact_count_kernel<{T}, 16, 256>")
SCAN = Kernel("compact_scan_kernel<1024>")
SCATTER = Kernel("compact_scatter_kernel<{T}, 16, 256>")


@variant("compact", "twopass", kernels=[COUNT, SCAN, SCATTER], level="tiled")
def twopass(x: Tensor) -> Plan:
    """Count each tile, scan the counts, read x again and scatter."""
    check_same("compact", 1, x=x)
    y, N = empty_like(x), x.numel()
    ITEMS, THREADS, SCAN_THREADS = 16, 256, 1024
    tiles = ceil_div(N, THREADS * ITEMS)
    tile_counts = zeros((tiles + 1,), torch.int64, x.device)
    sizes = int64(N, x.stride(0))
    return Plan(
        y,
        Launch(COUNT(x.dtype), tiles, THREADS, (x, *sizes, tile_counts)),
        Launch(SCAN(), 1, SCAN_THREADS, (tile_counts, *int64(tiles))),
        Launch(SCATTER(x.dtype), tiles, THREADS, (x, y, *sizes, tile_counts)),
    )


ONEPASS = Kernel("compact_onepass_kernel<{T}, {SHAPE}>", SHAPE=[(24, 512, 2)])


@variant(
    "compact",
    "onepass",
    kernels=[ONEPASS],
    level="tiled",
    tunable={"ITEMS": (16, 20, 24, 28, 32), "THREADS": (256, 512), "BLOCKS": (1, 2, 3)},
)
def onepass(x: Tensor, *, ITEMS: int = 24, THREADS: int = 512, BLOCKS: int = 2) -> Plan:
    """Single-pass scan: tiles look back at the counts that earlier tiles have published."""
    check_same("compact", 1, x=x)
    y, N = empty_like(x), x.numel()
    tiles = ceil_div(N, THREADS * ITEMS)
    words = zeros((1 + tiles,), torch.int64, x.device)
    run = ONEPASS(x.dtype, SHAPE=(ITEMS, THREADS, BLOCKS))
    return Plan(y, Launch(run, tiles, THREADS, (x, y, *int64(N, x.stride(0)), words)))


RING = Kernel("compact_ring_kernel<{T}, 3, {TILE_BYTES}, {THREADS}>", TILE_BYTES=(73728,), THREADS=(576,))


@variant(
    "compact",
    "ring",
    kernels=[RING, ONEPASS],
    **CLUSTERED,
    tunable={"TILE_BYTES": (18432, 36864, 73728), "THREADS": (288, 576)},
)
def ring(x: Tensor, *, TILE_BYTES: int = 73728, THREADS: int = 576) -> Plan:
    """TMA prefetches tiles; a count is published one iteration ahead.  A strided x uses `onepass`."""
    check_same("compact", 1, x=x)
    if x.numel() > 1 and x.stride(0) != 1:
        return onepass.plan(x)
    y, N = empty_like(x), x.numel()
    STAGES = 3
    skew = x.data_ptr() % 16 // x.element_size()
    tiles = ceil_div(N + skew, TILE_BYTES // x.element_size())
    words = zeros((1 + tiles,), torch.int64, x.device)
    run = RING(x.dtype, TILE_BYTES=TILE_BYTES, THREADS=THREADS)
    blocks = min(tiles, multiprocessors(x.device))
    args = (x, y, *int64(N), *int32(skew, tiles), words)
    return Plan(y, Launch(run, blocks, THREADS, args, STAGES * TILE_BYTES))
