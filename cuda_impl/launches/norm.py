"""What layer_norm and rms_norm share: launches of the kernels of ``kernels/norm.cuh``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from compare.arguments import check_norm
from cuda_impl.buffers import Tensor, empty_like
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int32, int64
from cuda_impl.layouts import as_output, contiguous_rows, in_vectors, packed, vector

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


FEW_ROWS = 256  # from here on, one cluster per row keeps a GPU busy
CLUSTER_VECTORS = 4
MOST_SLICE_VECTORS = 208 * 1024 // 16
MOST_OF_128 = 64  # blocks of 128 threads that hold a row in registers


def cluster_shapes(T: torch.dtype) -> Iterator[tuple[int, int]]:
    """The choices of THREADS and CLUSTER."""
    yield from dict.fromkeys(map(cluster_shape, range(1, MOST_OF_128 + 2)))


def kept(T: torch.dtype, SHAPE: tuple[int, int], ALIGNED: bool) -> tuple[bool, ...]:
    """Whether weights stay in registers; in the shape of longer rows it depends on their length."""
    return (True, False) if cluster_shape(MOST_OF_128 + 1) == SHAPE else (True,)


def cluster_shape(of_128: int) -> tuple[int, int]:
    """THREADS and CLUSTER for rows that ``of_128`` blocks of 128 threads hold."""
    CLUSTER = 4 if of_128 <= 8 else 8 if of_128 <= 16 else 16
    return 128 if of_128 <= 4 else 512 if 32 < of_128 <= MOST_OF_128 else 256, CLUSTER


def cluster_kernel(op: str) -> Kernel:
    template = op + "_cluster_kernel<{T}, {ALIGNED}, {KEPT}, 4, {SHAPE}>"
    return Kernel(template, SHAPE=cluster_shapes, ALIGNED=(True, False), KEPT=kept)


def cluster(op: str, run: Kernel, eps: float, x: Tensor, **parameters: Tensor) -> Plan:
    check_norm(op, x, **parameters)
    x = as_output(contiguous_rows(x))
    y, (M, N), VEC = empty_like(x), x.shape, vector(x)
    vectors = ceil_div(N, VEC)
    of_128 = ceil_div(vectors, 128 * CLUSTER_VECTORS)  # blocks of 128 threads needed
    THREADS, CLUSTER = SHAPE = cluster_shape(of_128)
    slice_vectors = ceil_div(vectors, CLUSTER)
    if slice_vectors > MOST_SLICE_VECTORS:
        most = CLUSTER * MOST_SLICE_VECTORS * VEC
        raise NotImplementedError(f"N={N}: the shared memory of {CLUSTER} blocks holds {most} columns")
    ALIGNED, KEPT = in_vectors(x), of_128 <= MOST_OF_128
    # Several rows per cluster reuse the weights; few, so that the last clusters finish together.
    BLOCK_M = 1 if M < FEW_ROWS or not KEPT else 4 if slice_vectors <= 512 else 2
    groups = ceil_div(M, BLOCK_M) if ALIGNED else ceil_div(M, BLOCK_M * VEC) * VEC
    split = int32(slice_vectors * VEC, BLOCK_M)
    sizes = int64(M, N, x.stride(0))
    args = (x, *map(packed, parameters.values()), y, *sizes, *split, np.float32(eps))
    shared_bytes = BLOCK_M * slice_vectors * 16
    kernel = run(x.dtype, ALIGNED=ALIGNED, KEPT=KEPT, SHAPE=SHAPE)
    return Plan(y, Launch(kernel, groups * CLUSTER, THREADS, args, shared_bytes, cluster=CLUSTER))
