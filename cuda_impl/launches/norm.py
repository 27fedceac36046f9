"""What layer_norm and rms_norm share: the launches of their kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from compare.arguments import check_norm
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, empty_like, zeros
from cuda_impl.launch import Argument, Kernel, Launch, Offset, Plan, ceil_div, check_counts, int32, int64
from cuda_impl.layouts import (
    LINE_BYTES,
    PACKED_SHAPES,
    as_output,
    contiguous_rows,
    in_vectors,
    packed,
    packed_shape,
    slice_of_row,
    vector,
)

ONLINE_THREADS = (256, 512, 1024)


def online_threads(vectors: int) -> int:
    """The most THREADS that have two vectors each of a row of ``vectors`` vectors; at least 256."""
    return max((THREADS for THREADS in ONLINE_THREADS if vectors >= 2 * THREADS), default=ONLINE_THREADS[0])


def online_kernel(op: str) -> Kernel:
    template = op + "_online_kernel<{T}, {ALIGNED}, {THREADS}>"
    return Kernel(template, ALIGNED=(True, False), THREADS=ONLINE_THREADS)


def online(op: str, run: Kernel, eps: float, x: Tensor, **parameters: Tensor) -> Plan:
    check_norm(op, x, **parameters)
    x = contiguous_rows(x)
    y, (M, N) = empty_like(x), x.shape
    THREADS = online_threads(ceil_div(N, vector(x)))
    args = (x, *map(packed, parameters.values()), y, *int64(N, x.stride(0)), np.float32(eps))
    return Plan(y, Launch(run(x.dtype, ALIGNED=in_vectors(x), THREADS=THREADS), M, THREADS, args))


def onepass_shape(vectors: int) -> tuple[int, int, int]:
    """The smallest VECTORS and THREADS, and BLOCK_M, for rows of ``vectors`` vectors."""
    VECTORS = 4
    if vectors <= 16:
        return 1, 128, 8
    if vectors <= 32 * VECTORS:  # one row per warp
        return (1 if vectors <= 32 else VECTORS), 128, 4
    if 64 * VECTORS < vectors <= 256 * VECTORS:
        VECTORS = 2  # and twice the threads: fewer registers each, so 1.5 times as many are resident
    return VECTORS, max(64, 1 << (ceil_div(vectors, VECTORS) - 1).bit_length()), 1


MOST_THREADS = 1024


def onepass_shapes(T: torch.dtype, ALIGNED: bool) -> Iterator[tuple[int, int, int]]:
    """Those of all rows: a shape serves up to twice as many vectors as the one before."""
    shapes = (onepass_shape(1 << log2) for log2 in range(20))
    yield from (shape for shape in shapes if shape[1] <= MOST_THREADS)


def onepass_kernel(op: str) -> Kernel:
    return Kernel(
        op + "_onepass_kernel<{T}, {ALIGNED}, {SHAPE}>", ALIGNED=(True, False), SHAPE=onepass_shapes
    )


def onepass(op: str, run: Kernel, eps: float, x: Tensor, **parameters: Tensor) -> Plan:
    check_norm(op, x, **parameters)
    x = contiguous_rows(x)
    y, (M, N), VEC = empty_like(x), x.shape, vector(x)
    VECTORS, THREADS, BLOCK_M = SHAPE = onepass_shape(ceil_div(N, VEC))
    if THREADS > MOST_THREADS:
        most = MOST_THREADS * VECTORS * VEC
        raise NotImplementedError(f"N={N}: registers hold rows of up to {most} such columns")
    args = (x, *map(packed, parameters.values()), y, *int64(M, N, x.stride(0)), np.float32(eps))
    kernel = run(x.dtype, ALIGNED=in_vectors(x), SHAPE=SHAPE)
    return Plan(y, Launch(kernel, ceil_div(M, BLOCK_M), THREADS, args))


WINDOWS_THREADS = 256


def packed_kernels(op: str) -> list[Kernel]:
    """The kernel, and the one that makes windows of the weights."""
    return [
        Kernel(op + "_packed_kernel<{T}, {ALIGNED}, {SHAPE}>", ALIGNED=(True, False), SHAPE=PACKED_SHAPES),
        Kernel(f"norm_windows_kernel<{{T}}, {WINDOWS_THREADS}>"),
    ]


def with_windows(
    windows_kernel: Kernel, ALIGNED: bool, N: int, parameters: dict[str, Tensor]
) -> tuple[list[Tensor], list[Argument], int, list[Launch]]:
    """The weights, windows of them, these' pitch, and the launch that makes them; if ALIGNED, themselves."""
    weights = [*map(packed, parameters.values())]
    T, VEC = weights[0].dtype, vector(weights[0])
    pitch = ceil_div(N, VEC) * VEC
    if ALIGNED:
        return weights, [*weights], pitch, []
    of_all = empty((len(weights), VEC, pitch), T, weights[0].device)
    windows: list[Argument] = [Offset(of_all, p * VEC * pitch * T.itemsize) for p in range(len(weights))]
    blocks = ceil_div(N, WINDOWS_THREADS) * len(weights)
    args = (weights[0], weights[-1], of_all, *int64(N, pitch))
    return weights, windows, pitch, [Launch(windows_kernel(T), blocks, WINDOWS_THREADS, args)]


