"""histogram in Triton: ``x[N] -> y[256]``, of uint8 and int64.

The ladder; ``cuda_impl/kernels/histogram.cuh`` has the same under the same names, ``warps`` and ``lanes``:

* ``global``: an atomic addition in global memory for every element
* ``shared``: a program counts for itself with ``tl.histogram``, and adds its counts to y once, at its end

Where a program's counters are is not said here.  ``tl.histogram`` is a word for all of it: how threads share
counters, and what becomes of those that want the same one, is its compiler's choice, and cannot be changed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.arguments import check_bytes
from compare.device import multiprocessors
from compare.registry import implementation

BINS = tl.constexpr(256)


@triton.jit
def histogram_global_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: a program for BLOCK_SIZE elements."""
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + n * stride_xn, mask=n < N, other=0)
    one = tl.full([BLOCK_SIZE], 1, tl.int64)
    tl.atomic_add(y_ptr + x.to(tl.int32), one, mask=n < N, sem="relaxed")


@triton.jit
def histogram_shared_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: a few programs a multiprocessor, which take every num_programs-th block."""
    count = tl.zeros([BINS], tl.int32)
    whole = N // BLOCK_SIZE
    for block in range(tl.program_id(0), whole, tl.num_programs(0)):
        n = tl.cast(block, tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        count += tl.histogram(tl.load(x_ptr + n * stride_xn).to(tl.int32), BINS)
    # The block that the end cuts short, apart: what is not there is loaded as 0, and not counted.
    if tl.program_id(0) == whole % tl.num_programs(0):
        n = tl.cast(whole, tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_ptr + n * stride_xn, mask=n < N, other=0).to(tl.int32)
        nowhere = tl.sum((n >= N).to(tl.int32), axis=0)
        count += tl.histogram(x, BINS) - tl.where(tl.arange(0, BINS) == 0, nowhere, 0)
    tl.atomic_add(y_ptr + tl.arange(0, BINS), count.to(tl.int64), sem="relaxed")


@implementation("histogram", "triton.global", rung="naive")
def globally(x: torch.Tensor) -> torch.Tensor:
    """An atomic addition in global memory for every element."""
    check_bytes("histogram", x)
    BLOCK_SIZE = 1024
    N = x.numel()
    y = torch.zeros(BINS.value, dtype=torch.int64, device=x.device)
    if N > 0:
        grid = (triton.cdiv(N, BLOCK_SIZE),)
        histogram_global_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
    return y


SIZES = {"BLOCK_SIZE": (1024, 2048, 4096, 8192, 16384), "WARPS": (4, 8, 16), "PROGRAMS": (1, 2, 4, 8)}


@implementation("histogram", "triton.shared", rung="tiled", tunable=SIZES)
def shared(x: torch.Tensor, *, BLOCK_SIZE: int = 4096, WARPS: int = 8, PROGRAMS: int = 8) -> torch.Tensor:
    """A program counts with ``tl.histogram``, and adds its counts to y at its end."""
    check_bytes("histogram", x)
    N = x.numel()
    y = torch.zeros(BINS.value, dtype=torch.int64, device=x.device)
    programs = max(1, min(triton.cdiv(N, BLOCK_SIZE), PROGRAMS * multiprocessors(x.device)))
    histogram_shared_kernel[(programs,)](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y
