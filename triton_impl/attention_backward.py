"""attention_backward in Triton: ``q, k, v, o, lse, do -> dq, dk, dv``.

Variants, slow to fast; ``cuda_impl/kernels/attention_backward.cuh`` has the first two under the same names:

* ``split``: a kernel for dk and dv loops over queries, one for dq loops over keys; deterministic
* ``fused``: one kernel loops over queries: scores are computed once, dq is summed by atomics
* ``pipelined``: as split, with TMA descriptors; tiles that need no mask have a loop of their own

With s = scale * q k^T, p = exp(s - lse), delta = rowsum(do * o) and ds = p * (do v^T - delta): dv = p^T do,
dk = scale * ds^T q, dq = scale * ds k.  A tile of p is recomputed from q, k and lse.

Kernels take all strides but that of D, which is 1.  Gradients are contiguous.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from compare.arguments import check_gradients
from compare.registry import implementation
from triton_impl.attention import descriptor
from triton_impl.counts import cdiv, grid_1d
from triton_impl.tma import for_tma

OP = "attention_backward"
HEAD_SIZES = (64, 128)
BLOCK_OWN = 128
"""Rows of a program's own tile: queries for dq, keys for dk and dv."""
BLOCK_LOOP = 64
"""Rows of the tiles that its loop loads; of queries D / 2, and D / 16 warps: 64 by 8, or 32 by 4."""
LARGEST_STRIDE = 1 << 23
"""Between positions: offsets within a tile are 32-bit."""
MOST = (1 << 31) - (1 << 16)
"""Maximum Sq + Skv: positions, up to the end of the last tile, are 32-bit."""


