"""rms_norm_backward in Triton: ``dy[M,N], x[M,N], weight[N], rstd[M] -> dx[M,N], dweight[N]``.

Variants; ``cuda_impl/kernels/rms_norm_backward.cuh`` has the same under the same names:

* ``online``: a program per row for dx, which reads it twice; a program per tile of columns for dweight
* ``onepass``: persistent programs keep a row in registers, and their rows' sums of dweight as well

In both, programs write partial sums of dweight, ``partial[P,N]`` in fp32; a last kernel adds these in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from compare.arguments import check_norm_gradients
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, grid_1d, next_power_of_2
from triton_impl.norm import of_columns
from triton_impl.parts import contiguous_rows

OP = "rms_norm_backward"
Gradients = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def rms_norm_backward_online_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, N, stride_dym, stride_xm, stride_rm, BLOCK_N: tl.constexpr
):
    """Grid: one program per row.  The second read hits the L2 for what is still cached."""
    m = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + m * stride_dym
    x_row = x_ptr + m * stride_xm
    rstd = tl.load(rstd_ptr + m * stride_rm)
    column = tl.arange(0, BLOCK_N)
    lane_sums = tl.zeros([BLOCK_N], tl.float32)
    for begin in range(0, N, BLOCK_N):
        n = begin + column
        x_hat = tl.load(x_row + n, mask=n < N, other=0.0).to(tl.float32) * rstd
        dy = tl.load(dy_row + n, mask=n < N, other=0.0).to(tl.float32)
        lane_sums += dy * of_columns(weight_ptr, n, N).to(tl.float32) * x_hat
    mean = tl.sum(lane_sums) / N

    for begin in range(0, N, BLOCK_N):
        n = begin + column
        x_hat = tl.load(x_row + n, mask=n < N, other=0.0).to(tl.float32) * rstd
        dy = tl.load(dy_row + n, mask=n < N, other=0.0).to(tl.float32)
        dx_hat = dy * of_columns(weight_ptr, n, N).to(tl.float32)
        tl.store(dx_ptr + m * N + n, rstd * (dx_hat - x_hat * mean), mask=n < N)


@triton.jit
def rms_norm_backward_columns_kernel(
    dy_ptr, x_ptr, rstd_ptr, partial_ptr, M, N, stride_dym, stride_xm, stride_rm, tiles, rows,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Partial sums of dweight.  Grid: ``tiles`` programs along N for each chunk of ``rows`` rows."""
    n = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    chunk = (tl.program_id(0) // tiles).to(tl.int64)
    end = min(chunk * rows + rows, M)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, rows, BLOCK_M):
        m = chunk * rows + begin + tl.arange(0, BLOCK_M)[:, None]
        inside = (m < end) & (n < N)
        rstd = tl.load(rstd_ptr + m * stride_rm, mask=m < end, other=0.0)
        x = tl.load(x_ptr + m * stride_xm + n, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + m * stride_dym + n, mask=inside, other=0.0).to(tl.float32)
        sums += dy * (x * rstd)
    dweight = tl.sum(sums, axis=0, keep_dims=True)
    tl.store(partial_ptr + chunk * N + n, dweight, mask=n < N)


@triton.jit
def rms_norm_backward_onepass_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, partial_ptr, M, N, stride_dym, stride_xm, stride_rm,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: P persistent programs, rows round-robin; a row of N <= BLOCK_N columns stays in registers.

    dy and x are read once, and both sums are made of them.  weight is loaded once per program; dweight is one
    register per column.  The next row is prefetched, so that loads are in flight during the reduction.
    """
    n = tl.arange(0, BLOCK_N)
    first = tl.program_id(0).to(tl.int64)
    next_dy = tl.load(dy_ptr + first * stride_dym + n, mask=n < N, other=0.0)
    next_x = tl.load(x_ptr + first * stride_xm + n, mask=n < N, other=0.0)
    weight = of_columns(weight_ptr, n, N).to(tl.float32)
    dweight = tl.zeros([BLOCK_N], tl.float32)
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        m = tl.cast(row, tl.int64)
        rstd = tl.load(rstd_ptr + m * stride_rm)
        dy = next_dy.to(tl.float32)
        x_hat = next_x.to(tl.float32) * rstd
        next_m = m + tl.num_programs(0)
        inside = (n < N) & (next_m < M)
        next_dy = tl.load(dy_ptr + next_m * stride_dym + n, mask=inside, other=0.0)
        next_x = tl.load(x_ptr + next_m * stride_xm + n, mask=inside, other=0.0)
        dx_hat = dy * weight
        mean = tl.sum(dx_hat * x_hat) / N
        dweight += dy * x_hat
        tl.store(dx_ptr + m * N + n, rstd * (dx_hat - x_hat * mean), mask=n < N)
    tl.store(partial_ptr + tl.program_id(0).to(tl.int64) * N + n, dweight, mask=n < N)


@triton.jit
def rms_norm_backward_sum_kernel(
    partial_ptr, dweight_ptr, P, N, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The sum of partial[P,N] along P.  Grid: one program per BLOCK_N columns."""
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    sums = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for begin in range(0, P, BLOCK_P):
        p = begin + tl.arange(0, BLOCK_P)[:, None]
        sums += tl.load(partial_ptr + p.to(tl.int64) * N + n, mask=(p < P) & (n < N), other=0.0)
    dweight = tl.sum(sums, axis=0, keep_dims=True)
    tl.store(dweight_ptr + n, dweight, mask=n < N)


