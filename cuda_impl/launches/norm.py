"""What layer_norm and rms_norm share: the launches of their kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from compare.arguments import check_norm
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, empty_like
from cuda_impl.launch import Argument, Kernel, Launch, Offset, Plan, ceil_div, int32, int64
from cuda_impl.layouts import (
    PACKED_SHAPES,
    as_output,
    contiguous_rows,
    in_vectors,
    packed,
    packed_shape,
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


def packed_rows(op: str, kernels: list[Kernel], eps: float, x: Tensor, **parameters: Tensor) -> Plan:
    check_norm(op, x, **parameters)
    x = as_output(contiguous_rows(x))
    y, (M, N), VEC = empty_like(x), x.shape, vector(x)
    vectors, ALIGNED = ceil_div(N, VEC), in_vectors(x)
    SHAPE = packed_shape(x)
    weights, pitch = [*map(packed, parameters.values())], vectors * VEC
    windows: list[Argument] = [*weights]
    launches = []
    if not ALIGNED:
        of_all = empty((len(weights), VEC, pitch), x.dtype, x.device)
        windows = [Offset(of_all, p * VEC * pitch * x.element_size()) for p in range(len(weights))]
        blocks = ceil_div(N, WINDOWS_THREADS) * len(weights)
        args = (weights[0], weights[-1], of_all, *int64(N, pitch))
        launches.append(Launch(kernels[1](x.dtype), blocks, WINDOWS_THREADS, args))
    sizes = (*int64(N, x.stride(0), pitch), np.float32(eps))
    kernel = kernels[0](x.dtype, ALIGNED=ALIGNED, SHAPE=SHAPE)
    return Plan(y, *launches, Launch(kernel, M, SHAPE[1], (x, *weights, *windows, y, *sizes)))


ClusterShape = tuple[int, int, int, int, int]
"""SLOTS, BLOCKS, VECTORS, THREADS and CLUSTER."""
MOST_SLICE_VECTORS = 208 * 1024 // 16
ROWS_OF_A_CLUSTER = 3
"""At most, so that the last clusters finish together."""
ROWS_OF_UNALIGNED = 20
"""At most where rows are unaligned: more rows share weights that take longer to load."""


def cluster_shape(op: str, vectors: int, ALIGNED: bool) -> ClusterShape:
    """For rows of ``vectors`` vectors: several blocks per multiprocessor, if they hold such a row."""
    # layer_norm's threads have a bias too: the same columns in half as many, with twice the registers.
    wide = (3, 2, 8, 256) if op == "layer_norm" else (3, 2, 4, 512)
    shapes: list[ClusterShape] = [(4, 6, 4, 128, 2), (4, 3, 4, 256, 2), (4, 3, 4, 256, 4)]
    shapes += [(*(wide if ALIGNED else (4, 3, 4, 256)), CLUSTER) for CLUSTER in (4, 8, 16)]
    shapes += [(3, 1, 8, 512, 16)]
    return next((each for each in shapes if vectors <= each[2] * each[3] * each[4]), (1, 1, 8, 512, 16))


def cluster_kernel(op: str) -> Kernel:
    def shapes(T: torch.dtype, ALIGNED: bool) -> Iterator[ClusterShape]:
        yield from dict.fromkeys(cluster_shape(op, 1 << log2, ALIGNED) for log2 in range(18))

    template = op + "_cluster_kernel<{T}, {ALIGNED}, {SHAPE}>"
    return Kernel(template, ALIGNED=(True, False), SHAPE=shapes)


def cluster(op: str, run: Kernel, eps: float, x: Tensor, **parameters: Tensor) -> Plan:
    check_norm(op, x, **parameters)
    x = as_output(contiguous_rows(x))
    y, (M, N), VEC = empty_like(x), x.shape, vector(x)
    vectors, ALIGNED = ceil_div(N, VEC), in_vectors(x)
    SLOTS, BLOCKS, _, THREADS, CLUSTER = SHAPE = cluster_shape(op, vectors, ALIGNED)
    slice_vectors = ceil_div(vectors, CLUSTER)
    if slice_vectors > MOST_SLICE_VECTORS:
        most = CLUSTER * MOST_SLICE_VECTORS * VEC
        raise NotImplementedError(f"N={N}: the shared memory of {CLUSTER} blocks holds {most} columns")
    # A cluster is within a GPC, so not all multiprocessors have a part in one.
    resident = BLOCKS * max(1, multiprocessors(x.device) * 7 // 8 // CLUSTER)
    BLOCK_M = max(1, ceil_div(M, resident))  # persistent: best where 16 blocks start together
    if CLUSTER < 16 or not ALIGNED:
        BLOCK_M = min(BLOCK_M, ROWS_OF_A_CLUSTER if ALIGNED else ROWS_OF_UNALIGNED)
    if SLOTS == 1:
        BLOCK_M = 1
    clusters = ceil_div(M, BLOCK_M) if ALIGNED else ceil_div(M, BLOCK_M * VEC) * VEC
    sizes = (*int64(M, N, x.stride(0)), *int32(slice_vectors * VEC, BLOCK_M), np.float32(eps))
    args = (x, *map(packed, parameters.values()), y, *sizes)
    kernel = run(x.dtype, ALIGNED=ALIGNED, SHAPE=SHAPE)
    shared_bytes = SLOTS * slice_vectors * 16
    return Plan(y, Launch(kernel, clusters * CLUSTER, THREADS, args, shared_bytes, cluster=CLUSTER))
