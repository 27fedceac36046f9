"""decode_attention in Triton, over a paged cache of keys and values.

``q[B,1,Hq,D], k_pages[P,PAGE,Hk,D], v_pages[P,PAGE,Hk,D], block_table[B,pages], lengths[B] -> o[B,1,Hq,D]``

Variants, slow to fast; ``cuda_impl/kernels/decode_attention.cuh`` has the same under the same names:

* ``naive``: a program per query head: query heads that share a key head each read its keys and values
* ``grouped``: a program per key head: its query heads are the rows of one tile; keys are read once
* ``split``: several programs share a key head's tokens, and a second kernel combines their results
* ``pipelined``: as split, and the compiler keeps the next tiles in flight

Token n of sequence b is in slot n % PAGE of page block_table[b, n / PAGE].  Nothing is read
behind the end of a sequence.  Softmax is in base 2: ``scale_log2`` is log2(e) / sqrt(D).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl

from compare.arguments import check_pages
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, grid_1d, next_power_of_2
from triton_impl.softmax import finite_shift


@triton.jit
def decode_attention_naive_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, o_ptr, Hq, G, pages, scale_log2,
    stride_qb, stride_qh, stride_kp, stride_kn, stride_kh, stride_vp, stride_vn, stride_vh,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: program b * Hq + h for query head h of sequence b, which uses key head h // G."""
    b = (tl.program_id(0) // Hq).to(tl.int64)
    h = (tl.program_id(0) % Hq).to(tl.int64)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + d).to(tl.float32)
    k_ptr += h // G * stride_kh
    v_ptr += h // G * stride_vh
    length = tl.load(lengths_ptr + b)
    row_max = tl.full([1], -float("inf"), tl.float32)
    row_sum = tl.zeros([1], tl.float32)
    o = tl.zeros([D], tl.float32)
    for begin in range(0, length, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        inside = n < length
        page = tl.load(table_ptr + b * pages + n // PAGE, mask=inside, other=0).to(tl.int64)
        slot = n % PAGE
        k_rows = k_ptr + (page * stride_kp + slot * stride_kn)[:, None] + d[None, :]
        v_rows = v_ptr + (page * stride_vp + slot * stride_vn)[:, None] + d[None, :]
        k = tl.load(k_rows, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_rows, mask=inside[:, None], other=0.0).to(tl.float32)
        score = tl.where(inside, tl.sum(q[None, :] * k, axis=1) * scale_log2, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(score, axis=0, keep_dims=True))
        shift = finite_shift(new_max)
        rescale, p = tl.exp2(row_max - shift), tl.exp2(score - shift)
        row_max = new_max
        row_sum = row_sum * rescale + tl.sum(p, axis=0, keep_dims=True)
        o = o * rescale + tl.sum(p[:, None] * v, axis=0)
    o = tl.where(row_sum == 0.0, 0.0, o / row_sum)
    tl.store(o_ptr + tl.program_id(0).to(tl.int64) * D + d, o.to(o_ptr.dtype.element_ty))


@triton.jit
def attend(
    q, k_ptr, v_ptr, table_ptr, first, end, scale_log2, stride_kp, stride_kn, stride_vp, stride_vn,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Online softmax of the query heads q[HEADS,D] over the tokens from first to end.

    Returns o[HEADS,D], of which every row is still to be divided by its sum, the maximum and the sum.
    """
    HEADS: tl.constexpr = q.shape[0]
    d = tl.arange(0, D)
    row_max = tl.full([HEADS], -float("inf"), tl.float32)
    row_sum = tl.zeros([HEADS], tl.float32)
    o = tl.zeros([HEADS, D], tl.float32)
    n = first + tl.arange(0, BLOCK_N)
    page = tl.load(table_ptr + n // PAGE, mask=n < end, other=0)
    for begin in tl.range(first, end, BLOCK_N, num_stages=STAGES):
        n = begin + tl.arange(0, BLOCK_N)
        inside = n < end
        page, slot = page.to(tl.int64), n % PAGE
        k_rows = k_ptr + (page * stride_kp + slot * stride_kn)[:, None] + d[None, :]
        v_rows = v_ptr + (page * stride_vp + slot * stride_vn)[:, None] + d[None, :]
        k = tl.load(k_rows, mask=inside[:, None], other=0.0)
        v = tl.load(v_rows, mask=inside[:, None], other=0.0)
        # An iteration ahead: else half of the stages would wait for page numbers.
        page = tl.load(table_ptr + (n + BLOCK_N) // PAGE, mask=n + BLOCK_N < end, other=0)
        score = tl.where(inside[None, :], tl.dot(q, k.T) * scale_log2, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(score, axis=1))
        shift = finite_shift(new_max)
        rescale, p = tl.exp2(row_max - shift), tl.exp2(score - shift[:, None])
        row_max = new_max
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        o = tl.dot(p.to(v.dtype), v, o * rescale[:, None])
    return o, row_max, row_sum


@triton.jit
def decode_attention_grouped_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, o_ptr, Hk, G, groups, pages, scale_log2,
    stride_qb, stride_qh, stride_kp, stride_kn, stride_kh, stride_vp, stride_vn, stride_vh,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Grid: program (b * groups + group) * Hk + hk for up to HEADS of the G query heads of key head hk."""
    hk = (tl.program_id(0) % Hk).to(tl.int64)
    group = tl.program_id(0) // Hk % groups
    b = (tl.program_id(0) // Hk // groups).to(tl.int64)
    head = group * HEADS + tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, D)[None, :]
    h = hk * G + head
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + d, mask=head < G, other=0.0)
    o, _, row_sum = attend(
        q, k_ptr + hk * stride_kh, v_ptr + hk * stride_vh, table_ptr + b * pages, 0, tl.load(lengths_ptr + b),
        scale_log2, stride_kp, stride_kn, stride_vp, stride_vn, D, PAGE, BLOCK_N, 1,
    )  # fmt: skip
    o = tl.where(row_sum[:, None] == 0.0, 0.0, o / row_sum[:, None])
    tl.store(o_ptr + (b * Hk * G + h) * D + d, o.to(o_ptr.dtype.element_ty), mask=head < G)


@triton.jit
def decode_attention_split_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, o_part_ptr, lse_part_ptr, splits, Hk, G, groups, pages,
    scale_log2, stride_qb, stride_qh, stride_kp, stride_kn, stride_kh, stride_vp, stride_vn, stride_vh,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: program ((b * splits + split) * groups + group) * Hk + hk.

    A split has the same whole tiles of BLOCK_N in every sequence, so that programs have equal work; those
    behind the end of a short sequence end at once.  Writes o_part[B,Hq,splits,D] and
    lse_part[B,Hq,splits], in fp32 and base 2; of a split without tokens lse_part is -inf.
    """
    hk = (tl.program_id(0) % Hk).to(tl.int64)
    group = tl.program_id(0) // Hk % groups
    split = tl.program_id(0) // Hk // groups % splits
    b = (tl.program_id(0) // Hk // groups // splits).to(tl.int64)
    head = group * HEADS + tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, D)[None, :]
    h = hk * G + head
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + d, mask=head < G, other=0.0)
    length = tl.load(lengths_ptr + b)
    each = tl.cdiv(tl.cdiv(pages * PAGE, BLOCK_N), splits) * BLOCK_N
    o, row_max, row_sum = attend(
        q, k_ptr + hk * stride_kh, v_ptr + hk * stride_vh, table_ptr + b * pages, split * each,
        tl.minimum(split * each + each, length), scale_log2, stride_kp, stride_kn, stride_vp, stride_vn,
        D, PAGE, BLOCK_N, STAGES,
    )  # fmt: skip
    o = tl.where(row_sum[:, None] == 0.0, 0.0, o / row_sum[:, None])
    lse = finite_shift(row_max) + tl.log2(row_sum)
    part = (b * Hk * G + h) * splits + split
    tl.store(o_part_ptr + part * D + d, o, mask=head < G)
    tl.store(lse_part_ptr + part, lse[:, None], mask=head < G)


@triton.jit
def decode_attention_combine_kernel(
    o_part_ptr, lse_part_ptr, o_ptr, splits, D: tl.constexpr, BLOCK_SPLITS: tl.constexpr
):
    """Grid: program b * Hq + h."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    maximum = tl.full([1], -float("inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    o = tl.zeros([D], tl.float32)
    for begin in range(0, splits, BLOCK_SPLITS):
        split = begin + tl.arange(0, BLOCK_SPLITS)
        inside = split < splits
        lse = tl.load(lse_part_ptr + row * splits + split, mask=inside, other=-float("inf"))
        parts = o_part_ptr + (row * splits + split)[:, None] * D + d[None, :]
        part = tl.load(parts, mask=inside[:, None], other=0.0)
        new_max = tl.maximum(maximum, tl.max(lse, axis=0, keep_dims=True))
        shift = finite_shift(new_max)
        rescale, weight = tl.exp2(maximum - shift), tl.exp2(lse - shift)
        maximum = new_max
        total = total * rescale + tl.sum(weight, axis=0, keep_dims=True)
        o = o * rescale + tl.sum(weight[:, None] * part, axis=0)
    o = tl.where(total == 0.0, 0.0, o / total)
    tl.store(o_ptr + row * D + d, o.to(o_ptr.dtype.element_ty))


def vectors(x: torch.Tensor) -> torch.Tensor:
    """``x``, or a copy where its heads are not contiguous 16-byte vectors."""
    pack = 16 // x.element_size()
    aligned = x.data_ptr() % 16 == 0 and all(stride % pack == 0 for stride in x.stride()[:-1])
    return x if aligned and x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


MOST_TOKENS = (1 << 31) - (1 << 20)
"""Of a sequence: positions, up to the end of the last split, are 32-bit."""


def ready(*arguments: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """The inputs as the kernels read them, and an uninitialised output.

    Raises:
        NotImplementedError: a sequence's pages may hold too many tokens, or an offset within a page passes
            2^31 - 1. 64-bit offsets would take 144 registers instead of 124 in `grouped` with D = 128.
    """
    check_pages("decode_attention", *arguments)
    q, k, v, table, lengths = arguments
    if (tokens := table.shape[1] * k.shape[1]) > MOST_TOKENS:
        raise NotImplementedError(f"{tokens} tokens of a sequence: at most {MOST_TOKENS}")
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if o.numel() == 0:
        return (q, k, v, table, lengths), o
    q, k, v = vectors(q), vectors(k), vectors(v)
    for name, x in (("k_pages", k), ("v_pages", v)):
        if (largest := (x.shape[1] - 1) * x.stride(1)) >= 1 << 31:
            raise NotImplementedError(
                f"{name}: a page's tokens are up to {largest} elements apart; offsets within it are 32-bit"
            )
    return (q, k, v, table.contiguous(), lengths.contiguous()), o


def layout(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> tuple[Any, ...]:
    """Pages of a sequence, the scale and strides."""
    scale_log2 = math.log2(math.e) / math.sqrt(q.shape[3])
    return table.shape[1], scale_log2, q.stride(0), q.stride(2), *k.stride()[:3], *v.stride()[:3]


BLOCK_N, HEADS = 64, 16


@implementation("decode_attention", "triton.naive", level="naive")
def naive(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """A program per query head."""
    inputs, o = ready(q, k_pages, v_pages, block_table, lengths)
    if o.numel() == 0:
        return o
    B, _, Hq, D = q.shape
    _, PAGE, Hk, _ = k_pages.shape
    sizes = (Hq, Hq // Hk, *layout(*inputs[:4]))
    decode_attention_naive_kernel[grid_1d(B * Hq)](
        *inputs, o, *sizes, D=D, PAGE=PAGE, BLOCK_N=BLOCK_N // 2, num_warps=4
    )
    return o


def check_tensor_cores(x: torch.Tensor) -> None:
    """Raise NotImplementedError for a dtype that tensor cores do not multiply as it is."""
    if x.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")


@implementation("decode_attention", "triton.grouped", level="tensor_core")
def grouped(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """A program per key head: its query heads are the rows of one tile."""
    inputs, o = ready(q, k_pages, v_pages, block_table, lengths)
    check_tensor_cores(q)
    if o.numel() == 0:
        return o
    B, _, Hq, D = q.shape
    _, PAGE, Hk, _ = k_pages.shape
    groups = cdiv(Hq // Hk, HEADS)
    sizes = (Hk, Hq // Hk, groups, *layout(*inputs[:4]))
    decode_attention_grouped_kernel[grid_1d(B * groups * Hk)](
        *inputs, o, *sizes, D=D, PAGE=PAGE, BLOCK_N=BLOCK_N, HEADS=HEADS, num_warps=4
    )
    return o


@functools.cache
def splits_of(units: int, tiles: int, resident: int, sequences: int) -> int:
    """How many programs share a unit's tiles: the fewest with which the last wave is nearly full.

    Args:
        resident: programs that run at once.
        sequences: of several, each has its own length. Four waves, of 16 tiles or more each, balance them.

    Chosen from shapes alone: lengths are on the GPU, and the launch does not wait for them.
    """

    def efficiency(splits: int) -> float:
        return units * splits / (cdiv(units * splits, resident) * resident)

    least = max(1, min(cdiv(4 * resident, units), tiles // 16)) if sequences > 1 else 1
    candidates = range(least, max(least, min(tiles, 4 * cdiv(resident, units))) + 1)
    best = max(map(efficiency, candidates))
    return next(splits for splits in candidates if efficiency(splits) >= 0.95 * best)


def split_and_combine(inputs: tuple[torch.Tensor, ...], o: torch.Tensor, STAGES: int) -> None:
    """Launch split's kernel, and the one that combines its parts."""
    q, k, _, table, _ = inputs
    B, _, Hq, D = q.shape
    _, PAGE, Hk, _ = k.shape
    groups = cdiv(Hq // Hk, HEADS)
    units, tiles = B * groups * Hk, cdiv(table.shape[1] * PAGE, BLOCK_N)
    # Resident per multiprocessor: pipelined's have 72 KB of 228 with D = 128. CUDA's 256 // D are limited by
    # registers: 186 per thread.
    BLOCKS = 384 // D
    splits = splits_of(units, tiles, BLOCKS * multiprocessors(q.device), B)
    o_part = torch.empty((B, Hq, splits, D), dtype=torch.float32, device=q.device)
    lse_part = torch.empty((B, Hq, splits), dtype=torch.float32, device=q.device)
    sizes = (splits, Hk, Hq // Hk, groups, *layout(*inputs[:4]))
    decode_attention_split_kernel[grid_1d(units * splits)](
        *inputs,
        o_part,
        lse_part,
        *sizes,
        D=D,
        PAGE=PAGE,
        BLOCK_N=BLOCK_N,
        HEADS=HEADS,
        STAGES=STAGES,
        num_warps=4,
    )
    # One more than splits: beside a row of NaN there is always a -inf, because the interpreter warns of a
    # maximum of nothing else.
    BLOCK_SPLITS = min(16, next_power_of_2(splits + 1))
    decode_attention_combine_kernel[grid_1d(B * Hq)](
        o_part, lse_part, o, splits, D=D, BLOCK_SPLITS=BLOCK_SPLITS, num_warps=4
    )


@implementation("decode_attention", "triton.split", level="tensor_core")
def split(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Several programs share a key head's tokens; a second kernel combines their results."""
    inputs, o = ready(q, k_pages, v_pages, block_table, lengths)
    check_tensor_cores(q)
    if o.numel() > 0:
        split_and_combine(inputs, o, 1)
    return o


@implementation(
    "decode_attention",
    "triton.pipelined",
    level="tensor_core",
    requires="sm_80",
    tunable={"STAGES": (2, 3, 4)},
)
def pipelined(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    STAGES: int = 3,
) -> torch.Tensor:
    """As split, with STAGES tiles of keys and values: one is multiplied while the next are loaded."""
    inputs, o = ready(q, k_pages, v_pages, block_table, lengths)
    check_tensor_cores(q)
    if o.numel() > 0:
        split_and_combine(inputs, o, STAGES)
    return o
