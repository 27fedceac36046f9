"""fused_add_rms_norm in Triton: ``x[M,N], residual[M,N], weight[N] -> y[M,N], h[M,N]``.

Variants; ``cuda_impl/kernels/fused_add_rms_norm.cuh`` has the same under the same names:

* ``online``: a program writes h tile by tile, and reads it again for y: any row length
* ``onepass``: h stays in registers between reduction and output, so it is only written: 32768 columns
* ``split``: several programs share rows and exchange partial sums through global memory: few long rows
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from compare.arguments import check_residual_norm
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, grid_1d, next_power_of_2
from triton_impl.norm import of_body, of_columns
from triton_impl.parts import columns_of_body, contiguous_rows, edges, start_of_body, vec_of_narrow
from triton_impl.rms_norm import pack, wait_for_row
from triton_impl.shared_rows import COOPERATIVE, columns_of_a_chunk, resident_programs

OP, EPS = "fused_add_rms_norm", 1e-5
Outputs = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def add(x, residual):
    """h = x + residual, summed in fp32 and rounded to their dtype."""
    return (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)


@triton.jit
def fused_add_rms_norm_online_kernel(
    x_ptr, residual_ptr, weight_ptr, h_ptr, y_ptr, N, stride_xm, stride_rm,
    eps, VEC: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per row.  It reads again the h that it wrote, half as much as x and residual."""
    m = tl.program_id(0).to(tl.int64)
    head = start_of_body(m * N, VEC) - m * N
    body = columns_of_body(N, VEC)
    x_body = x_ptr + start_of_body(m * stride_xm, VEC)
    residual_body = residual_ptr + start_of_body(m * stride_rm, VEC)
    h_body = h_ptr + start_of_body(m * N, VEC)
    y_body = y_ptr + start_of_body(m * N, VEC)
    column = tl.arange(0, BLOCK_N)
    lane_squares = tl.zeros([BLOCK_N], tl.float32)
    for begin in range(0, body, BLOCK_N):
        n = begin + column
        x = tl.load(x_body + n, mask=n < body, other=0.0)
        h = add(x, tl.load(residual_body + n, mask=n < body, other=0.0))
        tl.store(h_body + n, h, mask=n < body)
        h = h.to(tl.float32)
        lane_squares += h * h
    squares = tl.sum(lane_squares)
    if VEC > 1:
        e = edges(head, N, VEC)
        edge = tl.load(x_ptr + m * stride_xm + e, mask=e < N, other=0.0)
        edge = add(edge, tl.load(residual_ptr + m * stride_rm + e, mask=e < N, other=0.0))
        tl.store(h_ptr + m * N + e, edge, mask=e < N)
        edge = edge.to(tl.float32)
        squares += tl.sum(edge * edge)
    scale = tl.rsqrt(squares / N + eps)
    tl.debug_barrier()  # another thread of the program may have written what a thread reads

    for begin in range(0, body, BLOCK_N):
        n = begin + column
        h = tl.load(h_body + n, mask=n < body, other=0.0).to(tl.float32)
        weight = of_body(weight_ptr, n, head, N, VEC)
        tl.store(y_body + n, h * scale * weight.to(tl.float32), mask=n < body)
    if VEC > 1:
        weight = of_columns(weight_ptr, e, N)
        tl.store(y_ptr + m * N + e, edge * scale * weight.to(tl.float32), mask=e < N)


