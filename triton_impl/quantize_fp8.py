"""quantize_fp8 over rows or groups of columns, in Triton: ``x[M,K] -> values[M,K], scales[M,K/group]``.

Variants; ``cuda_impl/kernels/quantize_fp8.cuh`` has the first under the same name:

* ``onepass``: a group stays in registers between its maximum and its values, so it is read once
* ``packed``: 16-bit elements stay two to a register, as loaded, and a reciprocal per group takes the place
  of a division per element, as in CUDA's ``vectorized``; Triton makes 16-byte loads in both
* ``pipelined``: persistent programs; the next groups are fetched while one is converted

Triton converts to e4m3 by the GPU's own instruction, two elements at a time: sm_89.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from compare.arguments import check_groups
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, next_power_of_2
from triton_impl.norm import INTERPRETED

LARGEST = tl.constexpr(448.0)
LEAST = tl.constexpr(1e-12)
LARGEST_FLOAT = tl.constexpr(3.4028234663852886e38)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
"""The bits of a float without its sign: as integers they have the order of the magnitudes, NaN above all."""


@triton.jit
def scale_of(largest_bits):
    """A group's scale, from the bits of its largest magnitude.  NaN stays: no comparison with it is true."""
    largest = largest_bits.to(tl.float32, bitcast=True)
    largest = tl.where(largest < LEAST, LEAST, largest)
    return tl.div_rn(largest, tl.full(largest.shape, LARGEST, tl.float32))


