"""What layer_norm and rms_norm share, in Triton: kernels over rows of ``x[M,N]``, and their launch.

rms_norm is layer_norm with a mean of 0 and without a bias: CENTERED selects.  The variants are listed in
``layer_norm.py`` and ``rms_norm.py``; ``cuda_impl/kernels/norm.cuh`` has CUDA's kernels.

The variance is the mean of squared deviations, never E[x^2] - E[x]^2.  For a row with mean 1000 and variance
1 both terms are about 10^6, where the spacing of fp32 is 0.06.

eps is passed as the bits of an fp32: Triton's ahead-of-time tools pass no float by value.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from compare.arguments import check_norm
from triton_impl import shared_rows
from triton_impl.counts import check_counts
from triton_impl.shared_rows import (
    aligned,
    columns_of_a_chunk,
    fetch,
    in_packs,
    published,
    resident_programs,
    share_rows,
)

INTERPRETED = tl.constexpr(shared_rows.INTERPRETED)


@triton.jit
def as_float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def row_moments(x, inside, count, CENTERED: tl.constexpr):
    """Mean and sum of squared deviations of each row; ``count`` elements are inside, the others are 0."""
    mean = 0.0
    deviation = x
    if CENTERED:
        mean = tl.sum(x, axis=1, keep_dims=True) / count
        deviation = tl.where(inside, x - mean, 0.0)
    return mean, tl.sum(deviation * deviation, axis=1, keep_dims=True)


@triton.jit
def all_moments(x, inside, count, CENTERED: tl.constexpr):
    """`row_moments` over all rows together."""
    mean = 0.0
    deviation = x
    if CENTERED:
        mean = tl.sum(x) / count
        deviation = tl.where(inside, x - mean, 0.0)
    return mean, tl.sum(deviation * deviation)


@triton.jit
def combine(mean, squares, count, total, CENTERED: tl.constexpr):
    """Combine the moments of parts with ``count`` elements each into those of all ``total`` elements.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), for many parts at once: deviations within each part, and of its mean from the total
    mean.
    """
    if CENTERED:
        of_all = tl.sum(count * mean, axis=0) / total
        deviation = mean - of_all
        return of_all, tl.sum(squares + count * deviation * deviation, axis=0)
    return 0.0, tl.sum(squares, axis=0)


@triton.jit
def normalised(x, mean, scale, weight, bias, CENTERED: tl.constexpr):
    if CENTERED:
        return (x - mean) * scale * weight.to(tl.float32) + bias.to(tl.float32)
    return x * scale * weight.to(tl.float32)


@triton.jit
def parameters(weight_ptr, bias_ptr, n, N, CENTERED: tl.constexpr):
    """Weight and bias of these columns; evict_last, because every row needs them."""
    weight = tl.load(weight_ptr + n, mask=n < N, other=0.0, eviction_policy="evict_last")
    if CENTERED:
        return weight, tl.load(bias_ptr + n, mask=n < N, other=0.0, eviction_policy="evict_last")
    return weight, weight


@triton.jit
def norm_online_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, N, stride_xm,
    eps_bits, CENTERED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per row.  Each lane keeps running moments of its own elements until the row ends.

    Source: Welford, "Note on a method for calculating corrected sums of squares and products" (1962).
    """
    m = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + m * stride_xm
    y_row = y_ptr + m * N
    column = tl.arange(0, BLOCK_N)
    lane_mean = tl.zeros([BLOCK_N], tl.float32)
    lane_squares = tl.zeros([BLOCK_N], tl.float32)
    for begin in range(0, N, BLOCK_N):
        n = begin + column
        x = tl.load(x_row + n, mask=n < N, other=0.0).to(tl.float32)
        if CENTERED:
            further = tl.where(n < N, x - lane_mean, 0.0)
            lane_mean += further * (1.0 / (begin // BLOCK_N + 1))
            lane_squares += further * (x - lane_mean)
        else:
            lane_squares += x * x
    lane_count = ((N - column + BLOCK_N - 1) // BLOCK_N).to(tl.float32)
    mean, squares = combine(lane_mean, lane_squares, lane_count, N, CENTERED)
    scale = tl.rsqrt(squares / N + as_float(eps_bits))

    for begin in range(0, N, BLOCK_N):
        n = begin + column
        x = tl.load(x_row + n, mask=n < N, other=0.0).to(tl.float32)
        weight, bias = parameters(weight_ptr, bias_ptr, n, N, CENTERED)
        tl.store(y_row + n, normalised(x, mean, scale, weight, bias, CENTERED), mask=n < N)


@triton.jit
def norm_onepass_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, M, N, stride_xm,
    eps_bits, CENTERED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per BLOCK_M rows of N <= BLOCK_N columns, which stay in registers.

    For short rows the weights are loaded together with the rows, so that nothing waits after the reduction.
    For long rows they are loaded later, because registers limit how many programs are resident.
    """
    WEIGHTS_FIRST: tl.constexpr = BLOCK_N <= 2048
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    inside = (m < M) & (n < N)
    x = tl.load(x_ptr + m * stride_xm + n, mask=inside, other=0.0)
    if WEIGHTS_FIRST:
        weight, bias = parameters(weight_ptr, bias_ptr, n, N, CENTERED)
    x = x.to(tl.float32)
    mean, squares = row_moments(x, inside, N, CENTERED)
    scale = tl.rsqrt(squares / N + as_float(eps_bits))
    if not WEIGHTS_FIRST:
        weight, bias = parameters(weight_ptr, bias_ptr, n, N, CENTERED)
    tl.store(y_ptr + m * N + n, normalised(x, mean, scale, weight, bias, CENTERED), mask=inside)


@triton.jit
def halves(words, DTYPE: tl.constexpr):
    """Both 16-bit elements of each word, as fp32."""
    low = (words & 0xFFFF).to(tl.int16).to(DTYPE, bitcast=True)
    high = (words >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def stay_packed(words):
    """The same words, opaque to the compiler.

    Otherwise it would keep the elements that an earlier pass unpacked, in twice as many registers.
    """
    if not INTERPRETED:
        words = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [words], dtype=tl.int32, is_pure=False, pack=1
        )
    return words


@triton.jit
def in_order(words, DTYPE: tl.constexpr):
    """The fp32 elements of words that hold one fp32 or two 16-bit elements each."""
    if DTYPE.primitive_bitwidth == 32:
        elements = words.to(tl.float32, bitcast=True)
    else:
        low, high = halves(words, DTYPE)
        elements = tl.interleave(low, high)
    return elements


@triton.jit
def norm_packed_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, N, stride_xm, eps_bits,
    CENTERED: tl.constexpr, DTYPE: tl.constexpr, BLOCK_N: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Grid: one program per row, which stays in registers as loaded: TILES tiles of BLOCK_N words.

    Registers then hold twice as many 16-bit elements, and weights are loaded tile by tile.  64 registers per
    thread are enough for 32 words, so that a multiprocessor holds 128 KB of rows. x_ptr points to 32-bit
    words; N and stride_xm count words.
    """
    PER_WORD: tl.constexpr = 32 // DTYPE.primitive_bitwidth
    m = tl.program_id(0).to(tl.int64)
    columns = N * PER_WORD
    word = tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_N * PER_WORD)
    tiles = ()
    for t in tl.static_range(TILES):
        n = t * BLOCK_N + word
        inside = (n < N) | (t + 1 < TILES)  # only the last tile is partial
        x = tl.load(x_ptr + m * stride_xm + n, mask=inside, other=0)
        tiles = tiles + (x,)  # noqa: RUF005 - Triton does not support (*tiles, x)

    mean = 0.0
    if CENTERED:
        lane_sum = tl.zeros([BLOCK_N * PER_WORD], tl.float32)
        for t in tl.static_range(TILES):
            lane_sum += in_order(tiles[t], DTYPE)
        mean = tl.sum(lane_sum) / columns
    lane_squares = tl.zeros([BLOCK_N * PER_WORD], tl.float32)
    for t in tl.static_range(TILES):
        n = t * BLOCK_N * PER_WORD + column
        inside = (n < columns) | (t + 1 < TILES)
        deviation = tl.where(inside, in_order(stay_packed(tiles[t]), DTYPE) - mean, 0.0)
        lane_squares += deviation * deviation
    # A tile's weights are loaded before the previous tile is stored: the compiler moves no load across a
    # store.
    weight, bias = parameters(weight_ptr, bias_ptr, column, columns, CENTERED)
    scale = tl.rsqrt(tl.sum(lane_squares) / columns + as_float(eps_bits))

    for t in tl.static_range(TILES):
        n = t * BLOCK_N * PER_WORD + column
        next_n = n + BLOCK_N * PER_WORD
        if t + 1 < TILES:
            next_weight, next_bias = parameters(weight_ptr, bias_ptr, next_n, columns, CENTERED)
        y = normalised(in_order(stay_packed(tiles[t]), DTYPE), mean, scale, weight, bias, CENTERED)
        tl.store(y_ptr + m * columns + n, y, mask=(n < columns) | (t + 1 < TILES))
        if t + 1 < TILES:
            weight, bias = next_weight, next_bias


@triton.jit
def pack(mean, squares):
    """Two floats in one 8-byte word, written by one store; the sign bit of squares makes it never 0.

    ``-squares`` would lose the sign of 0: Triton computes it as ``0 - squares``.  A product keeps it.
    """
    low = mean.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | ((squares * -1.0).to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def wait_for_row(
    of_chunk_ptr, chunks, N,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, PER_WORD: tl.constexpr, CENTERED: tl.constexpr,
):  # fmt: skip
    """Moments of a row from all its chunks; polls until every chunk's word is not 0."""
    c = tl.arange(0, BLOCK_C)
    part = tl.load(of_chunk_ptr + c, mask=c < chunks, other=-1, volatile=True)
    while tl.sum((part == 0).to(tl.int32), axis=0) > 0:
        part = tl.load(of_chunk_ptr + c, mask=c < chunks, other=-1, volatile=True)
    mean = tl.where(c < chunks, part.to(tl.int32).to(tl.float32, bitcast=True), 0.0)
    squares = tl.where(c < chunks, -(part >> 32).to(tl.int32).to(tl.float32, bitcast=True), 0.0)
    count = tl.minimum(tl.maximum(N - c * BLOCK_N, 0), BLOCK_N) * PER_WORD
    return combine(mean, squares, count.to(tl.float32), N * PER_WORD, CENTERED)


@triton.jit
def widen(words, DTYPE: tl.constexpr):
    """The fp32 elements of words that hold one or two each: ``[BLOCK_N]`` or ``[BLOCK_N, 2]``.

    In Triton every loop-carried element takes a register, of any width; two in a word take one.
    """
    if DTYPE.primitive_bitwidth == 32:
        elements = words.to(tl.float32, bitcast=True)
    else:
        low, high = halves(words, DTYPE)
        elements = tl.join(low, high)
    return elements


@triton.jit
def narrow(elements, DTYPE: tl.constexpr):
    """The words that hold these elements, each rounded once."""
    if DTYPE.primitive_bitwidth == 32:
        words = elements.to(tl.int32, bitcast=True)
    else:
        low, high = tl.split(elements.to(DTYPE).to(tl.int16, bitcast=True))
        words = (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    return words


@triton.jit
def norm_split_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, M, N, stride_xm, chunks, of_chunk_ptr, eps_bits,
    CENTERED: tl.constexpr, DTYPE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Rows are split into ``chunks`` chunks of BLOCK_N words; a program has the same columns of many rows.

    Its weights therefore stay in the L1.  Each iteration reduces its chunk of a row, publishes the moments
    and keeps the chunk in registers.  One iteration later the row's other programs have published theirs, and
    the output is written.  Every element is read once, and the next chunk is prefetched meanwhile.

    Invariant: all programs are resident, because they wait for each other; their number is a multiple of
    ``chunks``.  The host ensures both.  of_chunk[M * chunks] starts as 0: one nonzero word is both result and
    flag. Other pointers are to 32-bit words; N and stride_xm count words.
    """
    PER_WORD: tl.constexpr = 32 // DTYPE.primitive_bitwidth
    c = tl.program_id(0) % chunks
    step = tl.num_programs(0) // chunks
    first = (tl.program_id(0) // chunks).to(tl.int64)
    n = c * BLOCK_N + tl.arange(0, BLOCK_N)
    count = tl.minimum(N - c * BLOCK_N, BLOCK_N) * PER_WORD

    x = tl.load(x_ptr + first * stride_xm + n, mask=(n < N) & (first < M), other=0)
    # Not `kept = x`: Triton treats two names of one value as loop-invariant and drops the update.
    kept = tl.where(n < N, x, 0)
    for m in tl.range(first, M + step, step):
        if m < M:
            inside = n < N if PER_WORD == 1 else (n < N)[:, None]
            mean, squares = all_moments(widen(x, DTYPE), inside, count, CENTERED)
            tl.store(of_chunk_ptr + m * chunks + c, pack(mean, squares))
        next_m = m + step
        next_x = tl.load(x_ptr + next_m * stride_xm + n, mask=(n < N) & (next_m < M), other=0)
        old_m = m - step
        if old_m >= first:
            of_row = of_chunk_ptr + old_m * chunks
            mean, squares = wait_for_row(of_row, chunks, N, BLOCK_N, BLOCK_C, PER_WORD, CENTERED)
            weight, bias = parameters(weight_ptr, bias_ptr, n, N, CENTERED)
            scale = tl.rsqrt(squares / (N * PER_WORD) + as_float(eps_bits))
            y = normalised(
                widen(kept, DTYPE), mean, scale, widen(weight, DTYPE), widen(bias, DTYPE), CENTERED
            )
            tl.store(y_ptr + old_m * N + n, narrow(y, DTYPE), mask=n < N)
        kept = x
        x = next_x


# --------------------------------------------------------------------------- Gluon
# As softmax's kernel, and the weights are in shared memory too.


@gluon.jit
def of_rows(words, there, count, N, eps_bits, CENTERED: gl.constexpr):
    """Mean and scale of each row, from the words of all its chunks (`combine`, row by row)."""
    mean = gl.where(there, words.to(gl.int32).to(gl.float32, bitcast=True), 0.0)
    squares = gl.where(there, -(words >> 32).to(gl.int32).to(gl.float32, bitcast=True), 0.0)
    of_all = gl.sum(mean, axis=0)
    if CENTERED:
        of_all = gl.sum(count * mean, axis=0) / N
        deviation = mean - of_all[None, :]
        squares += count * deviation * deviation
    return of_all, gl.rsqrt(gl.sum(squares, axis=0) / N + as_float(eps_bits))


@gluon.jit
def norm_gluon_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, M, packs, stride_packs, chunks, of_chunk_ptr, eps_bits,
    CENTERED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_C: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """As split: a program has the same BLOCK_N columns of many rows, and writes them one iteration later.

    An iteration has BLOCK_M rows, one per warp: a row's sums need no block barrier, and one warp polls its
    words. Two warps polling the same words could see different values.  Tiles are prefetched into a ring of
    STAGES stages in shared memory: two are in use, this iteration's and the last one's; the others are in
    flight.  Weights are in shared memory too, read once for all rows.  A thread reads only what it has copied
    itself, so it waits for no other thread's copies.

    Rows of x are 16-byte aligned; `packs` and `stride_packs` are N and x's stride in 16-byte vectors.
    """
    T: gl.constexpr = x_ptr.dtype.element_ty
    VEC: gl.constexpr = 128 // T.primitive_bitwidth
    TILE: gl.constexpr = gl.BlockedLayout([1, VEC], [1, 32], [BLOCK_M, 1], [1, 0])
    WORDS: gl.constexpr = gl.BlockedLayout([BLOCK_C // 32, 1], [32, 1], [1, BLOCK_M], [0, 1])
    DENSE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    N = packs * VEC
    c = gl.program_id(0) % chunks
    step = gl.num_programs(0) // chunks * BLOCK_M
    first = (gl.program_id(0) // chunks).to(gl.int64) * BLOCK_M
    r = gl.arange(0, BLOCK_M, gl.SliceLayout(1, TILE))
    n = c * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, TILE))[None, :]
    inside = n < N
    count = gl.minimum(N - c * BLOCK_N, BLOCK_N)
    every_r = gl.arange(0, BLOCK_M, gl.SliceLayout(0, WORDS))[None, :]
    every_c = gl.arange(0, BLOCK_C, gl.SliceLayout(1, WORDS))[:, None]
    every_count = gl.minimum(gl.maximum(N - every_c * BLOCK_N, 0), BLOCK_N).to(gl.float32)

    ring = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_N], DENSE)
    for turn in gl.static_range(STAGES - 1):
        rows = (first + turn * step + r)[:, None]
        fetch(ring, turn, x_ptr + rows * stride_packs * VEC + n, (rows < M) & inside, STAGES)
    BIAS: gl.constexpr = 1 if CENTERED else 0
    vectors = gl.allocate_shared_memory(T, [BIAS + 1, 1, BLOCK_N], DENSE)
    weight, bias = parameters(weight_ptr, bias_ptr, n, N, CENTERED)
    vectors.index(0).store(weight)
    vectors.index(BIAS).store(bias)

    turn = 0
    for m in range(first, M + step, step):
        old_m = m - step
        # Loaded now, used after the reduction, which takes as long as the load's latency.
        words = published(of_chunk_ptr, old_m + every_r, every_c, M, chunks)
        async_copy.wait_group(STAGES - 2)
        if m < M:
            x = ring.index(turn % STAGES).load(TILE).to(gl.float32)
            mean = gl.zeros([BLOCK_M], gl.float32, gl.SliceLayout(1, TILE))
            deviation = x
            if CENTERED:
                mean = gl.sum(x, axis=1) / count
                deviation = gl.where(inside, x - mean[:, None], 0.0)
            squares = gl.sum(deviation * deviation, axis=1)
            gl.store(of_chunk_ptr + (m + r) * chunks + c, pack(mean, squares), mask=m + r < M)
        if old_m >= 0:
            while gl.sum(gl.sum((words == 0).to(gl.int32), axis=0), axis=0) > 0:
                words = published(of_chunk_ptr, old_m + every_r, every_c, M, chunks)
            mean, scale = of_rows(words, every_c < chunks, every_count, N, eps_bits, CENTERED)
            mean = gl.convert_layout(mean, gl.SliceLayout(1, TILE), assert_trivial=True)[:, None]
            scale = gl.convert_layout(scale, gl.SliceLayout(1, TILE), assert_trivial=True)[:, None]
            x = ring.index((turn + STAGES - 1) % STAGES).load(TILE).to(gl.float32)
            weight, bias = vectors.index(0).load(TILE), vectors.index(BIAS).load(TILE)
            y = normalised(x, mean, scale, weight, bias, CENTERED)
            rows = (old_m + r)[:, None]
            gl.store(y_ptr + rows * N + n, y.to(T), mask=(rows < M) & inside)
        rows = (m + (STAGES - 1) * step + r)[:, None]
        fetch(ring, turn + STAGES - 1, x_ptr + rows * stride_packs * VEC + n, (rows < M) & inside, STAGES)
        turn += 1  # noqa: SIM113 - Triton has no enumerate


class Rows(NamedTuple):
    """The kernels' tensor arguments, and an output."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    y: torch.Tensor


def bits(value: float) -> int:
    """The bits of the nearest fp32."""
    return int.from_bytes(struct.pack("<f", value), "little", signed=True)


def checked(op: str, x: torch.Tensor, **parameters: torch.Tensor) -> Rows:
    """The arguments, copied where rows are not contiguous; without a bias the weight stands in, unread."""
    check_norm(op, x, **parameters)
    x = x if x.stride(1) == 1 or x.size(1) <= 1 else x.contiguous()
    weight, *bias = (values.contiguous() for values in parameters.values())
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return Rows(x, weight, bias[0] if bias else weight, y)


def online(op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    M, N = x.shape
    if rows.y.numel() == 0:
        return rows.y
    check_counts(N=N)
    BLOCK_N = min(4096, triton.next_power_of_2(N))
    num_warps = 16 if BLOCK_N == 4096 else 4
    CENTERED = "bias" in parameters
    norm_online_kernel[(M,)](
        *rows, N, rows.x.stride(0), bits(eps), CENTERED=CENTERED, BLOCK_N=BLOCK_N, num_warps=num_warps
    )
    return rows.y


ONEPASS_COLUMNS = 32768


def onepass(op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    M, N = x.shape
    if rows.y.numel() == 0:
        return rows.y
    if N > ONEPASS_COLUMNS:
        raise NotImplementedError(f"N={N}: registers hold rows of up to {ONEPASS_COLUMNS} columns")
    BLOCK_N = triton.next_power_of_2(N)
    BLOCK_M = max(1, min(4, 2048 // BLOCK_N))  # several short rows per program
    num_warps = max(4, BLOCK_N // 2048)  # 64 elements of a long row per thread
    norm_onepass_kernel[(triton.cdiv(M, BLOCK_M),)](
        *rows, M, N, rows.x.stride(0), bits(eps),
        CENTERED="bias" in parameters, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps,
    )  # fmt: skip
    return rows.y


def whole_words(x: torch.Tensor) -> None:
    """
    Raises:
        NotImplementedError: a row is not a whole number of 32-bit words.
    """
    if x.size(1) * x.element_size() % 4 != 0:
        raise NotImplementedError(f"N={x.size(1)}: elements of 16 bits are taken by twos")


def as_words(values: torch.Tensor) -> torch.Tensor:
    """The same memory as 32-bit words; a copy if pairs of elements are not adjacent and aligned."""
    return aligned(values, 4).view(torch.int32)


TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


PACKED_BYTES = 1 << 17


def packed(op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    y, size = rows.y, x.element_size()
    if y.numel() == 0:
        return y
    if x.size(1) * size > PACKED_BYTES:
        raise NotImplementedError(
            f"N={x.size(1)}: registers hold rows of up to {PACKED_BYTES // size} columns"
        )
    whole_words(x)
    words = as_words(rows.x)
    M, N = words.shape
    num_warps = min(32, max(4, triton.next_power_of_2(N) // 1024))  # 32 words per thread, 16-byte loads
    BLOCK_N = 128 * num_warps
    norm_packed_kernel[(M,)](
        words, rows.weight, rows.bias, y, N, words.stride(0), bits(eps),
        CENTERED="bias" in parameters, DTYPE=TYPES[x.dtype], BLOCK_N=BLOCK_N, TILES=triton.cdiv(N, BLOCK_N),
        num_warps=num_warps, maxnreg=64,
    )  # fmt: skip
    return y


def split(op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    y, DTYPE = rows.y, TYPES[x.dtype]
    if y.numel() == 0:
        return y
    whole_words(x)
    words = [as_words(values) for values in rows]
    (M, N), stride_xm = words[0].shape, words[0].stride(0)
    check_counts(M=M)
    num_warps = 4
    PROGRAMS = 4 if "bias" in parameters and x.element_size() == 2 else 5  # per multiprocessor
    BLOCK_N = columns_of_a_chunk(N, 2048)
    chunks = triton.cdiv(N, BLOCK_N)
    of_chunk = torch.zeros(M * chunks, dtype=torch.int64, device=x.device)
    # At least one word per thread: two threads polling one word could see different values.
    BLOCK_C = max(32 * num_warps, triton.next_power_of_2(chunks))
    arguments = (*words, M, N, stride_xm, chunks, of_chunk, bits(eps))
    options = {"CENTERED": "bias" in parameters, "DTYPE": DTYPE, "BLOCK_N": BLOCK_N, "BLOCK_C": BLOCK_C}
    launch = {**options, "num_warps": num_warps, "num_stages": 1}
    compiling = functools.partial(norm_split_kernel.warmup, *arguments, **launch)
    programs = resident_programs(compiling, x.device, 32 * num_warps, PROGRAMS, chunks)
    rows_at_a_time = min(programs // chunks, M)
    norm_split_kernel[(rows_at_a_time * chunks,)](*arguments, **launch)
    return y


def in_gluon(op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    if rows.y.numel() > 0:
        x = in_packs(rows.x)
        # Three tiles in the ring and 8 KB each of weight and bias leave room for two programs.
        share_rows(
            norm_gluon_kernel, x, rows._replace(x=x), (bits(eps),),
            CENTERED="bias" in parameters, BLOCK_M=4, PROGRAMS=2,
        )  # fmt: skip
    return rows.y
