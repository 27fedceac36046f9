"""cross_entropy through cupy: ``logits[M,V], targets[M] -> loss[M]``, with ``kernels/cross_entropy.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_targets
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}

PACKS, THREADS = 8, 256
TILE_PACKS = PACKS * THREADS
"""16-byte vectors of a block in flight: 32 KB."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def checked(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """``logits`` with contiguous rows; a copy if they are not."""
    check_targets("cross_entropy", logits, targets)
    return logits if logits.stride(1) == 1 or logits.size(1) <= 1 else logits.contiguous()


@implementation("cross_entropy", "cupy.online", level="tiled")
def online(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A row is read once, tile by tile: any row length."""
    logits = checked(logits, targets)
    M, V = logits.shape
    loss = torch.empty(M, dtype=torch.float32, device=logits.device)
    if M == 0:
        return loss
    warp_a_row = V * logits.element_size() <= 16 * 1024
    ROW_THREADS, BLOCK_M = (128, 4) if warp_a_row else (THREADS, 1)
    name = f"cross_entropy_online_kernel<{CTYPES[logits.dtype]}, {PACKS}, {ROW_THREADS}, {BLOCK_M}>"
    run = kernel("cross_entropy", name, logits.device)
    pointers = (logits.data_ptr(), targets.data_ptr(), loss.data_ptr())
    sizes = (np.int64(M), np.int64(V), np.int64(logits.stride(0)), np.int64(targets.stride(0)))
    run((ceil_div(M, BLOCK_M),), (ROW_THREADS,), (*pointers, *sizes))
    return loss


def slice_columns(tiles: int, M: int, TILE: int, device: torch.device) -> int:
    """Columns of a block's slice in `split`: so many that every multiprocessor has 16 blocks."""
    return max(1, tiles * M // (16 * multiprocessors(device))) * TILE


@implementation("cross_entropy", "cupy.split", level="tiled")
def split(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Several blocks share a row: few rows, of any length."""
    logits = checked(logits, targets)
    M, V = logits.shape
    loss = torch.empty(M, dtype=torch.float32, device=logits.device)
    if M == 0:
        return loss
    TILE = TILE_PACKS * 16 // logits.element_size()
    slice_ = slice_columns(ceil_div(V, TILE), M, TILE, logits.device)
    splits = max(1, ceil_div(V, slice_))
    # Partial results, and arrival counters per row. Only the counters must be 0, but one allocation is one
    # launch.
    workspace = torch.zeros(M * splits + M, dtype=torch.int64, device=logits.device)
    name = f"cross_entropy_split_kernel<{CTYPES[logits.dtype]}, {PACKS}, {THREADS}>"
    run = kernel("cross_entropy", name, logits.device)
    pointers = (logits.data_ptr(), targets.data_ptr(), loss.data_ptr())
    sizes = (np.int64(V), np.int64(logits.stride(0)), np.int64(targets.stride(0)))
    parts = (np.int64(slice_), np.int32(splits), workspace.data_ptr(), workspace.data_ptr() + 8 * M * splits)
    run((M * splits,), (THREADS,), (*pointers, *sizes, *parts))
    return loss


@implementation("cross_entropy", "cupy.cluster", level="hopper", requires="sm_90")
def cluster(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The blocks of a cluster share a row and exchange partial results in distributed shared memory."""
    logits = checked(logits, targets)
    M, V = logits.shape
    loss = torch.empty(M, dtype=torch.float32, device=logits.device)
    if M == 0:
        return loss
    TILE = TILE_PACKS * 16 // logits.element_size()
    tiles = ceil_div(V, TILE)
    CLUSTER = 2 if tiles <= 2 * 2 else 4 if tiles <= 4 * 2 else 8  # two tiles per block, or more
    # Slices are whole 16-byte vectors, so that they have the row's alignment.
    slice_ = ceil_div(ceil_div(V, CLUSTER), 64) * 64
    name = f"cross_entropy_cluster_kernel<{CTYPES[logits.dtype]}, {PACKS}, {THREADS}, {CLUSTER}>"
    run = kernel("cross_entropy", name, logits.device)
    pointers = (logits.data_ptr(), targets.data_ptr(), loss.data_ptr())
    sizes = (np.int64(V), np.int64(logits.stride(0)), np.int64(targets.stride(0)), np.int64(slice_))
    run((M * CLUSTER,), (THREADS,), (*pointers, *sizes))
    return loss
