"""rms_norm_backward in CUDA: ``dy[M,N], x[M,N], weight[N], rstd[M] -> dx[M,N], dweight[N]``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from compare.arguments import check_norm_gradients
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, empty_like
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.launches import norm
from cuda_impl.layouts import VECS, contiguous_rows, in_vectors, packed, vector

OP = "rms_norm_backward"


class Rows(NamedTuple):
    dy: Tensor
    x: Tensor
    weight: Tensor
    dx: Tensor
    dweight: Tensor
    VEC: int


def checked(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> Rows:
    """The tensors, copied where their rows are not contiguous, and the elements of an access."""
    check_norm_gradients(OP, dy, x, weight, rstd)
    dy, x, dx = contiguous_rows(dy), contiguous_rows(x), empty_like(x)
    VEC = vector(x) if in_vectors(dy) and in_vectors(x) else 1
    return Rows(dy, x, packed(weight), dx, empty_like(weight), VEC)


SUM = Kernel("rms_norm_backward_sum_kernel<{T}, 1024>")


def sum_of(partial: Tensor, dweight: Tensor) -> Launch:
    """The launch that adds ``partial[P,N]`` along P."""
    P, N = partial.shape
    return Launch(SUM(dweight.dtype), ceil_div(N, 32), 1024, (partial, dweight, *int32(P), *int64(N)))


ONLINE = Kernel(
    "rms_norm_backward_online_kernel<{T}, {VEC}, {THREADS}>", VEC=VECS, THREADS=norm.ONLINE_THREADS
)
COLUMNS = Kernel("rms_norm_backward_columns_kernel<{T}, {VEC}, 128>", VEC=VECS)


@variant(OP, "online", kernels=[ONLINE, COLUMNS, SUM], level="tiled", algorithm="rows, then columns")
def online(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> Plan:
    """A kernel for rows, one for columns: dy and x are read twice each at least."""
    dy, x, weight, dx, dweight, VEC = checked(dy, x, weight, rstd)
    (M, N), T = x.shape, x.dtype
    strides = int64(dy.stride(0), x.stride(0), rstd.stride(0))
    THREADS = norm.online_threads(ceil_div(N, VEC))
    args = (dy, x, weight, rstd, dx, *int64(N), *strides)
    of_rows = Launch(ONLINE(T, VEC=VEC, THREADS=THREADS), M, THREADS, args)
    tiles = ceil_div(N, 128 * VEC)
    # Blocks of 128 threads, as many as are resident.
    chunks = min(M, max(1, 16 * multiprocessors(x.device) // max(tiles, 1)))
    rows = ceil_div(M, max(chunks, 1))
    partial = empty((ceil_div(M, max(rows, 1)), N), torch.float32, x.device)
    sizes = (*int64(M, N), *strides, *int32(tiles), *int64(rows))
    of_columns = Launch(COLUMNS(T, VEC=VEC), tiles * partial.size(0), 128, (dy, x, rstd, partial, *sizes))
    return Plan((dx, dweight), of_rows, of_columns, sum_of(partial, dweight))


MOST_THREADS = 1024


def onepass_shape(vectors: int, VEC: int) -> tuple[int, int]:
    """The smallest VECTORS and THREADS for rows of ``vectors`` vectors."""
    VECTORS = 1 if VEC > 1 and vectors <= 512 else 2 if VEC > 1 else 8  # single elements need more in flight
    return VECTORS, max(32, 1 << (ceil_div(max(vectors, 1), VECTORS) - 1).bit_length())


def onepass_shapes(T: torch.dtype, VEC: int) -> Iterator[tuple[int, int]]:
    """Those of all rows: a shape serves up to twice as many vectors as the one before."""
    shapes = (onepass_shape(1 << log2, VEC) for log2 in range(20))
    yield from (shape for shape in shapes if shape[1] <= MOST_THREADS)


ONEPASS = Kernel("rms_norm_backward_onepass_kernel<{T}, {VEC}, {SHAPE}>", VEC=VECS, SHAPE=onepass_shapes)


@variant(OP, "onepass", kernels=[ONEPASS, SUM], level="tiled", algorithm="rows in registers, both sums")
def onepass(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> Plan:
    """Rows stay in registers, and sums of columns as well: dy and x are read once."""
    dy, x, weight, dx, dweight, VEC = checked(dy, x, weight, rstd)
    M, N = x.shape
    VECTORS, THREADS = SHAPE = onepass_shape(ceil_div(N, VEC), VEC)
    if THREADS > MOST_THREADS:
        most = MOST_THREADS * VECTORS * VEC
        raise NotImplementedError(
            f"N={N}: registers hold rows of up to {most} such columns; online takes any"
        )
    resident = 512 if VECTORS == 2 else 1024  # 128 registers a thread, or 64
    blocks = min(M, max(1, resident // THREADS) * multiprocessors(x.device))
    partial = empty((blocks, N), torch.float32, x.device)
    sizes = int64(M, N, dy.stride(0), x.stride(0), rstd.stride(0))
    args = (dy, x, weight, rstd, dx, partial, *sizes)
    run = Launch(ONEPASS(x.dtype, VEC=VEC, SHAPE=SHAPE), blocks, THREADS, args)
    return Plan((dx, dweight), run, sum_of(partial, dweight))