class Rows(NamedTuple):
    """The kernels' tensor arguments, and outputs."""

    dy: torch.Tensor
    x: torch.Tensor
    weight: torch.Tensor
    dx: torch.Tensor
    dweight: torch.Tensor


def checked(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Rows:
    """The arguments, copied where rows are not contiguous, and uninitialised outputs."""
    check_norm_gradients(OP, dy, x, weight, rstd)
    M, N = x.shape
    check_counts(M=M, N=N)
    weight = weight.contiguous()
    return Rows(
        contiguous_rows(dy), contiguous_rows(x), weight, x.new_empty(x.shape), torch.empty_like(weight)
    )


def with_sum(dx: torch.Tensor, partial: torch.Tensor, dweight: torch.Tensor) -> Gradients:
    """Both gradients; dweight is the sum of ``partial[P,N]`` along P."""
    P, N = partial.shape
    if N > 0:
        rms_norm_backward_sum_kernel[grid_1d(cdiv(N, 32))](
            partial, dweight, P, N, BLOCK_P=128, BLOCK_N=32, num_warps=4
        )
    return dx, dweight


@implementation(OP, "triton.online", level="tiled", algorithm="rows, then columns")
def online(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Gradients:
    """A kernel for rows, one for columns: dy and x are read twice each at least."""
    dy, x, weight, dx, dweight = checked(dy, x, weight, rstd)
    M, N = x.shape
    strides = (dy.stride(0), x.stride(0), rstd.stride(0))
    tile = min(4096, next_power_of_2(max(N, 1)))
    BLOCK_M, BLOCK_N = 4, 256
    tiles = cdiv(N, BLOCK_N)
    chunks = min(M, max(1, 8 * multiprocessors(x.device) // max(tiles, 1)))
    rows = cdiv(M, max(chunks, 1))
    partial = x.new_empty((cdiv(M, max(rows, 1)), N), dtype=torch.float32)
    if dx.numel() > 0:
        rms_norm_backward_online_kernel[grid_1d(M)](
            dy, x, weight, rstd, dx, N, *strides, BLOCK_N=tile, num_warps=16 if tile == 4096 else 4
        )
        rms_norm_backward_columns_kernel[grid_1d(tiles * partial.size(0))](
            dy, x, rstd, partial, M, N, *strides, tiles, rows, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4
        )
    return with_sum(dx, partial, dweight)


ONEPASS_COLUMNS = 16384


@implementation(OP, "triton.onepass", level="tiled", algorithm="rows in registers, both sums")
def onepass(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Gradients:
    """Rows stay in registers, and sums of columns as well: dy and x are read once."""
    dy, x, weight, dx, dweight = checked(dy, x, weight, rstd)
    M, N = x.shape
    if N > ONEPASS_COLUMNS:
        raise NotImplementedError(
            f"N={N}: registers hold rows of up to {ONEPASS_COLUMNS} columns; online takes any"
        )
    BLOCK_N = next_power_of_2(max(N, 1))
    num_warps = min(32, max(1, BLOCK_N // 256))  # 8 elements a thread, up to 8192 columns
    programs = min(M, 32 // num_warps * multiprocessors(x.device))
    partial = x.new_empty((programs, N), dtype=torch.float32)
    if dx.numel() > 0:
        rms_norm_backward_onepass_kernel[(programs,)](
            dy, x, weight, rstd, dx, partial, M, N, dy.stride(0), x.stride(0), rstd.stride(0),
            BLOCK_N=BLOCK_N, num_warps=num_warps,
        )  # fmt: skip
    return with_sum(dx, partial, dweight)
