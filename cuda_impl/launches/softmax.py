"""softmax in CUDA: ``x[M,N] -> y[M,N]`` over rows, with the kernels of ``kernels/softmax.cuh``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from compare.arguments import check_same
from compare.device import multiprocessors, shared_bytes_of_a_block
from cuda_impl.buffers import Tensor, copied, empty_like, zeros
from cuda_impl.launch import CLUSTERED, Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.layouts import (
    LINE_BYTES,
    PACKED_SHAPES,
    VECS,
    as_output,
    contiguous_rows,
    in_vectors,
    packed_shape,
    slice_of_row,
    vector,
)


def checked(x: Tensor) -> Tensor:
    check_same("softmax", 2, x=x)
    return contiguous_rows(x)


ONLINE = Kernel("softmax_online_kernel<{T}, {VEC}, 1024>", VEC=VECS)


@variant(
    "softmax", "online", kernels=[ONLINE], level="tiled", algorithm="online softmax: the row is read twice"
)
def online(x: Tensor) -> Plan:
    """A block reads its row twice: any row length."""
    x = checked(x)
    y, (M, N) = empty_like(x), x.shape
    run = ONLINE(x.dtype, VEC=vector(x) if in_vectors(x) else 1)
    return Plan(y, Launch(run, M, 1024, (x, y, *int64(N, x.stride(0)))))


ONEPASS_COLUMNS = 32768
MANY_ROWS = 1024  # enough to fill a GPU with one warp per row


def onepass_shape(M: int, vectors: int, VEC: int) -> tuple[int, int, int]:
    """The smallest VECTORS and THREADS, and BLOCK_M, for M rows of ``vectors`` vectors."""
    if vectors <= 32 * 4:  # one row per warp
        return (1 if vectors <= 32 else 4), 128, 4
    if vectors <= 32 * 8 and VEC <= 4 and M >= MANY_ROWS:
        return 8, 128, 4
    VECTORS = 4 if vectors <= 1024 * 4 else 8
    return VECTORS, max(64, 1 << (ceil_div(vectors, VECTORS) - 1).bit_length()), 1


def onepass_shapes(T: torch.dtype, ALIGNED: bool) -> Iterator[tuple[int, int, int]]:
    """Those of all rows: a shape serves up to twice as many vectors as the one before."""
    VEC = 16 // T.itemsize
    for log2 in range((ONEPASS_COLUMNS // VEC).bit_length()):
        yield from (onepass_shape(M, 1 << log2, VEC) for M in (1, MANY_ROWS))


ONEPASS = Kernel(
    "softmax_onepass_kernel<{T}, {ALIGNED}, {SHAPE}>", ALIGNED=(True, False), SHAPE=onepass_shapes
)


@variant(
    "softmax", "onepass", kernels=[ONEPASS], level="tiled", algorithm="row in registers: maximum, sum, output"
)
def onepass(x: Tensor) -> Plan:
    """The row stays in registers: up to 32768 columns."""
    x = checked(x)
    y, (M, N) = empty_like(x), x.shape
    if N > ONEPASS_COLUMNS:
        raise NotImplementedError(f"N={N}: registers hold rows of up to {ONEPASS_COLUMNS} columns")
    VEC = vector(x)
    _, THREADS, BLOCK_M = SHAPE = onepass_shape(M, ceil_div(N, VEC), VEC)
    run = ONEPASS(x.dtype, ALIGNED=in_vectors(x), SHAPE=SHAPE)
    return Plan(y, Launch(run, ceil_div(M, BLOCK_M), THREADS, (x, y, *int64(M, N, x.stride(0)))))


PACKED = Kernel("softmax_packed_kernel<{T}, {ALIGNED}, {SHAPE}>", ALIGNED=(True, False), SHAPE=PACKED_SHAPES)


@variant("softmax", "packed", kernels=[PACKED], level="tiled", algorithm="row in registers as loaded")
def packed(x: Tensor) -> Plan:
    """The row stays in registers as loaded: up to 128 KB."""
    x = as_output(checked(x))
    y, (M, N) = empty_like(x), x.shape
    SHAPE = packed_shape(x)
    run = PACKED(x.dtype, ALIGNED=in_vectors(x), SHAPE=SHAPE)
    return Plan(y, Launch(run, M, SHAPE[1], (x, y, *int64(N, x.stride(0)))))


def check_chunks(N: int, chunks: int, blocks: int, BLOCK_N: int) -> None:
    """Raise NotImplementedError for rows of more chunks than there are resident blocks."""
    if chunks > blocks:
        raise NotImplementedError(f"N={N}: {blocks} blocks hold rows of {blocks * BLOCK_N} columns")


SPLIT = Kernel("softmax_split_kernel<{T}, {ALIGNED}, 4, 128, 4>", ALIGNED=(True, False))


@variant("softmax", "split", kernels=[SPLIT], level="tiled")
def split(x: Tensor) -> Plan:
    """Several blocks share a row: up to as long as all resident blocks can hold."""
    x = checked(x)
    y, (M, N) = empty_like(x), x.shape
    VECTORS, THREADS = 4, 128
    BLOCKS = 4  # per multiprocessor, by __launch_bounds__: all must be resident, as they wait for each other
    BLOCK_N = THREADS * VECTORS * vector(x)
    chunks, blocks = ceil_div(N, BLOCK_N), BLOCKS * multiprocessors(x.device)
    check_chunks(N, chunks, blocks, BLOCK_N)
    chunk_results = zeros((M * chunks,), torch.int64, x.device)
    args = (x, y, *int64(M, N, x.stride(0)), *int32(chunks), chunk_results)
    run = SPLIT(x.dtype, ALIGNED=in_vectors(x))
    return Plan(y, Launch(run, min(blocks, M * chunks), THREADS, args, cooperative=True))


def checked_for_tma(x: Tensor) -> Tensor:
    """``x`` with 16-byte aligned rows; a copy if they are not."""
    x = checked(x)
    if x.size(1) % vector(x) != 0:
        raise NotImplementedError(f"N={x.size(1)}: TMA copies 16 bytes, {vector(x)} columns, at a time")
    return x if in_vectors(x) else copied(x)


CLUSTER_SHAPES = {3072: (8, 64, 2), 7168: (4, 256, 2), 12288: (4, 256, 4), 28672: (4, 128, 8)}
"""VECTORS and THREADS of a tile, and CLUSTER, for rows of up to so many vectors.