@triton.jit
def quantize_fp8_onepass_kernel(
    x_ptr, values_ptr, scales_ptr, count, K, stride_xm, group, of_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per BLOCK_M of all ``count`` groups, ``of_row`` of which a row has.

    A group has up to BLOCK_N columns, which stay in registers.
    """
    g = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    m = (g // of_row).to(tl.int64)
    k = g % of_row * group + tl.arange(0, BLOCK_N)[None, :]
    inside = (g < count) & (tl.arange(0, BLOCK_N)[None, :] < group) & (k < K)
    x = tl.load(x_ptr + m * stride_xm + k, mask=inside, other=0.0).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True) & MAGNITUDE
    scale = scale_of(tl.max(bits, axis=1, keep_dims=True))
    tl.store(scales_ptr + g, scale, mask=g < count)
    tl.store(values_ptr + m * K + k, tl.div_rn(x, scale).to(tl.float8e4nv), mask=inside)


@triton.jit
def quotient(x, scale):
    """x / scale, rounded as a division: two steps of multiply-add correct the product with the reciprocal.

    The remainder of an infinite scale would be NaN; with a finite one the quotient stays 0.
    """
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    finite = tl.where(scale > LARGEST_FLOAT, LARGEST_FLOAT, scale)
    q = x * inverse
    return tl.fma(tl.fma(-q, finite, x), inverse, q)


@triton.jit
def stay_as_loaded(x):
    """The same elements, 16-bit ones two to a register, opaque to the compiler.

    Otherwise it would keep the fp32 elements that the maximum was taken of, in twice as many registers.
    """
    if not INTERPRETED and x.dtype.primitive_bitwidth == 16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
    return x


@triton.jit
def quantize_fp8_packed_kernel(
    x_ptr, values_ptr, scales_ptr, count, K, stride_xm, group, of_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """As onepass, but x stays as loaded: it is widened for the maximum, and again for the values."""
    g = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    m = (g // of_row).to(tl.int64)
    k = g % of_row * group + tl.arange(0, BLOCK_N)[None, :]
    inside = (g < count) & (tl.arange(0, BLOCK_N)[None, :] < group) & (k < K)
    x = tl.load(x_ptr + m * stride_xm + k, mask=inside, other=0.0)
    bits = stay_as_loaded(x).to(tl.float32).to(tl.int32, bitcast=True) & MAGNITUDE
    scale = scale_of(tl.max(bits, axis=1, keep_dims=True))
    tl.store(scales_ptr + g, scale, mask=g < count)
    codes = quotient(stay_as_loaded(x).to(tl.float32), scale).to(tl.float8e4nv)
    tl.store(values_ptr + m * K + k, codes, mask=inside)


@triton.jit
def quantize_fp8_pipelined_kernel(
    x_ptr, values_ptr, scales_ptr, count, K, stride_xm, group, of_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As packed, by persistent programs: the compiler fetches STAGES - 1 tiles ahead, into shared memory."""
    for first in tl.range(tl.program_id(0) * BLOCK_M, count, tl.num_programs(0) * BLOCK_M, num_stages=STAGES):
        g = first + tl.arange(0, BLOCK_M)[:, None]
        m = (g // of_row).to(tl.int64)
        k = g % of_row * group + tl.arange(0, BLOCK_N)[None, :]
        inside = (g < count) & (tl.arange(0, BLOCK_N)[None, :] < group) & (k < K)
        x = tl.load(x_ptr + m * stride_xm + k, mask=inside, other=0.0)
        bits = stay_as_loaded(x).to(tl.float32).to(tl.int32, bitcast=True) & MAGNITUDE
        scale = scale_of(tl.max(bits, axis=1, keep_dims=True))
        tl.store(scales_ptr + g, scale, mask=g < count)
        codes = quotient(stay_as_loaded(x).to(tl.float32), scale).to(tl.float8e4nv)
        tl.store(values_ptr + m * K + k, codes, mask=inside)


class Groups(NamedTuple):
    """The arguments, the outputs, and how many groups there are."""

    x: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor
    columns: int
    """Of a group."""
    of_row: int
    """Groups of a row."""

    @property
    def count(self) -> int:
        return self.x.size(0) * self.of_row


MOST_COLUMNS = 16384
"""Of a group: what registers hold."""
MOST_K = (1 << 31) - (1 << 16)
"""Columns are numbered in 32 bits, up to the end of the last group."""
MOST_GROUPS = (1 << 31) - (1 << 20)
"""Numbers of groups are 32-bit, up to the end of the last iteration of all programs."""


def checked(x: torch.Tensor, group: int) -> Groups:
    """The arguments, copied where rows are not contiguous, and uninitialised outputs.

    Raises:
        NotImplementedError: a row or a group is too long, or there are too many groups.
    """
    check_groups("quantize_fp8", x, group)
    M, K = x.shape
    x = x if x.stride(1) == 1 or K <= 1 else x.contiguous()
    columns = min(group or K, K)
    if columns > MOST_COLUMNS:
        raise NotImplementedError(f"groups of {columns} columns: registers hold up to {MOST_COLUMNS}")
    of_row = cdiv(K, max(columns, 1)) if group else 1
    if K > MOST_K:
        raise NotImplementedError(f"K={K}: columns are numbered in 32 bits, at most {MOST_K}")
    if M * of_row > MOST_GROUPS:
        raise NotImplementedError(f"{M * of_row} groups: they are counted in 32 bits, at most {MOST_GROUPS}")
    values = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    shape = (M, of_row) if group else (M,)
    return Groups(x, values, torch.empty(shape, dtype=torch.float32, device=x.device), columns, of_row)


def launch(kernel: Any, x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """16 elements per thread, and several short groups per program."""
    g = checked(x, group)
    if g.count > 0:
        BLOCK_N = max(16, next_power_of_2(g.columns))
        BLOCK_M, num_warps = max(1, 2048 // BLOCK_N), max(4, BLOCK_N // 512)
        kernel[(cdiv(g.count, BLOCK_M),)](
            g.x, g.values, g.scales, g.count, x.size(1), g.x.stride(0), g.columns, g.of_row,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps,
        )  # fmt: skip
    return g.values, g.scales


@implementation(
    "quantize_fp8",
    "triton.onepass",
    level="tiled",
    requires="sm_89",
    algorithm="group in registers: maximum, division, e4m3",
)
def onepass(x: torch.Tensor, *, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A group stays in registers: up to 16384 columns."""
    return launch(quantize_fp8_onepass_kernel, x, group)


@implementation("quantize_fp8", "triton.packed", level="tiled", requires="sm_89")
def packed(x: torch.Tensor, *, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A group stays in registers as loaded: up to 16384 columns."""
    return launch(quantize_fp8_packed_kernel, x, group)


@implementation(
    "quantize_fp8",
    "triton.pipelined",
    level="tiled",
    requires="sm_89",
    tunable={"PROGRAMS": (1, 2, 3, 4), "STAGES": (2, 3, 4)},
)
def pipelined(
    x: torch.Tensor, *, group: int, PROGRAMS: int = 2, STAGES: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """PROGRAMS per multiprocessor, STAGES tiles in shared memory each: up to 16384 columns."""
    g = checked(x, group)
    if g.count > 0:
        BLOCK_N = max(16, next_power_of_2(g.columns))
        BLOCK_M = max(1, 8192 // BLOCK_N)
        programs = min(cdiv(g.count, BLOCK_M), multiprocessors(x.device) * PROGRAMS)
        quantize_fp8_pipelined_kernel[(programs,)](
            g.x, g.values, g.scales, g.count, x.size(1), g.x.stride(0), g.columns, g.of_row,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, STAGES=STAGES, num_warps=max(8, BLOCK_N // 1024),
        )  # fmt: skip
    return g.values, g.scales
