"""compact through cupy: the elements greater than 0, with the kernels of ``kernels/compact.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_same
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@implementation("compact", "cupy.twopass", level="tiled")
def twopass(x: torch.Tensor) -> torch.Tensor:
    """Count each tile, scan the counts, read x again and scatter."""
    check_same("compact", 1, x=x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    N = x.numel()
    if N == 0:
        return y
    ITEMS, THREADS, SCAN_THREADS = 16, 256, 1024
    tiles = ceil_div(N, THREADS * ITEMS)
    of_tile = torch.zeros(tiles + 1, dtype=torch.int64, device=x.device)
    sizes = (np.int64(N), np.int64(x.stride(0)))
    of = f"<{CTYPES[x.dtype]}, {ITEMS}, {THREADS}>"
    count = kernel("compact", f"compact_count_kernel{of}", x.device)
    scan = kernel("compact", f"compact_scan_kernel<{SCAN_THREADS}>", x.device)
    scatter = kernel("compact", f"compact_scatter_kernel{of}", x.device)
    count((tiles,), (THREADS,), (x.data_ptr(), *sizes, of_tile.data_ptr()))
    scan((1,), (SCAN_THREADS,), (of_tile.data_ptr(), np.int64(tiles)))
    scatter((tiles,), (THREADS,), (x.data_ptr(), y.data_ptr(), *sizes, of_tile.data_ptr()))
    return y


@implementation(
    "compact",
    "cupy.onepass",
    level="tiled",
    tunable={"ITEMS": (16, 20, 24, 28, 32), "THREADS": (256, 512), "BLOCKS": (1, 2, 3)},
)
def onepass(x: torch.Tensor, *, ITEMS: int = 24, THREADS: int = 512, BLOCKS: int = 2) -> torch.Tensor:
    """Single-pass scan: tiles look back at the counts that earlier tiles have published."""
    check_same("compact", 1, x=x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    N = x.numel()
    if N == 0:
        return y
    tiles = ceil_div(N, THREADS * ITEMS)
    words = torch.zeros(1 + tiles, dtype=torch.int64, device=x.device)
    name = f"compact_onepass_kernel<{CTYPES[x.dtype]}, {ITEMS}, {THREADS}, {BLOCKS}>"
    run = kernel("compact", name, x.device)
    sizes = (np.int64(N), np.int64(x.stride(0)))
    run((tiles,), (THREADS,), (x.data_ptr(), y.data_ptr(), *sizes, words.data_ptr()))
    return y


@implementation(
    "compact",
    "cupy.ring",
    level="hopper",
    requires="sm_90",
    tunable={"TILE_BYTES": (18432, 36864, 73728), "THREADS": (288, 576)},
)
def ring(x: torch.Tensor, *, TILE_BYTES: int = 73728, THREADS: int = 576) -> torch.Tensor:
    """TMA prefetches tiles; a count is published one iteration ahead.  A strided x uses `onepass`."""
    check_same("compact", 1, x=x)
    if x.numel() > 1 and x.stride(0) != 1:
        return onepass(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    N = x.numel()
    if N == 0:
        return y
    STAGES = 3
    skew = x.data_ptr() % 16 // x.element_size()
    tiles = ceil_div(N + skew, TILE_BYTES // x.element_size())
    words = torch.zeros(1 + tiles, dtype=torch.int64, device=x.device)
    name = f"compact_ring_kernel<{CTYPES[x.dtype]}, {STAGES}, {TILE_BYTES}, {THREADS}>"
    run = kernel("compact", name, x.device)
    blocks = min(tiles, multiprocessors(x.device))
    sizes = (np.int64(N), np.int32(skew), np.int32(tiles))
    arguments = (x.data_ptr(), y.data_ptr(), *sizes, words.data_ptr())
    run((blocks,), (THREADS,), arguments, shared_mem=STAGES * TILE_BYTES)
    return y
