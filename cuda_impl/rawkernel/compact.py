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


@implementation("compact", "cupy.twopass", rung="tiled")
def twopass(x: torch.Tensor) -> torch.Tensor:
    """Count every tile, add up the counts, read x again and write."""
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


SIZES = {"ITEMS": (12, 16, 20, 24, 28), "THREADS": (128, 256), "BLOCKS": (2, 3, 4, 5)}


@implementation("compact", "cupy.onepass", rung="tiled", tunable=SIZES)
def onepass(x: torch.Tensor, *, ITEMS: int = 24, THREADS: int = 256, BLOCKS: int = 4) -> torch.Tensor:
    """Tiles look back at what those before them have published, while the next one is loaded."""
    check_same("compact", 1, x=x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    N = x.numel()
    if N == 0:
        return y
    tiles = ceil_div(N, THREADS * ITEMS)
    words = torch.zeros(1 + tiles, dtype=torch.int64, device=x.device)
    name = f"compact_onepass_kernel<{CTYPES[x.dtype]}, {ITEMS}, {THREADS}, {BLOCKS}>"
    run = kernel("compact", name, x.device)
    blocks = min(tiles, BLOCKS * multiprocessors(x.device))
    sizes = (np.int64(N), np.int64(x.stride(0)), np.int32(tiles))
    run((blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), *sizes, words.data_ptr()))
    return y
