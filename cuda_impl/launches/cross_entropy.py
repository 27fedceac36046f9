"""cross_entropy in CUDA: ``logits[M,V], targets[M] -> loss[M]``, with ``kernels/cross_entropy.cuh``."""

from __future__ import annotations

import torch

from compare.arguments import check_targets
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, zeros
from cuda_impl.launch import (
    CLUSTERED,
    Argument,
    Kernel,
    Launch,
    Offset,
    Plan,
    ceil_div,
    check_counts,
    int32,
    int64,
    variant,
)
from cuda_impl.layouts import contiguous_rows, vector

VECTORS, THREADS = 8, 256


def tile_of(x: Tensor) -> int:
    """Columns of a block in flight: 32 KB."""
    return VECTORS * THREADS * vector(x)


def checked(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """``logits`` with contiguous rows, a copy if they are not, and an uninitialised loss."""
    check_targets("cross_entropy", logits, targets)
    check_counts(ceil_div(logits.size(1), vector(logits)))
    return contiguous_rows(logits), empty((logits.size(0),), torch.float32, logits.device)


ONLINE_SHAPES = (
    (4, 128, 8), (6, 128, 8), (4, 128, 4), (6, 128, 4), (4, 64, 1), (6, 64, 1), (4, 128, 1), (6, 128, 1),
    (4, 256, 1), (8, 256, 1),
)  # fmt: skip
"""VECTORS, THREADS and BLOCK_M: a row is one tile, but for the last, which takes any row.

6 vectors between powers of 2: instructions for vectors that a row lacks would take longer than memory does.
"""
ONLINE = Kernel("cross_entropy_online_kernel<{T}, {SHAPE}>", SHAPE=ONLINE_SHAPES)


@variant("cross_entropy", "online", kernels=[ONLINE], level="tiled")
def online(logits: Tensor, targets: Tensor) -> Plan:
    """A row is read once, tile by tile: any row length."""
    logits, loss = checked(logits, targets)
    M, V = logits.shape
    vectors = ceil_div(V, vector(logits))
    fitting = (shape for shape in ONLINE_SHAPES[:-1] if vectors <= shape[0] * shape[1] // shape[2])
    _, THREADS, BLOCK_M = SHAPE = next(fitting, ONLINE_SHAPES[-1])
    args = (logits, targets, loss, *int64(M, V, logits.stride(0), targets.stride(0)))
    return Plan(loss, Launch(ONLINE(logits.dtype, SHAPE=SHAPE), ceil_div(M, BLOCK_M), THREADS, args))


def slice_columns(tiles: int, M: int, TILE: int, device: torch.device) -> int:
    """Columns of a block's slice in `split`: so many that every multiprocessor has 16 blocks."""
    return max(1, tiles * M // (16 * multiprocessors(device))) * TILE


SPLIT = Kernel("cross_entropy_split_kernel<{T}, 8, 256>")


@variant("cross_entropy", "split", kernels=[SPLIT], level="tiled")
def split(logits: Tensor, targets: Tensor) -> Plan:
    """Several blocks share a row: few rows, of any length."""
    logits, loss = checked(logits, targets)
    (M, V), TILE = logits.shape, tile_of(logits)
    slice_ = slice_columns(ceil_div(V, TILE), M, TILE, logits.device)
    splits = max(1, ceil_div(V, slice_))
    # Partial results, and arrival counters per row. Only the counters must be 0, but one allocation is one
    # launch.
    workspace = zeros((M * splits + M,), torch.int64, logits.device)
    sizes = int64(V, logits.stride(0), targets.stride(0), slice_)
    parts: tuple[Argument, ...] = (*int32(splits), workspace, Offset(workspace, 8 * M * splits))
    args = (logits, targets, loss, *sizes, *parts)
    return Plan(loss, Launch(SPLIT(logits.dtype), M * splits, THREADS, args))


CLUSTERS = Kernel("cross_entropy_cluster_kernel<{T}, 8, 256, {CLUSTER}>", CLUSTER=(2, 4, 8))


@variant("cross_entropy", "cluster", kernels=[CLUSTERS], **CLUSTERED)
def cluster(logits: Tensor, targets: Tensor) -> Plan:
    """The blocks of a cluster share a row and exchange partial results in distributed shared memory."""
    logits, loss = checked(logits, targets)
    M, V = logits.shape
    tiles = ceil_div(V, tile_of(logits))
    CLUSTER = 2 if tiles <= 2 * 2 else 4 if tiles <= 4 * 2 else 8  # two tiles per block, or more
    # Slices are whole 16-byte vectors, so that they have the row's alignment.
    slice_ = ceil_div(ceil_div(V, CLUSTER), 64) * 64
    args = (logits, targets, loss, *int64(V, logits.stride(0), targets.stride(0), slice_))
    run = CLUSTERS(logits.dtype, CLUSTER=CLUSTER)
    return Plan(loss, Launch(run, M * CLUSTER, THREADS, args, cluster=CLUSTER))
