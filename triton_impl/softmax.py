"""softmax over rows, in Triton: ``x[M,N] -> y[M,N]``.

The ladder; ``cuda_impl/kernels/softmax.cuh`` has the same variants under the same names:

* ``online``: a program reads its row twice, tile by tile: any row length
* ``onepass``: the row waits in registers between reduction and output, so it is read once: 65536 columns
* ``split``: many programs share a row and tell each other their parts of the sum: long rows

``fast_expf`` is CUDA's ``__expf``: the GPU's own instruction, which flushes subnormal results to zero.
``tl.exp`` keeps them, at three more instructions an element.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import fast_expf

from compare.arguments import check_same
from compare.device import multiprocessors
from compare.registry import implementation


@triton.jit
def finite_shift(maximum):
    """What to subtract before exp.  Where all is -inf so far, exp(-inf - -inf) would be NaN; it must be 0."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def softmax_online_kernel(x_ptr, y_ptr, N, stride_xm, BLOCK_N: tl.constexpr):
    """Grid: a program a row.  Each lane keeps its own running maximum and sum until the row ends.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    m = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + m * stride_xm
    y_row = y_ptr + m * N
    lane_max = tl.full([BLOCK_N], -float("inf"), tl.float32)
    lane_sum = tl.zeros([BLOCK_N], tl.float32)
    for begin in range(0, N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + n, mask=n < N, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(lane_max, x)
        shift = finite_shift(new_max)
        lane_sum = lane_sum * fast_expf(lane_max - shift) + fast_expf(x - shift)
        lane_max = new_max

    row_max = tl.max(lane_max, axis=0)
    row_sum = tl.sum(lane_sum * fast_expf(lane_max - finite_shift(row_max)), axis=0)

    inverse_sum = 1.0 / row_sum
    for begin in range(0, N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + n, mask=n < N, other=-float("inf")).to(tl.float32)
        tl.store(y_row + n, fast_expf(x - row_max) * inverse_sum, mask=n < N)


@triton.jit
def softmax_onepass_kernel(x_ptr, y_ptr, M, N, stride_xm, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Grid: a program for BLOCK_M rows, of N <= BLOCK_N columns, which it holds in registers."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    inside = (m < M) & (n < N)
    x = tl.load(x_ptr + m * stride_xm + n, mask=inside, other=-float("inf")).to(tl.float32)
    row_max = tl.max(x, axis=1, keep_dims=True)
    e = fast_expf(x - row_max)
    row_sum = tl.sum(e, axis=1, keep_dims=True)
    tl.store(y_ptr + m * N + n, e * (1.0 / row_sum), mask=inside)


@triton.jit
def pack(maximum, total):
    """Two floats in one 8-byte word, which arrives whole."""
    low = maximum.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (total.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def wait_for_row(of_chunk_ptr, chunks, BLOCK_C: tl.constexpr):
    """Maximum and sum of a row from all its chunks, as soon as all are there (not 0)."""
    c = tl.arange(0, BLOCK_C)
    part = tl.load(of_chunk_ptr + c, mask=c < chunks, other=-1, volatile=True)
    while tl.sum((part == 0).to(tl.int32), axis=0) > 0:
        part = tl.load(of_chunk_ptr + c, mask=c < chunks, other=-1, volatile=True)
    maximum = part.to(tl.int32).to(tl.float32, bitcast=True)
    total = (part >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    maximum = tl.where(c < chunks, maximum, -float("inf"))
    total = tl.where(c < chunks, total, 0.0)
    row_max = tl.max(maximum, axis=0)
    return row_max, tl.sum(total * fast_expf(maximum - finite_shift(row_max)), axis=0)


@triton.jit
def softmax_split_kernel(
    x_ptr, y_ptr, M, N, stride_xm, chunks, of_chunk_ptr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Rows are cut into ``chunks`` chunks of BLOCK_N columns; all chunks of all rows, in order, are dealt.

    At every turn a program reduces a chunk, publishes its maximum and sum and keeps the chunk in registers;
    two turns later the other programs have published theirs, and the output can be written.  Every element
    is read once, and the next chunk is on its way meanwhile.

    Programs wait for each other: all of the grid must be resident together, and a row may have no more
    chunks than there are programs nor than BLOCK_C; the host ensures it.  of_chunk[M * chunks] starts as
    0: no chunk has maximum 0 and sum 0, so one word is both the result and the news that it is there.
    """
    programs = tl.num_programs(0)
    first = tl.program_id(0)
    total = tl.cast(M, tl.int64) * chunks
    column = tl.arange(0, BLOCK_N)
    # A chunk is the c-th of row m.  Counting on is cheaper than dividing at every turn.
    step_m, step_c = programs // chunks, programs % chunks
    m, c = (first // chunks).to(tl.int64), first % chunks

    n = c * BLOCK_N + column
    x = tl.load(x_ptr + m * stride_xm + n, mask=(n < N) & (m < M), other=-float("inf"))
    # Not `kept = x`: Triton takes two names for one value to be unchanged by the loop, and drops the update.
    kept, kept_m, kept_c = tl.where(n < N, x, x), m + 0, c + 0
    old, old_m, old_c = tl.where(n < N, x, x), m + 0, c + 0
    for chunk in tl.range(first, total + 2 * programs, programs):
        if chunk < total:
            chunk_max = tl.max(x, axis=0).to(tl.float32)
            chunk_sum = tl.sum(fast_expf(x.to(tl.float32) - finite_shift(chunk_max)), axis=0)
            tl.store(of_chunk_ptr + chunk, pack(chunk_max, chunk_sum))
        next_c = c + step_c
        next_m = m + step_m + (next_c >= chunks).to(tl.int32)
        next_c = tl.where(next_c >= chunks, next_c - chunks, next_c)
        n = next_c * BLOCK_N + column
        next_x = tl.load(x_ptr + next_m * stride_xm + n, mask=(n < N) & (next_m < M), other=-float("inf"))
        if chunk >= 2 * programs:
            row_max, row_sum = wait_for_row(of_chunk_ptr + old_m * chunks, chunks, BLOCK_C)
            n = old_c * BLOCK_N + column
            y = fast_expf(old.to(tl.float32) - row_max) * (1.0 / row_sum)
            tl.store(y_ptr + old_m * N + n, y, mask=n < N)
        old, old_m, old_c = kept, kept_m, kept_c
        kept, kept_m, kept_c = x, m, c
        x, m, c = next_x, next_m, next_c


def checked(x: torch.Tensor) -> torch.Tensor:
    """``x`` with neighbouring columns next to each other; a copy where they are not."""
    check_same("softmax", 2, x=x)
    return x if x.stride(1) == 1 or x.size(1) <= 1 else x.contiguous()


@implementation("softmax", "triton.online", rung="tiled")
def online(x: torch.Tensor) -> torch.Tensor:
    """A program reads its row twice: any row length."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    BLOCK_N = min(8192, triton.next_power_of_2(N))
    num_warps = 16 if BLOCK_N == 8192 else 4
    softmax_online_kernel[(M,)](x, y, N, x.stride(0), BLOCK_N=BLOCK_N, num_warps=num_warps)
    return y


ONEPASS_COLUMNS = 65536


@implementation("softmax", "triton.onepass", rung="tiled")
def onepass(x: torch.Tensor) -> torch.Tensor:
    """The row waits in registers: up to 65536 columns, which already spill."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    if N > ONEPASS_COLUMNS:
        raise NotImplementedError(f"N={N}: registers hold rows of up to {ONEPASS_COLUMNS} columns")
    BLOCK_N = triton.next_power_of_2(N)
    BLOCK_M = max(1, min(4, 2048 // BLOCK_N))  # short rows share a program
    num_warps = max(4, BLOCK_N // 2048)  # 64 elements of a long row a thread
    grid = (triton.cdiv(M, BLOCK_M),)
    softmax_onepass_kernel[grid](
        x, y, M, N, x.stride(0), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps
    )
    return y


INTERPRETED = not isinstance(softmax_split_kernel, triton.JITFunction)


def columns_of_a_chunk(N: int, BLOCK_N: int) -> int:
    """BLOCK_N on a GPU.  Interpreted, a program cannot wait for others: it takes a row of N as one chunk."""
    return min(triton.next_power_of_2(N), tl.TRITON_MAX_TENSOR_NUMEL) if INTERPRETED else BLOCK_N


def resident_programs(
    launch: functools.partial[object], device: torch.device, threads: int, PROGRAMS: int, chunks: int = 1
) -> int:
    """How many programs a GPU holds at a time, at most PROGRAMS a multiprocessor.

    They wait for each other, so all must be there; how many registers each takes only the compiler knows.
    NotImplementedError where a row has more ``chunks`` than that; where it has more than PROGRAMS allow, the
    compiler is not asked, which would take it minutes.
    """
    programs = 1 if INTERPRETED else PROGRAMS * multiprocessors(device)  # interpreted, one after another
    if not INTERPRETED and device.type == "cuda" and chunks <= programs:
        from cuda.bindings import driver

        compiled = launch(grid=(1,))
        compiled._init_handles()
        error, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            compiled.function, threads, compiled.metadata.shared
        )
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuOccupancyMaxActiveBlocksPerMultiprocessor: {error.name}")
        programs = min(blocks, PROGRAMS) * multiprocessors(device)
    if chunks > programs:
        raise NotImplementedError(f"a row's {chunks} chunks take as many programs at a time: {programs} fit")
    return programs


@implementation("softmax", "triton.split", rung="tiled")
def split(x: torch.Tensor) -> torch.Tensor:
    """Many programs share a row: rows as long as all programs together can hold."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    num_warps = 4
    PROGRAMS = 5 if x.element_size() == 4 else 4  # a multiprocessor
    BLOCK_N = columns_of_a_chunk(N, 8192 // x.element_size())
    chunks = triton.cdiv(N, BLOCK_N)
    of_chunk = torch.zeros(M * chunks, dtype=torch.int64, device=x.device)
    # Not fewer than there are threads: two threads that poll the same word may not see the same.
    BLOCK_C = max(32 * num_warps, triton.next_power_of_2(chunks))
    arguments = (x, y, M, N, x.stride(0), chunks, of_chunk)
    options = {"BLOCK_N": BLOCK_N, "BLOCK_C": BLOCK_C, "num_warps": num_warps, "num_stages": 1}
    compiling = functools.partial(softmax_split_kernel.warmup, *arguments, **options)
    programs = resident_programs(compiling, x.device, 32 * num_warps, PROGRAMS, chunks)
    softmax_split_kernel[(min(programs, M * chunks),)](*arguments, **options)
    return y