@triton.jit
def attention_backward_delta_kernel(
    o_ptr, do_ptr, lse_ptr, delta_ptr, lse2_ptr, Sq, Hq, pitch,
    stride_ob, stride_os, stride_oh, stride_dob, stride_dos, stride_doh,
    D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(do * o), and lse to base 2.  Grid: a program per BLOCK_M rows of a head, up to pitch.

    A row without keys has lse2 = +infinity, and so have the rows from Sq to pitch: p = exp2(s - lse2) is 0.
    """
    tiles = pitch // BLOCK_M
    head = tl.program_id(0) // tiles
    batch, h = (head // Hq).to(tl.int64), (head % Hq).to(tl.int64)
    i = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    d, inside = tl.arange(0, D), i < Sq
    o_ptrs = o_ptr + batch * stride_ob + h * stride_oh + i[:, None] * stride_os + d
    do_ptrs = do_ptr + batch * stride_dob + h * stride_doh + i[:, None] * stride_dos + d
    o = tl.load(o_ptrs, mask=inside[:, None], other=0.0).to(tl.float32)
    do = tl.load(do_ptrs, mask=inside[:, None], other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + head.to(tl.int64) * Sq + i, mask=inside, other=-float("inf"))
    row = head.to(tl.int64) * pitch + i
    tl.store(delta_ptr + row, tl.sum(o * do, axis=1))
    tl.store(lse2_ptr + row, tl.where(lse == -float("inf"), float("inf"), lse * 1.44269504))


@triton.jit
def load_rows(head_ptr, begin, rows, stride_s, S, D: tl.constexpr, FULL: tl.constexpr):
    """Rows ``begin + rows`` of a head; rows from S on are 0.  FULL: there are no such rows."""
    # Offsets within a tile are 32-bit: a 64-bit one per element would spill.
    ptrs = head_ptr + begin.to(tl.int64) * stride_s + rows[:, None] * stride_s + tl.arange(0, D)[None, :]
    if FULL:
        return tl.load(ptrs)
    return tl.load(ptrs, mask=(begin + rows < S)[:, None], other=0.0)


@triton.jit
def gradients_of_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, lse2_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    Sq, Skv, Hq, Hk, diagonal, pitch, scale,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    stride_dob, stride_dos, stride_doh,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FULL: tl.constexpr, MASKED: tl.constexpr,
    ADD_DQ: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys of a key head, over all queries of the heads that share it."""
    blocks = tl.cdiv(Skv, BLOCK_N)
    first_key = tl.program_id(0) % blocks * BLOCK_N
    kv_head, batch = (tl.program_id(0) // blocks) % Hk, (tl.program_id(0) // blocks // Hk).to(tl.int64)
    d = tl.arange(0, D)[None, :]
    i, j = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    k_head = k_ptr + batch * stride_kb + kv_head.to(tl.int64) * stride_kh
    v_head = v_ptr + batch * stride_vb + kv_head.to(tl.int64) * stride_vh
    k = load_rows(k_head, first_key, j, stride_ks, Skv, D, FULL)
    v = load_rows(v_head, first_key, j, stride_vs, Skv, D, FULL)
    dk = tl.zeros([BLOCK_N, D], tl.float32)
    dv = tl.zeros([BLOCK_N, D], tl.float32)
    for of_group in range(Hq // Hk):
        long_head = (kv_head * (Hq // Hk) + of_group).to(tl.int64)
        q_head = q_ptr + batch * stride_qb + long_head * stride_qh
        do_head = do_ptr + batch * stride_dob + long_head * stride_doh
        dq_head = dq_ptr + (batch * Sq * Hq + long_head) * D
        of_head = (batch * Hq + long_head) * pitch
        # From the first tile with a query that sees a key.
        for tile in tl.range(tl.maximum(first_key - diagonal, 0) // BLOCK_M, tl.cdiv(Sq, BLOCK_M)):
            first_query = tile * BLOCK_M
            q = load_rows(q_head, first_query, i, stride_qs, Sq, D, FULL)
            do = load_rows(do_head, first_query, i, stride_dos, Sq, D, FULL)
            lse2 = tl.load(lse2_ptr + of_head + first_query + i)
            delta = tl.load(delta_ptr + of_head + first_query + i)
            # Transposed, keys by queries, as the products for dk and dv need them.
            s = tl.dot(k, tl.trans(q))
            p = tl.exp2(s * (scale * 1.44269504) - lse2[None, :])
            if MASKED:  # keys past the end would add 0 times infinity to dq
                keys = tl.minimum(Skv, first_query + i + diagonal + 1)
                p = tl.where((first_key + j)[:, None] < keys[None, :], p, 0.0)
            dv += tl.dot(p.to(do.dtype), do)
            dp = tl.dot(v, tl.trans(do))
            ds = (p * (dp - delta[None, :])).to(q.dtype)
            dk += tl.dot(ds, q)
            if ADD_DQ:
                dq_ptrs = dq_head + first_query.to(tl.int64) * Hq * D + i[:, None] * (Hq * D) + d
                inside = (first_query + i < Sq)[:, None]
                tl.atomic_add(dq_ptrs, tl.dot(tl.trans(ds), k), mask=inside, sem="relaxed")

    row = (batch * Skv + first_key + j[:, None]) * Hk + kv_head
    inside = (first_key + j < Skv)[:, None]
    tl.store(dk_ptr + row * D + d, (dk * scale).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + row * D + d, dv.to(dv_ptr.dtype.element_ty), mask=inside)


@triton.jit
def attention_backward_split_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse2_ptr, delta_ptr, dk_ptr, dv_ptr, Sq, Skv, Hq, Hk, diagonal, pitch, scale,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    stride_dob, stride_dos, stride_doh,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FULL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Grid: a program per BLOCK_N keys of a key head."""
    gradients_of_keys(
        q_ptr, k_ptr, v_ptr, do_ptr, lse2_ptr, delta_ptr, delta_ptr, dk_ptr, dv_ptr,
        Sq, Skv, Hq, Hk, diagonal, pitch, scale,
        stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
        stride_dob, stride_dos, stride_doh, D, BLOCK_M, BLOCK_N, FULL, MASKED, False,
    )  # fmt: skip


@triton.jit
def attention_backward_split_dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse2_ptr, delta_ptr, dq_ptr, Sq, Skv, Hq, Hk, diagonal, pitch, scale,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    stride_dob, stride_dos, stride_doh,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FULL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Grid: a program per BLOCK_M queries of a head.  The last queries, with the most keys, start first."""
    blocks = tl.cdiv(Sq, BLOCK_M)
    first_query = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    head, batch = (tl.program_id(0) // blocks) % Hq, (tl.program_id(0) // blocks // Hq).to(tl.int64)
    long_head, kv_head = head.to(tl.int64), (head // (Hq // Hk)).to(tl.int64)
    d = tl.arange(0, D)[None, :]
    i, j = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    q_head = q_ptr + batch * stride_qb + long_head * stride_qh
    do_head = do_ptr + batch * stride_dob + long_head * stride_doh
    k_head = k_ptr + batch * stride_kb + kv_head * stride_kh
    v_head = v_ptr + batch * stride_vb + kv_head * stride_vh
    q = load_rows(q_head, first_query, i, stride_qs, Sq, D, FULL)
    do = load_rows(do_head, first_query, i, stride_dos, Sq, D, FULL)
    of_rows = (batch * Hq + long_head) * pitch + first_query
    lse2 = tl.load(lse2_ptr + of_rows + i)
    delta = tl.load(delta_ptr + of_rows + i)

    dq = tl.zeros([BLOCK_M, D], tl.float32)
    end = tl.maximum(tl.minimum(Skv, first_query + BLOCK_M + diagonal), 0)
    for tile in tl.range(0, tl.cdiv(end, BLOCK_N)):
        first_key = tile * BLOCK_N
        k = load_rows(k_head, first_key, j, stride_ks, Skv, D, FULL)
        v = load_rows(v_head, first_key, j, stride_vs, Skv, D, FULL)
        s = tl.dot(q, tl.trans(k))
        dp = tl.dot(do, tl.trans(v))
        ds = tl.exp2(s * (scale * 1.44269504) - lse2[:, None]) * (dp - delta[:, None])
        if MASKED:
            keys = tl.minimum(Skv, first_query + i + diagonal + 1)
            ds = tl.where((first_key + j)[None, :] < keys[:, None], ds, 0.0)
        dq += tl.dot(ds.to(k.dtype), k)
    row = (batch * Sq + first_query + i[:, None]) * Hq + head
    tl.store(
        dq_ptr + row * D + d, (dq * scale).to(dq_ptr.dtype.element_ty), mask=(first_query + i < Sq)[:, None]
    )


@triton.jit
def attention_backward_fused_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse2_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    Sq, Skv, Hq, Hk, diagonal, pitch, scale,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    stride_dob, stride_dos, stride_doh,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FULL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Grid: a program per BLOCK_N keys of a key head.  dq is in fp32, and 0 before."""
    gradients_of_keys(
        q_ptr, k_ptr, v_ptr, do_ptr, lse2_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
        Sq, Skv, Hq, Hk, diagonal, pitch, scale,
        stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
        stride_dob, stride_dos, stride_doh, D, BLOCK_M, BLOCK_N, FULL, MASKED, True,
    )  # fmt: skip


@triton.jit
def longest_first(blocks, CAUSAL: tl.constexpr):
    """The program's block and head, of ``blocks`` a head.

    Causal: by section of 16 heads, and in it from the first block, which has the most work.  Else by head.
    """
    MOST: tl.constexpr = 16 if CAUSAL else 1
    section = tl.program_id(0) // (MOST * blocks) * MOST
    in_section = tl.program_id(0) % (MOST * blocks)
    width = tl.minimum(MOST, tl.num_programs(0) // blocks - section)
    return in_section // width, section + in_section % width


@triton.jit
def visit_queries_by_tma(
    k, v, dk, dv, q_desc, do_desc, lse2_ptr, delta_ptr, batch, head, begin, end, first_key, Skv, diagonal,
    factor, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Add what tiles ``begin`` to ``end`` of a head's queries give to dk and dv."""
    i, j = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    for tile in tl.range(begin, end, num_stages=STAGES):
        first_query = tile * BLOCK_M
        q = q_desc.load([batch, head, first_query, 0]).reshape([BLOCK_M, D])
        do = do_desc.load([batch, head, first_query, 0]).reshape([BLOCK_M, D])
        lse2 = tl.load(lse2_ptr + first_query + i)
        delta = tl.load(delta_ptr + first_query + i)
        s = tl.dot(k, tl.trans(q))
        p = tl.exp2(s * factor - lse2[None, :])
        if MASKED:
            keys = tl.minimum(Skv, first_query + i + diagonal + 1)
            p = tl.where((first_key + j)[:, None] < keys[None, :], p, 0.0)
        dp = tl.dot(v, tl.trans(do))
        dv = tl.dot(p.to(do.dtype), do, dv)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk)
    return dk, dv


@triton.jit
def attention_backward_pipelined_dkdv_kernel(
    q_desc, k_desc, v_desc, do_desc, lse2_ptr, delta_ptr, dk_ptr, dv_ptr,
    Sq, Skv, Hq, Hk, diagonal, pitch, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: a program per BLOCK_N keys of a key head.  Descriptors: [B,H,S,D], tiles of a head."""
    block, of_batches = longest_first(tl.cdiv(Skv, BLOCK_N), CAUSAL)
    first_key = block * BLOCK_N
    kv_head, batch = of_batches % Hk, of_batches // Hk
    k = k_desc.load([batch, kv_head, first_key, 0]).reshape([BLOCK_N, D])
    v = v_desc.load([batch, kv_head, first_key, 0]).reshape([BLOCK_N, D])
    dk = tl.zeros([BLOCK_N, D], tl.float32)
    dv = tl.zeros([BLOCK_N, D], tl.float32)
    tiles = tl.cdiv(Sq, BLOCK_M)
    begin = tl.minimum(tl.maximum(first_key - diagonal, 0) // BLOCK_M, tiles)
    # Tiles of queries that see only some of the keys come first.
    whole = tl.maximum(tl.minimum(tl.cdiv(first_key + BLOCK_N - 1 - diagonal, BLOCK_M), tiles), begin)
    whole = tl.where(first_key + BLOCK_N > Skv, tiles, whole)
    for of_group in range(Hq // Hk):
        head = kv_head * (Hq // Hk) + of_group
        of_head = (batch * Hq + head).to(tl.int64) * pitch
        dk, dv = visit_queries_by_tma(
            k, v, dk, dv, q_desc, do_desc, lse2_ptr + of_head, delta_ptr + of_head, batch, head,
            begin, whole, first_key, Skv, diagonal, scale * 1.44269504, D, BLOCK_M, BLOCK_N, True, STAGES,
        )  # fmt: skip
        dk, dv = visit_queries_by_tma(
            k, v, dk, dv, q_desc, do_desc, lse2_ptr + of_head, delta_ptr + of_head, batch, head,
            whole, tiles, first_key, Skv, diagonal, scale * 1.44269504, D, BLOCK_M, BLOCK_N, False, STAGES,
        )  # fmt: skip
    j, d = tl.arange(0, BLOCK_N), tl.arange(0, D)[None, :]
    row = (batch.to(tl.int64) * Skv + first_key + j[:, None]) * Hk + kv_head
    inside = (first_key + j < Skv)[:, None]
    tl.store(dk_ptr + row * D + d, (dk * scale).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + row * D + d, dv.to(dv_ptr.dtype.element_ty), mask=inside)


@triton.jit
def visit_keys_by_tma(
    q, do, lse2, delta, dq, k_desc, v_desc, batch, kv_head, begin, end, first_query, Skv, diagonal, factor,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add what tiles ``begin`` to ``end`` of a head's keys give to dq."""
    i, j = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    for tile in tl.range(begin, end, num_stages=STAGES):
        first_key = tile * BLOCK_N
        k = k_desc.load([batch, kv_head, first_key, 0]).reshape([BLOCK_N, D])
        v = v_desc.load([batch, kv_head, first_key, 0]).reshape([BLOCK_N, D])
        s = tl.dot(q, tl.trans(k))
        dp = tl.dot(do, tl.trans(v))
        ds = tl.exp2(s * factor - lse2[:, None]) * (dp - delta[:, None])
        if MASKED:
            keys = tl.minimum(Skv, first_query + i + diagonal + 1)
            ds = tl.where((first_key + j)[None, :] < keys[:, None], ds, 0.0)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def attention_backward_pipelined_dq_kernel(
    q_desc, k_desc, v_desc, do_desc, lse2_ptr, delta_ptr, dq_ptr, Sq, Skv, Hq, Hk, diagonal, pitch, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: a program per BLOCK_M queries of a head.  The last queries have the most keys."""
    blocks = tl.cdiv(Sq, BLOCK_M)
    block, of_batches = longest_first(blocks, CAUSAL)
    first_query = (blocks - 1 - block) * BLOCK_M
    head, batch = of_batches % Hq, of_batches // Hq
    q = q_desc.load([batch, head, first_query, 0]).reshape([BLOCK_M, D])
    do = do_desc.load([batch, head, first_query, 0]).reshape([BLOCK_M, D])
    i, d = tl.arange(0, BLOCK_M), tl.arange(0, D)[None, :]
    of_rows = of_batches.to(tl.int64) * pitch + first_query
    lse2 = tl.load(lse2_ptr + of_rows + i)
    delta = tl.load(delta_ptr + of_rows + i)
    # Tiles of keys that all queries see come first.
    end = tl.cdiv(tl.maximum(tl.minimum(Skv, first_query + BLOCK_M + diagonal), 0), BLOCK_N)
    whole = tl.maximum(tl.minimum(Skv, first_query + diagonal + 1), 0) // BLOCK_N
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    kv_head, factor = head // (Hq // Hk), scale * 1.44269504
    dq = visit_keys_by_tma(
        q, do, lse2, delta, dq, k_desc, v_desc, batch, kv_head, 0, whole, first_query, Skv, diagonal, factor,
        D, BLOCK_M, BLOCK_N, False, STAGES,
    )  # fmt: skip
    dq = visit_keys_by_tma(
        q, do, lse2, delta, dq, k_desc, v_desc, batch, kv_head, whole, end, first_query, Skv, diagonal,
        factor, D, BLOCK_M, BLOCK_N, True, STAGES,
    )  # fmt: skip
    row = (batch.to(tl.int64) * Sq + first_query + i[:, None]) * Hq + head
    inside = (first_query + i < Sq)[:, None]
    tl.store(dq_ptr + row * D + d, (dq * scale).to(dq_ptr.dtype.element_ty), mask=inside)


@triton.jit
def attention_backward_round_kernel(sum_ptr, dq_ptr, elements, scale, BLOCK_SIZE: tl.constexpr):
    """dq = scale * sum, rounded once."""
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    dq = tl.load(sum_ptr + n, mask=n < elements) * scale
    tl.store(dq_ptr + n, dq.to(dq_ptr.dtype.element_ty), mask=n < elements)


Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Call:
    """Checked arguments, new gradients, and what delta's kernel has computed."""

    inputs: tuple[torch.Tensor, ...]
    """q, k, v, do, lse2 and delta."""
    gradients: Gradients
    sizes: tuple[int | float, ...]
    """Sq to scale, then strides, as every kernel takes them."""
    key_blocks: int
    query_blocks: int
    constants: dict[str, int | bool]
    BLOCK_M: int
    """Queries of a tile in the loop for dk and dv."""


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
) -> Call:
    """Check the arguments, and compute delta and lse2 if there is any row."""
    check_gradients(OP, q, k, v, o, lse, do, HEAD_SIZES)
    if q.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")
    B, Sq, Hq, D = q.shape
    Skv, Hk = k.shape[1], k.shape[2]
    if Sq + Skv > MOST:
        raise NotImplementedError(f"Sq={Sq}, Skv={Skv}: at most {MOST} together")
    if Hq * D > LARGEST_STRIDE:
        raise NotImplementedError(f"Hq={Hq}: heads of D={D} are at most {LARGEST_STRIDE // D}")
    gradients = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    q, k, v, o, do = (
        x if x.stride(3) == 1 and x.stride(1) <= LARGEST_STRIDE else x.contiguous() for x in (q, k, v, o, do)
    )
    pitch = cdiv(Sq, BLOCK_OWN) * BLOCK_OWN
    delta, lse2 = (torch.empty(B * Hq * pitch, dtype=torch.float32, device=q.device) for _ in range(2))
    if delta.numel() > 0:
        attention_backward_delta_kernel[grid_1d(delta.numel() // BLOCK_LOOP)](
            o, do, lse.contiguous(), delta, lse2, Sq, Hq, pitch, *o.stride()[:3], *do.stride()[:3],
            D=D, BLOCK_M=BLOCK_LOOP, num_warps=4,
        )  # fmt: skip
    strides = [step for x in (q, k, v, do) for step in x.stride()[:3]]
    diagonal = Skv - Sq if causal else Skv
    FULL = Sq % BLOCK_OWN == Skv % BLOCK_OWN == 0
    constants = {"D": D, "FULL": FULL, "MASKED": causal or not FULL, "num_warps": D // 16, "num_stages": 3}
    return Call(
        (q, k, v, do, lse2, delta),
        gradients,
        (Sq, Skv, Hq, Hk, diagonal, pitch, 1 / math.sqrt(D), *strides),
        cdiv(Skv, BLOCK_OWN) * B * Hk,
        cdiv(Sq, BLOCK_OWN) * B * Hq,
        constants,
        D // 2,
    )


@implementation(OP, "triton.split", level="tensor_core", requires="sm_80")
def split(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """A kernel for dk and dv, and one for dq."""
    call = prepare(q, k, v, o, lse, do, causal)
    dq, dk, dv = call.gradients
    if dq.numel() == 0:
        return dq, dk.zero_(), dv.zero_()
    if dk.numel() > 0:
        attention_backward_split_dkdv_kernel[grid_1d(call.key_blocks)](
            *call.inputs, dk, dv, *call.sizes, BLOCK_M=call.BLOCK_M, BLOCK_N=BLOCK_OWN, **call.constants
        )
    attention_backward_split_dq_kernel[grid_1d(call.query_blocks)](
        *call.inputs, dq, *call.sizes, BLOCK_M=BLOCK_OWN, BLOCK_N=BLOCK_LOOP, **call.constants
    )
    return call.gradients


@implementation(OP, "triton.fused", level="tensor_core", requires="sm_80", deterministic=False)
def fused(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """One kernel; dq is summed in fp32 by atomics and rounded by another."""
    call = prepare(q, k, v, o, lse, do, causal)
    dq, dk, dv = call.gradients
    if dq.numel() == 0:
        return dq, dk.zero_(), dv.zero_()
    dq_sum = torch.zeros(dq.shape, dtype=torch.float32, device=dq.device)
    if dk.numel() > 0:
        attention_backward_fused_kernel[grid_1d(call.key_blocks)](
            *call.inputs,
            dq_sum,
            dk,
            dv,
            *call.sizes,
            BLOCK_M=call.BLOCK_M,
            BLOCK_N=BLOCK_OWN,
            **call.constants,
        )
    BLOCK_SIZE = 1024
    grid = (cdiv(dq.numel(), BLOCK_SIZE),)
    attention_backward_round_kernel[grid](
        dq_sum, dq, dq.numel(), 1 / math.sqrt(q.shape[3]), BLOCK_SIZE=BLOCK_SIZE
    )
    return call.gradients


@implementation(OP, "triton.pipelined", level="hopper", requires="sm_90")
def pipelined(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """As split, with tiles loaded by TMA, and a mask for those tiles alone that need one."""
    call = prepare(q, k, v, o, lse, do, causal)
    dq, dk, dv = call.gradients
    if dq.numel() == 0 or dk.numel() == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    q, k, v, do, lse2, delta = call.inputs
    q, k, v, do = (for_tma(x) for x in (q, k, v, do))
    (B, Sq, Hq, D), (_, Skv, Hk, _) = q.shape, k.shape
    OWN, LOOP = D, D // 2  # rows of a program's own tile, and of those that its loop loads
    constants = {"D": D, "CAUSAL": causal, "STAGES": 3, "num_warps": D // 16}
    loop_of_queries = [descriptor(x, rows) for x, rows in ((q, LOOP), (k, OWN), (v, OWN), (do, LOOP))]
    attention_backward_pipelined_dkdv_kernel[grid_1d(cdiv(Skv, OWN) * B * Hk)](
        *loop_of_queries, lse2, delta, dk, dv, *call.sizes[:7], BLOCK_M=LOOP, BLOCK_N=OWN, **constants
    )
    loop_of_keys = [descriptor(x, rows) for x, rows in ((q, OWN), (k, LOOP), (v, LOOP), (do, OWN))]
    attention_backward_pipelined_dq_kernel[grid_1d(cdiv(Sq, OWN) * B * Hq)](
        *loop_of_keys, lse2, delta, dq, *call.sizes[:7], BLOCK_M=OWN, BLOCK_N=LOOP, **constants
    )
    return call.gradients