def packed_rows(op: str, kernels: list[Kernel], eps: float, x: Tensor, **parameters: Tensor) -> Plan:
    check_norm(op, x, **parameters)
    x = as_output(contiguous_rows(x))
    y, (M, N) = empty_like(x), x.shape
    ALIGNED, SHAPE = in_vectors(x), packed_shape(x)
    weights, windows, pitch, launches = with_windows(kernels[1], ALIGNED, N, parameters)
    sizes = (*int64(N, x.stride(0), pitch), np.float32(eps))
    kernel = kernels[0](x.dtype, ALIGNED=ALIGNED, SHAPE=SHAPE)
    return Plan(y, *launches, Launch(kernel, M, SHAPE[1], (x, *weights, *windows, y, *sizes)))


ClusterShape = tuple[int, int, int, int, int]
"""SLOTS, BLOCKS, VECTORS, THREADS and CLUSTER."""


def cluster_shapes(op: str, ALIGNED: bool) -> list[ClusterShape]:
    """In the order of the rows that they hold; the last, of one slot, holds any."""
    layer_norm = op == "layer_norm"  # threads have a bias too: fewer of them, with more registers
    shapes: list[ClusterShape] = [(4, 6, 4, 128, 2)] if layer_norm else []
    shapes += [(4, 3, 4, 256, 2)]
    if ALIGNED:
        wide = (3, 2, 8, 256) if layer_norm else (3, 2, 4, 512)
        shapes += [(4, 3, 4, 256, 4), (4, 3, 4, 256, 8), (*wide, 8), (*wide, 16)]
    else:
        wide = (3, 4, 8, 128) if layer_norm else (3, 4, 4, 256)
        shapes += [(*wide, 4), (3, 5, 7, 128, 8), (*wide, 16)]
    return [*shapes, (3, 1, 8, 512, 16), (1, 1, 8, 512, 16)]


def cluster_shape(op: str, vectors: int, ALIGNED: bool) -> ClusterShape:
    """For rows of ``vectors`` vectors: several blocks per multiprocessor, if they hold such a row."""
    shapes = cluster_shapes(op, ALIGNED)
    return next((each for each in shapes if vectors <= each[2] * each[3] * each[4]), shapes[-1])


def rows_of_a_cluster(op: str, ALIGNED: bool, CLUSTER: int) -> int:
    """At most; 0: clusters are persistent, as two weights take long to load, and 16 blocks long to start."""
    persistent = CLUSTER > 2 if op == "layer_norm" else ALIGNED and CLUSTER == 16
    return 0 if persistent else 3


def resident(x: Tensor, BLOCKS: int, CLUSTER: int) -> int:
    """Clusters that run at a time. One is within a GPC, so not all multiprocessors have a part in one."""
    SIXTEENTHS = 14 if CLUSTER == 16 else 15
    return BLOCKS * max(1, multiprocessors(x.device) * SIXTEENTHS // 16 // CLUSTER)


def cluster_kernels(op: str) -> list[Kernel]:
    """The kernel, and the one that makes windows of the weights."""

    def shapes(T: torch.dtype, ALIGNED: bool) -> list[ClusterShape]:
        return cluster_shapes(op, ALIGNED)

    template = op + "_cluster_kernel<{T}, {ALIGNED}, {SHAPE}>"
    kernel = Kernel(template, ALIGNED=(True, False), SHAPE=shapes)
    return [kernel, Kernel(f"norm_windows_kernel<{{T}}, {WINDOWS_THREADS}>")]


def cluster(op: str, kernels: list[Kernel], eps: float, x: Tensor, **parameters: Tensor) -> Plan:
    check_norm(op, x, **parameters)
    x = as_output(contiguous_rows(x))
    y, (M, N), VEC = empty_like(x), x.shape, vector(x)
    vectors, ALIGNED = ceil_div(N, VEC), in_vectors(x)
    SLOTS, BLOCKS, _, THREADS, CLUSTER = SHAPE = cluster_shape(op, vectors, ALIGNED)
    slice_bytes = slice_of_row(x, CLUSTER)
    weights, windows, pitch, launches = with_windows(kernels[1], ALIGNED, N, parameters)
    # All rows of a cluster are of one class: they start alike between 16-byte boundaries.
    classes = 1 if ALIGNED else VEC
    rows_of_class, resident_of_class = ceil_div(M, classes), max(1, resident(x, BLOCKS, CLUSTER) // classes)
    check_counts(rows_of_class)
    rows_each = min(
        1 if SLOTS == 1 else rows_of_a_cluster(op, ALIGNED, CLUSTER),
        ceil_div(rows_of_class, resident_of_class),
    )
    clusters = ceil_div(rows_of_class, rows_each) if rows_each else min(rows_of_class, resident_of_class)
    # What persistent clusters do not fetch at their start they take from a counter.
    counted = not rows_each and rows_of_class > SLOTS * clusters
    taken = zeros((classes,), torch.int32, x.device) if counted else np.int64(0)
    sizes = (*int64(M, N, x.stride(0), pitch), *int32(slice_bytes // x.element_size(), rows_each))
    args = (x, *weights, *windows, y, *sizes, taken, np.float32(eps))
    shared_bytes = SLOTS * (slice_bytes + (0 if ALIGNED else LINE_BYTES))
    blocks = clusters * classes * CLUSTER
    run = kernels[0](x.dtype, ALIGNED=ALIGNED, SHAPE=SHAPE)
    return Plan(y, *launches, Launch(run, blocks, THREADS, args, shared_bytes, cluster=CLUSTER))
