"""fused_add_rms_norm in CUDA: ``x[M,N], residual[M,N], weight[N] -> y[M,N], h[M,N]``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from compare.arguments import check_residual_norm
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty_like, zeros
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.launches import norm
from cuda_impl.layouts import BOOLS, as_output, contiguous_rows, packed, vector

OP, EPS = "fused_add_rms_norm", 1e-5


class Rows(NamedTuple):
    """The kernels' tensor arguments, and outputs."""

    x: Tensor
    residual: Tensor
    weight: Tensor
    h: Tensor
    y: Tensor

    @property
    def strides(self) -> tuple[Any, ...]:
        """Between rows of x and of residual."""
        return int64(self.x.stride(0), self.residual.stride(0))

    @property
    def vectors(self) -> int:
        """Of 16 bytes, in a row."""
        return ceil_div(self.x.size(1), vector(self.x))

    @property
    def ALIGNED(self) -> bool:
        """Whether all rows are whole vectors."""
        return self.x.size(1) % vector(self.x) == 0


def checked(x: Tensor, residual: Tensor, weight: Tensor) -> Rows:
    """The tensors, copied where rows are not contiguous or not aligned as the outputs' are."""
    check_residual_norm(OP, x, residual, weight)
    inputs = (as_output(contiguous_rows(each)) for each in (x, residual))
    return Rows(*inputs, packed(weight), empty_like(x), empty_like(x))


ONLINE = norm.online_kernel(OP)


@variant(OP, "online", kernels=[ONLINE], level="tiled", algorithm="h written, then read again")
def online(x: Tensor, residual: Tensor, weight: Tensor, eps: float = EPS) -> Plan:
    """A block reads the h again that it has written: any row length."""
    rows = checked(x, residual, weight)
    M, N = x.shape
    THREADS = norm.online_threads(rows.vectors)
    args = (*rows, *int64(N), *rows.strides, np.float32(eps))
    run = ONLINE(x.dtype, ALIGNED=rows.ALIGNED, THREADS=THREADS)
    return Plan((rows.y, rows.h), Launch(run, M, THREADS, args))


ONEPASS = norm.onepass_kernel(OP)


@variant(OP, "onepass", kernels=[ONEPASS], level="tiled", algorithm="h in registers: sum of squares, y")
def onepass(x: Tensor, residual: Tensor, weight: Tensor, eps: float = EPS) -> Plan:
    """The row stays in registers: up to 64 KB."""
    rows = checked(x, residual, weight)
    M, N = x.shape
    VECTORS, THREADS, BLOCK_M = SHAPE = norm.onepass_shape(rows.vectors)
    if THREADS > norm.MOST_THREADS:
        most = norm.MOST_THREADS * VECTORS * vector(x)
        raise NotImplementedError(
            f"N={N}: registers hold rows of up to {most} such columns; split takes longer ones"
        )
    args = (*rows, *int64(M, N), *rows.strides, np.float32(eps))
    run = ONEPASS(x.dtype, ALIGNED=rows.ALIGNED, SHAPE=SHAPE)
    return Plan((rows.y, rows.h), Launch(run, ceil_div(M, BLOCK_M), THREADS, args))


SPLIT = Kernel(
    "fused_add_rms_norm_split_kernel<{T}, {ALIGNED}, {VECTORS}, 128, 4>", ALIGNED=BOOLS, VECTORS=(1, 2, 4)
)


@variant(OP, "split", kernels=[SPLIT], level="tiled", algorithm="rows shared: partial sums in global memory")
def split(x: Tensor, residual: Tensor, weight: Tensor, eps: float = EPS) -> Plan:
    """Several blocks share a row: up to as long as all resident blocks can hold."""
    rows = checked(x, residual, weight)
    M, N = x.shape
    blocks = 4 * multiprocessors(x.device)  # by __launch_bounds__: all must be resident
    # Short chunks where all rows' are resident: more multiprocessors share a row.
    VECTORS = next((few for few in (1, 2) if M * ceil_div(rows.vectors, 128 * few) <= blocks), 4)
    chunks = ceil_div(rows.vectors, 128 * VECTORS)
    if chunks > blocks:
        most = blocks * 128 * VECTORS * vector(x)
        raise NotImplementedError(f"N={N}: {blocks} blocks hold rows of {most} columns; online takes any")
    of_chunk = zeros((M * chunks,), torch.int64, x.device)
    args = (*rows, *int64(M, N), *rows.strides, *int32(chunks), of_chunk, np.float32(eps))
    grid = min(blocks // max(chunks, 1), M) * chunks
    run = SPLIT(x.dtype, ALIGNED=rows.ALIGNED, VECTORS=VECTORS)
    return Plan((rows.y, rows.h), Launch(run, grid, 128, args, cooperative=True))
