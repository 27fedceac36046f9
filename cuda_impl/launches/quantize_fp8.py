"""quantize_fp8 in CUDA: ``x[M,K] -> values[M,K], scales[M,K/group]``, with ``kernels/quantize_fp8.cuh``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from compare.arguments import check_groups
from cuda_impl.buffers import Tensor, empty
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.layouts import contiguous_rows, vector


class Groups(NamedTuple):
    """Rows, and their groups."""

    x: Tensor
    shape: tuple[int, ...]
    """Of the scales: one for each group."""
    columns: int
    """Of a group."""
    row_groups: int
    """Groups of a row."""


def checked(x: Tensor, group: int) -> Groups:
    """The argument, copied where rows are not contiguous, and its groups.

    Raises:
        NotImplementedError: there are too many groups.
    """
    check_groups("quantize_fp8", x, group)
    M, K = x.shape
    columns = min(group or K, K)
    row_groups = ceil_div(K, max(columns, 1)) if group else 1
    if M * row_groups >= 1 << 31:
        raise NotImplementedError(
            f"{M * row_groups} groups: they are counted in 32 bits, at most {(1 << 31) - 1}"
        )
    return Groups(contiguous_rows(x), (M, row_groups) if group else (M,), columns, row_groups)


def by_groups(g: Groups, run: Kernel, SHAPE: tuple[int, int, int]) -> Plan:
    (_, THREADS, BLOCK_M), (M, K) = SHAPE, g.x.shape
    values = empty(g.x.shape, torch.float8_e4m3fn, g.x.device)
    scales = empty(g.shape, torch.float32, g.x.device)
    count, row_groups = np.uint32(M * g.row_groups), np.uint32(g.row_groups)
    args = (g.x, values, scales, count, *int64(K, g.x.stride(0)), *int32(g.columns), row_groups)
    launch = Launch(run(g.x.dtype, SHAPE=SHAPE), ceil_div(M * g.row_groups, BLOCK_M), THREADS, args)
    return Plan((values, scales), launch)


def too_long(columns: int, most: int) -> NotImplementedError:
    return NotImplementedError(f"groups of {columns} columns: registers hold up to {most}")


ONEPASS_COLUMNS = 32768


def onepass_shape(columns: int) -> tuple[int, int, int]:
    """VECTORS, THREADS and BLOCK_M for groups of so many columns."""
    if columns > ONEPASS_COLUMNS:
        raise too_long(columns, ONEPASS_COLUMNS)
    if columns <= 256:
        return 8, 128, 4  # one group per warp
    return 8 if columns <= 8192 else 32, 256 if columns <= 2048 else 1024, 1


ONEPASS = Kernel(
    "quantize_fp8_onepass_kernel<{T}, {SHAPE}>",
    SHAPE=[onepass_shape(columns) for columns in (256, 2048, 8192, ONEPASS_COLUMNS)],
)


@variant(
    "quantize_fp8",
    "onepass",
    kernels=[ONEPASS],
    level="tiled",
    algorithm="group in registers: maximum, division, e4m3",
)
def onepass(x: Tensor, *, group: int) -> Plan:
    """A group stays in registers: up to 32768 columns."""
    g = checked(x, group)
    return by_groups(g, ONEPASS, onepass_shape(g.columns))


VECTORIZED_BYTES = 1 << 16


def vectorized_shape(vectors: int) -> tuple[int, int, int]:
    """VECTORS, THREADS and BLOCK_M for groups of so many vectors."""
    if vectors <= 16:
        return 2, 128, 16
    if vectors <= 128:  # one group per warp
        return 1 if vectors <= 32 else 4, 128, 4
    return 4, next(threads for threads in (128, 256, 512, 1024) if vectors <= 4 * threads), 1


VECTORIZED = Kernel(
    "quantize_fp8_vectorized_kernel<{T}, {SHAPE}>",
    SHAPE=[vectorized_shape(vectors) for vectors in (16, 32, 128, 512, 1024, 2048, VECTORIZED_BYTES // 16)],
)


@variant("quantize_fp8", "vectorized", kernels=[ONEPASS, VECTORIZED], level="tiled")
def vectorized(x: Tensor, *, group: int) -> Plan:
    """Groups of whole 16-byte vectors, up to 64 KB; others as onepass."""
    g, VEC = checked(x, group), vector(x)
    whole = g.columns % VEC == x.size(1) % VEC == g.x.stride(0) % VEC == 0
    if not whole or g.x.data_ptr() % 16 != 0:
        return by_groups(g, ONEPASS, onepass_shape(g.columns))
    if g.columns * x.element_size() > VECTORIZED_BYTES:
        raise too_long(g.columns, VECTORIZED_BYTES // x.element_size())
    return by_groups(g, VECTORIZED, vectorized_shape(g.columns // VEC))