@triton.jit
def fused_add_rms_norm_onepass_kernel(
    x_ptr, residual_ptr, weight_ptr, h_ptr, y_ptr, M, N, stride_xm, stride_rm,
    eps, VEC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per BLOCK_M rows of N <= BLOCK_N columns, whose h stays in registers.

    For short rows the weights are loaded together with the rows, so that nothing waits after the reduction.
    For long rows they are loaded when x and residual have left their registers to h.
    """
    WEIGHTS_FIRST: tl.constexpr = BLOCK_N <= 2048
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    inside = (m < M) & (n < columns_of_body(N, VEC))
    head = start_of_body(m * N, VEC) - m * N
    x = tl.load(x_ptr + start_of_body(m * stride_xm, VEC) + n, mask=inside, other=0.0)
    residual = tl.load(residual_ptr + start_of_body(m * stride_rm, VEC) + n, mask=inside, other=0.0)
    if VEC > 1:
        column = edges(head, N, VEC)
        at_edge = (m < M) & (column < N)
        edge = tl.load(x_ptr + m * stride_xm + column, mask=at_edge, other=0.0)
        edge = add(edge, tl.load(residual_ptr + m * stride_rm + column, mask=at_edge, other=0.0))
        tl.store(h_ptr + m * N + column, edge, mask=at_edge)
        edge = edge.to(tl.float32)
    if WEIGHTS_FIRST:
        weight = of_body(weight_ptr, n, head, N, VEC)
    h = add(x, residual)
    tl.store(h_ptr + start_of_body(m * N, VEC) + n, h, mask=inside)
    if not WEIGHTS_FIRST:
        weight = of_body(weight_ptr, n, head, N, VEC)
    h = h.to(tl.float32)
    squares = tl.sum(h * h, axis=1, keep_dims=True)
    if VEC > 1:
        squares += tl.sum(edge * edge, axis=1, keep_dims=True)
    scale = tl.rsqrt(squares / N + eps)
    tl.store(y_ptr + start_of_body(m * N, VEC) + n, h * scale * weight.to(tl.float32), mask=inside)
    if VEC > 1:
        weight = of_columns(weight_ptr, column, N)
        tl.store(y_ptr + m * N + column, edge * scale * weight.to(tl.float32), mask=at_edge)


@triton.jit
def fused_add_rms_norm_split_kernel(
    x_ptr, residual_ptr, weight_ptr, h_ptr, y_ptr, M, N, stride_xm, stride_rm, chunks, of_chunk_ptr,
    eps, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Rows are split into ``chunks`` chunks of BLOCK_N columns; a program has the same columns of many rows.

    Each iteration writes its chunk of h, keeps it in registers and publishes its sum of squares.  When the
    row's other programs have published theirs, it writes its chunk of y.  Its next row is prefetched, so that
    loads are in flight while it waits.

    Invariant: all programs are resident, because they wait for each other; their number is a multiple of
    ``chunks``.  The host ensures both.  of_chunk[M * chunks] starts as 0: one nonzero word is both result and
    flag.
    """
    c = tl.program_id(0) % chunks
    step = tl.num_programs(0) // chunks
    first = (tl.program_id(0) // chunks).to(tl.int64)
    n = c * BLOCK_N + tl.arange(0, BLOCK_N)
    next_x = tl.load(x_ptr + first * stride_xm + n, mask=(n < N) & (first < M), other=0.0)
    next_residual = tl.load(residual_ptr + first * stride_rm + n, mask=(n < N) & (first < M), other=0.0)
    for row in tl.range(first, M, step):
        m = tl.cast(row, tl.int64)
        h = add(next_x, next_residual)
        tl.store(h_ptr + m * N + n, h, mask=n < N)
        h = h.to(tl.float32)
        tl.store(of_chunk_ptr + m * chunks + c, pack(tl.sum(h * h)))
        next_m = m + step
        inside = (n < N) & (next_m < M)
        next_x = tl.load(x_ptr + next_m * stride_xm + n, mask=inside, other=0.0)
        next_residual = tl.load(residual_ptr + next_m * stride_rm + n, mask=inside, other=0.0)
        weight = of_columns(weight_ptr, n, N).to(tl.float32)
        squares = wait_for_row(of_chunk_ptr + m * chunks, chunks, BLOCK_C)
        scale = tl.rsqrt(squares / N + eps)
        tl.store(y_ptr + m * N + n, h * scale * weight, mask=n < N)


class Rows(NamedTuple):
    """The kernels' tensor arguments, and outputs."""

    x: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor
    h: torch.Tensor
    y: torch.Tensor

    @property
    def strides(self) -> tuple[int, int]:
        """Between rows of x and of residual."""
        return self.x.stride(0), self.residual.stride(0)

    @property
    def VEC(self) -> int:
        """Of `vec_of_narrow`: 1 unless both inputs are unaligned in the same way as the outputs."""
        return min(vec_of_narrow(self.x), vec_of_narrow(self.residual))


def checked(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Rows:
    """The arguments, copied where rows are not contiguous, and uninitialised outputs."""
    check_residual_norm(OP, x, residual, weight)
    outputs = (x.new_empty(x.shape) for _ in range(2))
    return Rows(contiguous_rows(x), contiguous_rows(residual), weight.contiguous(), *outputs)


@implementation(OP, "triton.online", level="tiled", algorithm="h written, then read again")
def online(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> Outputs:
    """A program reads the h again that it has written: any row length."""
    rows = checked(x, residual, weight)
    M, N = x.shape
    if x.numel() > 0:
        check_counts(N=N)
        BLOCK_N = min(4096, next_power_of_2(N))
        fused_add_rms_norm_online_kernel[grid_1d(M)](
            *rows, N, *rows.strides, eps, VEC=rows.VEC, BLOCK_N=BLOCK_N,
            num_warps=16 if BLOCK_N == 4096 else 4,
        )  # fmt: skip
    return rows.y, rows.h


ONEPASS_COLUMNS = 32768


@implementation(OP, "triton.onepass", level="tiled", algorithm="h in registers: sum of squares, y")
def onepass(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> Outputs:
    """The row stays in registers: up to 32768 columns."""
    rows = checked(x, residual, weight)
    M, N = x.shape
    if N > ONEPASS_COLUMNS:
        raise NotImplementedError(
            f"N={N}: registers hold rows of up to {ONEPASS_COLUMNS} columns; split takes longer ones"
        )
    if x.numel() > 0:
        BLOCK_N = next_power_of_2(N)
        BLOCK_M = max(1, min(4, 2048 // BLOCK_N))  # several short rows per program
        num_warps = min(32, max(4, BLOCK_N // 1024))  # 32 elements of a long row per thread
        fused_add_rms_norm_onepass_kernel[grid_1d(cdiv(M, BLOCK_M))](
            *rows, M, N, *rows.strides, eps, VEC=rows.VEC, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
            num_warps=num_warps,
        )  # fmt: skip
    return rows.y, rows.h


@implementation(OP, "triton.split", level="tiled", algorithm="rows shared: partial sums in global memory")
def split(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> Outputs:
    """Several programs share a row: up to as long as all resident programs can hold."""
    rows = checked(x, residual, weight)
    M, N = x.shape
    if x.numel() > 0:
        check_counts(M=M)
        PROGRAMS = 8  # per multiprocessor, of 4 warps
        few = M * cdiv(N, 1024) <= PROGRAMS * multiprocessors(x.device)
        BLOCK_N = columns_of_a_chunk(N, 1024 if few else 2048)
        chunks = cdiv(N, BLOCK_N)
        of_chunk = x.new_zeros(M * chunks, dtype=torch.int64)
        # At least one word per thread: two threads polling one word could see different values.
        BLOCK_C = max(128, next_power_of_2(chunks))
        arguments = (*rows, M, N, *rows.strides, chunks, of_chunk, eps)
        launch = {"BLOCK_N": BLOCK_N, "BLOCK_C": BLOCK_C, "num_warps": 4, "num_stages": 1, **COOPERATIVE}
        programs = resident_programs(fused_add_rms_norm_split_kernel, arguments, launch, PROGRAMS, chunks)
        rows_at_a_time = min(programs // chunks, M)
        fused_add_rms_norm_split_kernel[(rows_at_a_time * chunks,)](*arguments, **launch)
    return rows.y, rows.h
