"""attention: tiles of 32 queries and 32 keys, with an online softmax."""

import math

import torch
import triton
import triton.language as tl

from compare.registry import implementation


@triton.jit
def attend(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, Sq, Skv, Hq, Hk, qb, qs, qh, kb, ks, kh, vb, vs, vh, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    key_head = head // (Hq // Hk)
    m, d = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, D)
    rows, columns = m[:, None], d[None, :]
    q = tl.load(q_ptr + batch * qb + rows * qs + head * qh + columns, mask=rows < Sq, other=0.0)
    row_max, total = tl.full((TILE,), -float("inf"), tl.float32), tl.zeros((TILE,), tl.float32)
    o = tl.zeros((TILE, D), tl.float32)
    for begin in range(0, Skv, TILE):
        n = begin + tl.arange(0, TILE)
        inside = n[:, None] < Skv
        k = tl.load(k_ptr + batch * kb + n[:, None] * ks + key_head * kh + columns, mask=inside, other=0.0)
        v = tl.load(v_ptr + batch * vb + n[:, None] * vs + key_head * vh + columns, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(n[None, :] < Skv, scores, -float("inf"))
        if CAUSAL:
            scores = tl.where(n[None, :] <= rows + Skv - Sq, scores, -float("inf"))
        larger = tl.maximum(row_max, tl.max(scores, 1))
        shift = tl.where(larger == -float("inf"), 0.0, larger)
        weights = tl.exp(scores - shift[:, None])
        rescale = tl.exp(row_max - shift)
        o = o * rescale[:, None] + tl.dot(weights, v.to(tl.float32), input_precision="ieee")
        total = total * rescale + tl.sum(weights, 1)
        row_max = larger
    o = o / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(o_ptr + ((batch * Sq + rows) * Hq + head) * D + columns, o, mask=rows < Sq)
    tl.store(lse_ptr + (batch * Hq + head) * Sq + m, row_max + tl.log(total), mask=m < Sq)


@implementation("attention", "triton.mine", level="tiled")
def mine(q, k, v, causal):
    B, Sq, Hq, D = q.shape
    Skv, Hk = k.shape[1:3]
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    o = torch.empty((B, Sq, Hq, D), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Sq), dtype=torch.float32, device=q.device)
    if o.numel():
        strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
        grid = (triton.cdiv(Sq, 32), Hq, B)
        sizes = (Sq, Skv, Hq, Hk)
        attend[grid](q, k, v, o, lse, *sizes, *strides, 1 / math.sqrt(D), CAUSAL=causal, D=D, TILE=32)
    return o, lse