As few blocks as leave room for four slices on a multiprocessor: one is read while others are reduced.
"""
LONGEST_SHAPE = (4, 64, 16)


def cluster_shape(vectors: int) -> tuple[int, int, int]:
    """Of `CLUSTER_SHAPES`, for rows of ``vectors`` vectors."""
    return next((shape for most, shape in CLUSTER_SHAPES.items() if vectors <= most), LONGEST_SHAPE)


CLUSTERS = Kernel(
    "softmax_cluster_kernel<{T}, {ALIGNED}, {SHAPE}>",
    ALIGNED=(True, False),
    SHAPE=(*CLUSTER_SHAPES.values(), LONGEST_SHAPE),
)


@variant("softmax", "cluster", kernels=[CLUSTERS], **CLUSTERED)
def cluster(x: Tensor) -> Plan:
    """The blocks of a cluster share a row: up to 16 x 208 KB."""
    x = as_output(checked(x))
    y, (M, N), VEC = empty_like(x), x.shape, vector(x)
    _, THREADS, CLUSTER = SHAPE = cluster_shape(ceil_div(N, VEC))
    slice_bytes = slice_of_row(x, CLUSTER)
    args = (x, y, *int64(N, x.stride(0), slice_bytes // x.element_size()))
    run = CLUSTERS(x.dtype, ALIGNED=in_vectors(x), SHAPE=SHAPE)
    return Plan(y, Launch(run, M * CLUSTER, THREADS, args, slice_bytes + LINE_BYTES, cluster=CLUSTER))


RING = Kernel("softmax_ring_kernel<{T}, 8, 256, 3, 2, 2>")


@variant("softmax", "ring", kernels=[RING], **CLUSTERED)
def ring(x: Tensor) -> Plan:
    """As `split`, with TMA prefetch into a ring in shared memory."""
    x = checked_for_tma(x)
    y, (M, N) = empty_like(x), x.shape
    VECTORS, THREADS, SLOTS, LAG = 8, 256, 3, 2
    BLOCKS = 2  # per multiprocessor, at most, with 96 KB of shared memory each: all must be resident
    BLOCK_N = THREADS * VECTORS * vector(x)
    chunks = ceil_div(N, BLOCK_N)
    shared_bytes = SLOTS * BLOCK_N * x.element_size()
    resident = min(BLOCKS, shared_bytes_of_a_block(x.device) // shared_bytes)
    blocks = resident * multiprocessors(x.device)
    check_chunks(N, chunks, (LAG - 1) * blocks, BLOCK_N)
    chunk_results = zeros((M * chunks,), torch.int64, x.device)
    args = (x, y, *int64(M, N, x.stride(0)), *int32(chunks), chunk_results)
    blocks = min(blocks, M * chunks)
    return Plan(y, Launch(RING(x.dtype), blocks, THREADS, args, shared_bytes, cooperative=True))
