"""attention in Triton: ``q[B,Sq,Hq,D], k[B,Skv,Hk,D], v[B,Skv,Hk,D] -> o[B,Sq,Hq,D], lse[B,Hq,Sq]``.

Variants, slow to fast; those also in ``cuda_impl/kernels/attention/`` have the same name there:

* ``naive``: three kernels: scores to memory, softmax of each row, times v; sums one term per iteration
* ``tensor_core``: FlashAttention-2: one program per tile of queries, ``tl.dot``, scores stay in registers
* ``pipelined``: as tensor_core, k and v loaded by TMA, several tiles ahead
* ``gluon``: CUDA's persistent in Gluon, Triton's lower-level language: other warps issue the loads, softmax
  runs under a product, and one program per multiprocessor computes tile after tile; sm_90a

The keys' tiles are visited once, with a running maximum and sum of each row (online softmax).  A causal row
i sees the keys j <= i + Skv - Sq.  Rows that see none are 0 with an lse of -inf.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from compare.arguments import check_queries
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, grid_1d
from triton_impl.tma import for_tma

LN_2 = tl.constexpr(math.log(2))
LOG2_E = math.log2(math.e)


# --------------------------------------------------------------------------- naive


@triton.jit
def attention_scores_kernel(
    q_ptr, k_ptr, s_ptr, Sq, Skv, Hq, group, scale, D,
    stride_qb, stride_qm, stride_qh, stride_qd, stride_kb, stride_kn, stride_kh, stride_kd,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of ``s[B,Hq,Sq,Skv]``.  Each term is the outer product of two columns."""
    tiles_m, tiles_n = tl.cdiv(Sq, BLOCK_M), tl.cdiv(Skv, BLOCK_N)
    tile = tl.program_id(0).to(tl.int64)
    head = tile // (tiles_m * tiles_n)
    b, h = head // Hq, head % Hq
    m = tile // tiles_n % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    q_ptrs = q_ptr + b * stride_qb + h * stride_qh + m * stride_qm
    k_ptrs = k_ptr + b * stride_kb + h // group * stride_kh + n * stride_kn
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(D):
        q = tl.load(q_ptrs, mask=m < Sq, other=0.0).to(tl.float32)
        k = tl.load(k_ptrs, mask=n < Skv, other=0.0).to(tl.float32)
        total += q * k
        q_ptrs += stride_qd
        k_ptrs += stride_kd
    if CAUSAL:
        total = tl.where(n <= m + Skv - Sq, total, -float("inf"))
    tl.store(s_ptr + (head * Sq + m) * Skv + n, total * scale, mask=(m < Sq) & (n < Skv))


@triton.jit
def attention_softmax_kernel(s_ptr, lse_ptr, rows, Skv, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Grid: one program per BLOCK_M of B * Hq * Sq rows of scores, which it replaces by probabilities."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)[None, :]
    s_ptrs = s_ptr + m[:, None] * Skv + n
    lane_max = tl.full([BLOCK_M, BLOCK_N], -float("inf"), tl.float32)
    for begin in range(0, Skv, BLOCK_N):
        inside = (m[:, None] < rows) & (n < Skv - begin)
        lane_max = tl.maximum(lane_max, tl.load(s_ptrs + begin, mask=inside, other=-float("inf")))
    row_max = tl.max(lane_max, axis=1)
    shift = tl.where(row_max == -float("inf"), 0.0, row_max)  # a row that sees no key
    lane_sum = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, Skv, BLOCK_N):
        inside = (m[:, None] < rows) & (n < Skv - begin)
        lane_sum += tl.exp(tl.load(s_ptrs + begin, mask=inside, other=-float("inf")) - shift[:, None])
    row_sum = tl.sum(lane_sum, axis=1)
    inverse = 1.0 / tl.where(row_sum == 0.0, 1.0, row_sum)
    for begin in range(0, Skv, BLOCK_N):
        inside = (m[:, None] < rows) & (n < Skv - begin)
        s = tl.load(s_ptrs + begin, mask=inside, other=-float("inf"))
        tl.store(s_ptrs + begin, tl.exp(s - shift[:, None]) * inverse[:, None], mask=inside)
    tl.store(lse_ptr + m, shift + tl.log(row_sum), mask=m < rows)


@triton.jit
def attention_values_kernel(
    p_ptr, v_ptr, o_ptr, Sq, Skv, Hq, group, stride_vb, stride_vn, stride_vh, stride_vd,
    D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Grid: one program per BLOCK_M rows of o.  Each term is a column of probabilities times a row of v."""
    tiles_m = tl.cdiv(Sq, BLOCK_M)
    tile = tl.program_id(0).to(tl.int64)
    head = tile // tiles_m
    b, h = head // Hq, head % Hq
    m = tile % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    d = tl.arange(0, D)[None, :].to(tl.int64)
    p_ptrs = p_ptr + (head * Sq + m) * Skv
    v_ptrs = v_ptr + b * stride_vb + h // group * stride_vh + d * stride_vd
    total = tl.zeros([BLOCK_M, D], tl.float32)
    for _ in range(Skv):
        total += tl.load(p_ptrs, mask=m < Sq, other=0.0) * tl.load(v_ptrs).to(tl.float32)
        p_ptrs += 1
        v_ptrs += stride_vn
    tl.store(o_ptr + ((b * Sq + m) * Hq + h) * D + d, total.to(o_ptr.dtype.element_ty), mask=m < Sq)


# --------------------------------------------------------------------------- one pass over the keys


@triton.jit
def tile_of_queries(Sq, Hq, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """Batch, head and first row of this program.  Causal: a head's last rows, the longest, go first.

    Programs with one head run at a time, so that its keys and values stay in the L2.
    """
    tiles_m = tl.cdiv(Sq, BLOCK_M)
    tile = tl.program_id(0) % tiles_m
    head = tl.program_id(0) // tiles_m
    if CAUSAL:
        tile = tiles_m - 1 - tile
    return (head // Hq).to(tl.int64), (head % Hq).to(tl.int64), tile * BLOCK_M


@triton.jit
def visible_keys(first, Sq, Skv, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """How many keys the tile's last row sees, and how many are in tiles that all its rows see whole."""
    whole, seen = Skv, Skv
    if CAUSAL:
        whole = min(Skv, max(0, first + 1 + Skv - Sq))  # by the first row
        seen = min(Skv, max(0, first + BLOCK_M + Skv - Sq))
    return whole // BLOCK_N * BLOCK_N, seen


@triton.jit
def hide(s, begin, m, Sq, Skv, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr):
    """Scores of keys that a row does not see become -inf."""
    last = tl.minimum(m + Skv - Sq, Skv - 1) if CAUSAL else tl.full(m.shape, Skv - 1, tl.int32)
    return tl.where(begin + tl.arange(0, BLOCK_N)[None, :] <= last[:, None], s, -float("inf"))


@triton.jit
def start(BLOCK_M: tl.constexpr, D: tl.constexpr):
    """Output, maximum and sum of rows that have seen no key."""
    o = tl.zeros([BLOCK_M, D], tl.float32)
    return o, tl.full([BLOCK_M], -float("inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)


@triton.jit
def online_softmax(s, o, row_max, row_sum, scale):
    """Weights of one more tile of scores; o and row_sum are rescaled to the new maximum.

    ``exp(s - max)`` is ``exp2(s * scale - max)`` with a factor log2(e) in scale: one FFMA per score.  row_max
    is that of ``s * scale``: where it stays, rescale is exactly 1.  With the maximum of s, it would be of
    ``row_max * scale - shift``, an FFMA that leaves the rounding of shift: lse would drift with every tile.
    """
    new_max = tl.maximum(row_max, tl.max(s, axis=1) * scale)
    shift = tl.where(new_max == -float("inf"), 0.0, new_max)  # no key seen yet: -inf - -inf is NaN
    p = tl.exp2(s * scale - shift[:, None])
    rescale = tl.exp2(row_max - shift)
    row_sum = row_sum * rescale + tl.sum(p, axis=1)
    return p, o * rescale[:, None], new_max, row_sum


@triton.jit
def finish(o, row_max, row_sum):
    """The output and lse.  A row that sees no key has a sum of 0."""
    shift = tl.where(row_max == -float("inf"), 0.0, row_max)
    inverse_sum = 1.0 / tl.where(row_sum == 0.0, 1.0, row_sum)
    return o * inverse_sum[:, None], (shift + tl.log2(row_sum)) * LN_2


@triton.jit
def visit(
    q, k_ptr, v_ptr, o, row_max, row_sum, m, begin, end, Sq, Skv, scale,
    stride_kn, stride_kd, stride_vn, stride_vd,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys begin to end of one head, BLOCK_N per iteration: s = q @ k.T, online softmax, o += p @ v."""
    n, d = tl.arange(0, BLOCK_N).to(tl.int64), tl.arange(0, D).to(tl.int64)
    step = tl.full([], BLOCK_N, tl.int64)
    # Only scalars advance: pointers of a whole tile would be carried in registers.
    k_tile = n[None, :] * stride_kn + d[:, None] * stride_kd
    v_tile = n[:, None] * stride_vn + d[None, :] * stride_vd
    k_ptr += tl.cast(begin, tl.int64) * stride_kn
    v_ptr += tl.cast(begin, tl.int64) * stride_vn
    for key in tl.range(begin, end, BLOCK_N, num_stages=1 if MASKED else None):
        if MASKED:
            k = tl.load(k_ptr + k_tile, mask=n[None, :] < Skv - key, other=0.0)
            s = hide(tl.dot(q, k, input_precision="ieee"), key, m, Sq, Skv, CAUSAL, BLOCK_N)
        else:
            s = tl.dot(q, tl.load(k_ptr + k_tile), input_precision="ieee")
        p, o, row_max, row_sum = online_softmax(s, o, row_max, row_sum, scale)
        if MASKED:
            v = tl.load(v_ptr + v_tile, mask=n[:, None] < Skv - key, other=0.0)
        else:
            v = tl.load(v_ptr + v_tile)
        o = tl.dot(p.to(v.dtype), v, o, input_precision="ieee")
        k_ptr += step * stride_kn
        v_ptr += step * stride_vn
    return o, row_max, row_sum


@triton.jit
def attention_tensor_core_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, Sq, Skv, Hq, group, scale,
    stride_qb, stride_qm, stride_qh, stride_qd, stride_kb, stride_kn, stride_kh, stride_kd,
    stride_vb, stride_vn, stride_vh, stride_vd,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of BLOCK_M queries of one head."""
    b, h, first = tile_of_queries(Sq, Hq, CAUSAL, BLOCK_M)
    m, d = first + tl.arange(0, BLOCK_M), tl.arange(0, D).to(tl.int64)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h // group * stride_kh
    v_ptr += b * stride_vb + h // group * stride_vh
    q_ptrs = q_ptr + m.to(tl.int64)[:, None] * stride_qm + d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=m[:, None] < Sq, other=0.0)
    o, row_max, row_sum = start(BLOCK_M, D)
    whole, seen = visible_keys(first, Sq, Skv, CAUSAL, BLOCK_M, BLOCK_N)
    o, row_max, row_sum = visit(
        q, k_ptr, v_ptr, o, row_max, row_sum, m, 0, whole, Sq, Skv, scale,
        stride_kn, stride_kd, stride_vn, stride_vd, CAUSAL, False, D, BLOCK_N,
    )  # fmt: skip
    o, row_max, row_sum = visit(
        q, k_ptr, v_ptr, o, row_max, row_sum, m, whole, seen, Sq, Skv, scale,
        stride_kn, stride_kd, stride_vn, stride_vd, CAUSAL, True, D, BLOCK_N,
    )  # fmt: skip
    o, lse = finish(o, row_max, row_sum)
    o_ptrs = o_ptr + ((b * Sq + m[:, None]) * Hq + h) * D + d[None, :]
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=m[:, None] < Sq)
    tl.store(lse_ptr + (b * Hq + h) * Sq + m, lse, mask=m < Sq)


# --------------------------------------------------------------------------- TMA, sm_90


@triton.jit
def visit_by_tma(
    q, k_desc, v_desc, o, row_max, row_sum, m, b, h, begin, end, Sq, Skv, scale,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """As `visit`; TMA loads are issued num_stages tiles ahead, and fill rows behind the end with zeros."""
    for key in tl.range(begin, end, BLOCK_N):
        k = k_desc.load([b, h, key, 0]).reshape([BLOCK_N, D])
        s = tl.dot(q, k.T)
        if MASKED:
            s = hide(s, key, m, Sq, Skv, CAUSAL, BLOCK_N)
        p, o, row_max, row_sum = online_softmax(s, o, row_max, row_sum, scale)
        v = v_desc.load([b, h, key, 0]).reshape([BLOCK_N, D])
        o = tl.dot(p.to(v.dtype), v, o)
    return o, row_max, row_sum


@triton.jit
def attention_pipelined_kernel(
    q_desc, k_desc, v_desc, o_ptr, lse_ptr, Sq, Skv, Hq, group, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of BLOCK_M queries of one head.  Descriptors: [B,H,S,D], tiles of a head."""
    b, h, first = tile_of_queries(Sq, Hq, CAUSAL, BLOCK_M)
    m, d = first + tl.arange(0, BLOCK_M), tl.arange(0, D)
    q = q_desc.load([b.to(tl.int32), h.to(tl.int32), first, 0]).reshape([BLOCK_M, D])
    o, row_max, row_sum = start(BLOCK_M, D)
    whole, seen = visible_keys(first, Sq, Skv, CAUSAL, BLOCK_M, BLOCK_N)
    kb, kh = b.to(tl.int32), (h // group).to(tl.int32)
    o, row_max, row_sum = visit_by_tma(
        q, k_desc, v_desc, o, row_max, row_sum, m, kb, kh, 0, whole, Sq, Skv, scale,
        CAUSAL, False, D, BLOCK_N,
    )  # fmt: skip
    o, row_max, row_sum = visit_by_tma(
        q, k_desc, v_desc, o, row_max, row_sum, m, kb, kh, whole, seen, Sq, Skv, scale,
        CAUSAL, True, D, BLOCK_N,
    )  # fmt: skip
    o, lse = finish(o, row_max, row_sum)
    o_ptrs = o_ptr + ((b * Sq + m[:, None]) * Hq + h) * D + d[None, :]
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=m[:, None] < Sq)
    tl.store(lse_ptr + (b * Hq + h) * Sq + m, lse, mask=m < Sq)


# --------------------------------------------------------------------------- Gluon
# As CUDA's persistent: a producer warp, CONSUMERS warpgroups, softmax(j) under p @ v of tile j - 1, and one
# program per multiprocessor.  Only register allocation and addressing are left to the compiler.  sm_90a.
#
# As in CUDA's speculative, for bf16: from the second tile of keys on, weights use the maximum of the tiles
# before.  If their sums show that it is high enough, the tile's own is not computed, and o not rescaled.  If
# the sums are finite, the weights are divided by powers of two.  Else the scores are computed again.

# Triton 3.9 renamed these.
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
async_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

ROWS = gl.constexpr(64)  # of q, per consumer warpgroup
MOST_SUM = gl.constexpr(2.0**32)  # of a lane's weights of a row and tile, for a guess to stay as it is
MOST_FINITE = gl.constexpr(2.0**126)  # below it the weights are as precise, and are divided


@gluon.jit
def tile_at(t, sizes, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr):
    """Batch, head and first query of tile t, and how many tiles of keys it visits, at least one.

    The order of tiles: by section of 16 heads (causal; else one), whose k and v the L2 keeps; within a
    section longest first, from the last queries to the first.
    """
    B, Sq, Skv, Hq, _ = sizes
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    MOST: gl.constexpr = 16 if CAUSAL else 1
    tiles_m = gl.cdiv(Sq, BLOCK_M)
    section = t // (MOST * tiles_m) * MOST
    in_section = t % (MOST * tiles_m)
    width = gl.minimum(MOST, B * Hq - section)
    head = section + in_section % width
    first = (tiles_m - 1 - in_section // width) * BLOCK_M
    keys = Skv
    if CAUSAL:
        keys = gl.minimum(Skv, first + BLOCK_M + Skv - Sq)
    return head // Hq, head % Hq, first, gl.maximum(gl.cdiv(keys, BLOCK_N), 1)


@gluon.jit
def advance(stage, phase, STAGES: gl.constexpr):
    """The next stage of a ring of STAGES; the mbarriers' phase flips when the ring starts again."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def fetch(desc, at, ring, stage, phase):
    """Producer: loads one tile of k or v into the ring's stage, once the consumers have released it."""
    tiles, full, empty = ring
    STAGES: gl.constexpr = tiles.shape[0]
    gl.static_assert(STAGES >= 3, "v's stage is released after the next tile of v has landed")
    mbarrier.wait(empty.index(stage), phase ^ 1)  # in the first round all are empty
    mbarrier.expect(full.index(stage), tiles.shape[3] * tiles.shape[4] * 2)
    async_load(desc, at, full.index(stage), tiles.index(stage))
    return advance(stage, phase, STAGES)


@gluon.jit
def hand_over(taken, q_stage, b, h, first, steps):
    """Producer: the tile whose q is in q_stage; a tile without steps ends the consumers."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    taken.index(q_stage * 4).store(gl.full([1], b, gl.int32, ONE))
    taken.index(q_stage * 4 + 1).store(gl.full([1], h, gl.int32, ONE))
    taken.index(q_stage * 4 + 2).store(gl.full([1], first, gl.int32, ONE))
    taken.index(q_stage * 4 + 3).store(gl.full([1], steps, gl.int32, ONE))


@gluon.jit
def produce(ring, q_ring, operands, next_tile_ptr, sizes, CAUSAL: gl.constexpr, CONSUMERS: gl.constexpr):
    """Producer, one warp: takes tile after tile; loads its q, then its tiles of k and v in turn."""
    q_tiles, q_full, q_empty, taken = q_ring
    q_desc, k_desc, v_desc = operands
    B, Sq, _, Hq, group = sizes
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[2]
    D: gl.constexpr = k_desc.block_type.shape[3]
    tiles = B * Hq * gl.cdiv(Sq, CONSUMERS * ROWS)
    stage, phase, q_stage, q_phase = 0, 0, 0, 0
    t = gl.program_id(0)
    while t < tiles:
        b, h, first, steps = tile_at(t, sizes, CAUSAL, BLOCK_N, CONSUMERS)
        mbarrier.wait(q_empty.index(q_stage), q_phase ^ 1)
        hand_over(taken, q_stage, b, h, first, steps)
        mbarrier.expect(q_full.index(q_stage), CONSUMERS * ROWS * D * 2)
        for i in gl.static_range(CONSUMERS):
            q_tile = q_tiles.index(q_stage * CONSUMERS + i)
            async_load(q_desc, [b, h, first + i * ROWS, 0], q_full.index(q_stage), q_tile)
        for step in range(steps):
            at = [b, h // group, (steps - 1 - step) * BLOCK_N, 0]
            stage, phase = fetch(k_desc, at, ring, stage, phase)
            stage, phase = fetch(v_desc, at, ring, stage, phase)
        q_stage, q_phase = advance(q_stage, q_phase, 2)
        t = gl.num_programs(0) + gl.atomic_add(next_tile_ptr, 1, sem="relaxed")
    mbarrier.wait(q_empty.index(q_stage), q_phase ^ 1)
    hand_over(taken, q_stage, 0, 0, 0, 0)  # no tile is left
    mbarrier.arrive(q_full.index(q_stage), count=1)


@gluon.jit
def hide_keys(s, begin, first, m, sizes, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr):
    """Scores of keys that a row does not see become -inf."""
    _, Sq, Skv, _, _ = sizes
    if begin + BLOCK_N > Skv or (CAUSAL and begin + BLOCK_N > first + Skv - Sq + 1):
        n = begin + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s.type.layout))
        last = Skv - 1 + gl.zeros_like(m)
        if CAUSAL:
            last = gl.minimum(last, m + Skv - Sq)
        s = gl.where(n[None, :] <= last[:, None], s, float("-inf"))
    return s


@gluon.jit
def lane_sums(p):
    """[rows, 4]: of each row, the sum of what each of the four lanes that share it has.  No shuffle."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def softmax_step(s, row_max, row_sum, scale):
    """Online softmax: exponentials of s, the factor of the old sums, and the new maximum and lanes' sums."""
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale)
    shift = gl.where(new_max == float("-inf"), 0.0, new_max)
    p = gl.exp2(s * scale - shift[:, None])
    keep = gl.exp2(row_max - shift)
    keep_sum = gl.convert_layout(keep, gl.SliceLayout(1, row_sum.type.layout))[:, None]
    return p, keep, new_max, row_sum * keep_sum + lane_sums(p)


@gluon.jit
def divide(p, tile_sum, row_max, row_sum):
    """As softmax_step, of guessed weights: sums above MOST_SUM are divided by their power of two."""
    highest = gl.convert_layout(gl.max(tile_sum, 1), row_max.type.layout)
    power = gl.where(highest > MOST_SUM, (highest.to(gl.int32, bitcast=True) >> 23) - 127, 0)
    keep = ((127 - power) << 23).to(gl.float32, bitcast=True)  # 2^-power
    keep_sum = gl.convert_layout(keep, gl.SliceLayout(1, row_sum.type.layout))[:, None]
    return p * keep[:, None], keep, row_max + power, (row_sum + tile_sum) * keep_sum


@gluon.jit
def next_tile_of_q(q_ring, q_stage, q_phase):
    """Consumer: waits for the next tile's q; the tile's batch, head, first query and tiles of keys."""
    _, q_full, _, taken = q_ring
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(q_full.index(q_stage), q_phase)
    b = gl.max(taken.index(q_stage * 4).load(ONE), 0)
    h = gl.max(taken.index(q_stage * 4 + 1).load(ONE), 0)
    first = gl.max(taken.index(q_stage * 4 + 2).load(ONE), 0)
    return b, h, first, gl.max(taken.index(q_stage * 4 + 3).load(ONE), 0)


@gluon.jit
def consume(
    ring, q_ring, output, sizes, scale, CAUSAL: gl.constexpr, GUESS: gl.constexpr, CONSUMERS: gl.constexpr,
    CONSUMER: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: 64 queries.  The softmax of a tile runs under the previous tile's p @ v.

    o is stored by TMA while the next tile's first product runs.
    """
    kv_tiles, full, empty = ring
    q_tiles, _, q_empty, _ = q_ring
    o_desc, o_tiles, lse_ptr, warps_highest = output
    _, Sq, _, Hq, _ = sizes
    STAGES: gl.constexpr = kv_tiles.shape[0]
    BLOCK_N: gl.constexpr = kv_tiles.shape[3]
    D: gl.constexpr = kv_tiles.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    WARPS: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])  # each thread has all elements
    T: gl.constexpr = kv_tiles.dtype
    o_tile = o_tiles.index(CONSUMER)
    stage, phase, q_stage, q_phase = 0, 0, 0, 0

    b, h, first, steps = next_tile_of_q(q_ring, q_stage, q_phase)  # every program has a tile
    mbarrier.wait(full.index(stage), phase)
    q = q_tiles.index(q_stage * CONSUMERS + CONSUMER).reshape([ROWS, D])
    k = kv_tiles.index(stage).reshape([BLOCK_N, D]).permute([1, 0])
    p = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    s_next = hopper.warpgroup_mma(q, k, p, use_acc=False, is_async=True)
    s = hopper.warpgroup_mma_wait(0, [s_next])
    while steps > 0:
        mbarrier.arrive(empty.index(stage), count=1)
        stage, phase = advance(stage, phase, STAGES)
        q = q_tiles.index(q_stage * CONSUMERS + CONSUMER).reshape([ROWS, D])
        first += CONSUMER * ROWS
        m = first + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
        row_sum = gl.zeros_like(lane_sums(s))
        o = gl.zeros([ROWS, D], gl.float32, SUMS)
        s = hide_keys(s, (steps - 1) * BLOCK_N, first, m, sizes, CAUSAL, BLOCK_N)
        p, keep, row_max, row_sum = softmax_step(s, row_max, row_sum, scale)
        p16 = gl.convert_layout(p.to(T), P)
        v_stage = stage
        mbarrier.wait(full.index(stage), phase)
        stage, phase = advance(stage, phase, STAGES)
        for step in range(1, steps):
            mbarrier.wait(full.index(stage), phase)
            k = kv_tiles.index(stage).reshape([BLOCK_N, D]).permute([1, 0])
            # Of p, only the registers: a product that does not add needs none that are cleared.
            s_next = hopper.warpgroup_mma(q, k, p, use_acc=False, is_async=True)
            v = kv_tiles.index(v_stage).reshape([BLOCK_N, D])
            o_next = hopper.warpgroup_mma(p16, v, o, is_async=True)
            s = hopper.warpgroup_mma_wait(1, [s_next])
            k_stage = stage
            stage, phase = advance(stage, phase, STAGES)
            s = hide_keys(s, (steps - 1 - step) * BLOCK_N, first, m, sizes, CAUSAL, BLOCK_N)
            if GUESS:
                p = gl.exp2(s * scale - row_max[:, None])
                tile_sum = lane_sums(p)
                # By warp.  As integers: one instruction finds the highest, and NaN (0x7fffffff) is above all.
                bits = tile_sum.to(gl.int32, bitcast=True).reshape([4, ROWS])
                warps_highest.index(CONSUMER).store(gl.max(bits, 1))
            else:
                mbarrier.arrive(empty.index(k_stage), count=1)
                p, keep, row_max, row_sum = softmax_step(s, row_max, row_sum, scale)
            # A branch: without it ptxas moves the exponentials behind the wait for o.  It also has a barrier.
            mbarrier.wait(full.index(stage), phase)
            if GUESS:
                bits = gl.max(warps_highest.index(CONSUMER).load(WARPS), 0)
                highest = bits.to(gl.float32, bitcast=True)
            o = hopper.warpgroup_mma_wait(0, [o_next])
            mbarrier.arrive(empty.index(v_stage), count=1)
            v_stage = stage
            stage, phase = advance(stage, phase, STAGES)
            if GUESS:
                if highest <= MOST_SUM:
                    row_sum += tile_sum
                else:
                    if highest < MOST_FINITE:
                        p, keep, row_max, row_sum = divide(p, tile_sum, row_max, row_sum)
                    else:  # s is computed again: p has its registers
                        s_next = hopper.warpgroup_mma(q, k, p, use_acc=False, is_async=True)
                        s = hopper.warpgroup_mma_wait(0, [s_next])
                        s = hide_keys(s, (steps - 1 - step) * BLOCK_N, first, m, sizes, CAUSAL, BLOCK_N)
                        p, keep, row_max, row_sum = softmax_step(s, row_max, row_sum, scale)
                    o = o * gl.convert_layout(keep, gl.SliceLayout(1, SUMS))[:, None]
                mbarrier.arrive(empty.index(k_stage), count=1)
            else:
                o = o * gl.convert_layout(keep, gl.SliceLayout(1, SUMS))[:, None]
            p16 = gl.convert_layout(p.to(T), P)
        mbarrier.arrive(q_empty.index(q_stage), count=1)
        q_stage, q_phase = advance(q_stage, q_phase, 2)
        o_next = hopper.warpgroup_mma(p16, kv_tiles.index(v_stage).reshape([BLOCK_N, D]), o, is_async=True)
        o = hopper.warpgroup_mma_wait(0, [o_next])
        mbarrier.arrive(empty.index(v_stage), count=1)

        # After the last tile, the product is one of whatever the stage holds, and is not used.
        b_next, h_next, first_next, steps = next_tile_of_q(q_ring, q_stage, q_phase)
        mbarrier.wait(full.index(stage), phase, pred=steps > 0)
        q = q_tiles.index(q_stage * CONSUMERS + CONSUMER).reshape([ROWS, D])
        k = kv_tiles.index(stage).reshape([BLOCK_N, D]).permute([1, 0])
        s_next = hopper.warpgroup_mma(q, k, p, use_acc=False, is_async=True)
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, SCORES))
        lse = gl.where(row_sum == 0, float("-inf"), (row_max + gl.log2(row_sum)) * 0.6931471805599453)
        gl.store(lse_ptr + (b * Hq + h).to(gl.int64) * Sq + m, lse, mask=m < Sq)
        inverse = gl.convert_layout(gl.where(row_sum == 0, 0.0, 1 / row_sum), gl.SliceLayout(1, SUMS))
        tma.store_wait(0)  # the store that last read o_tile has finished
        o_tile.reshape([ROWS, D]).store((o * inverse[:, None]).to(T))
        hopper.fence_async_shared()
        async_store(o_desc, [b, h, first, 0], o_tile)
        b, h, first = b_next, h_next, first_next
        s = hopper.warpgroup_mma_wait(0, [s_next])
    tma.store_wait(0)


@gluon.jit
def attention_gluon_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, next_tile_ptr, B, Sq, Skv, Hq, group, scale,
    CAUSAL: gl.constexpr, GUESS: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
):  # fmt: skip
    """Grid: persistent; a tile is CONSUMERS * 64 queries of a head.  Descriptors: [B,H,S,D], tiles of a head.

    A program's first tile is its own; next_tile_ptr, 0 at first, counts those taken later.  A stage of the
    ring is one tile of k or v; they alternate.
    """
    T: gl.constexpr = q_desc.dtype
    q_tiles = gl.allocate_shared_memory(T, [2 * CONSUMERS, 1, 1, ROWS, D], q_desc.layout)
    o_tiles = gl.allocate_shared_memory(T, [CONSUMERS, 1, 1, ROWS, D], o_desc.layout)
    kv_tiles = gl.allocate_shared_memory(T, [STAGES, 1, 1, BLOCK_N, D], k_desc.layout)
    UNSWIZZLED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    taken = gl.allocate_shared_memory(gl.int32, [8, 1], UNSWIZZLED)
    warps_highest = gl.allocate_shared_memory(gl.int32, [CONSUMERS, 4], UNSWIZZLED)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=CONSUMERS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    hopper.fence_async_shared()
    ring = (kv_tiles, full, empty)
    q_ring = (q_tiles, q_full, q_empty, taken)  # the next tile's q is fetched while this one's is used
    sizes = (B, Sq, Skv, Hq, group)
    output = (o_desc, o_tiles, lse_ptr, warps_highest)
    operands = (q_desc, k_desc, v_desc)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (ring, q_ring, output, sizes, scale, CAUSAL, GUESS, CONSUMERS, 0)),
                (consume, (ring, q_ring, output, sizes, scale, CAUSAL, GUESS, CONSUMERS, 1)),
                (produce, (ring, q_ring, operands, next_tile_ptr, sizes, CAUSAL, CONSUMERS)),
            ],
            worker_num_warps=[4, 1],
            worker_num_regs=[240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (ring, q_ring, output, sizes, scale, CAUSAL, GUESS, CONSUMERS, 0)),
                (consume, (ring, q_ring, output, sizes, scale, CAUSAL, GUESS, CONSUMERS, 1)),
                (consume, (ring, q_ring, output, sizes, scale, CAUSAL, GUESS, CONSUMERS, 2)),
                (produce, (ring, q_ring, operands, next_tile_ptr, sizes, CAUSAL, CONSUMERS)),
            ],
            worker_num_warps=[4, 4, 1],
            worker_num_regs=[160, 160, 32],
        )


# --------------------------------------------------------------------------- launch

Outputs = tuple[torch.Tensor, torch.Tensor]
MOST_SCORES = 1 << 28  # 1 GB in fp32
MOST = (1 << 31) - (1 << 16)
"""Maximum Sq and Skv: positions, up to the end of the last tile, are 32-bit."""


def checked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[tuple[int, int, int, int, int, int], Outputs]:
    """B, Sq, Skv, Hq, query heads per key head and D; uninitialised o and lse."""
    check_queries("attention", q, k, v, (64, 128))
    B, Sq, Hq, D = q.shape
    Skv = k.shape[1]
    if max(Sq, Skv) > MOST:
        raise NotImplementedError(f"Sq={Sq}, Skv={Skv}: at most {MOST} of each")
    o = torch.empty((B, Sq, Hq, D), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Sq), dtype=torch.float32, device=q.device)
    return (B, Sq, Skv, Hq, Hq // max(k.shape[2], 1), D), (o, lse)


def without_keys(o: torch.Tensor, lse: torch.Tensor) -> Outputs:
    return o.zero_(), lse.fill_(-math.inf)


@implementation("attention", "triton.naive", level="naive", algorithm="scores in memory")
def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    (B, Sq, Skv, Hq, group, D), (o, lse) = checked(q, k, v)
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    if B * Hq * Sq * Skv > MOST_SCORES:
        raise NotImplementedError(f"B*Hq*Sq*Skv={B * Hq * Sq * Skv}: scores in memory, at most {MOST_SCORES}")
    s = torch.empty((B, Hq, Sq, Skv), dtype=torch.float32, device=q.device)
    BLOCK_M, BLOCK_N = 64, 64
    tiles_m, tiles_n = cdiv(Sq, BLOCK_M), cdiv(Skv, BLOCK_N)
    attention_scores_kernel[grid_1d(B * Hq * tiles_m * tiles_n)](
        q, k, s, Sq, Skv, Hq, group, 1 / math.sqrt(D), D, *q.stride(), *k.stride(),
        CAUSAL=causal, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4,
    )  # fmt: skip
    rows = B * Hq * Sq
    attention_softmax_kernel[grid_1d(cdiv(rows, 16))](s, lse, rows, Skv, BLOCK_M=16, BLOCK_N=128, num_warps=4)
    attention_values_kernel[grid_1d(B * Hq * tiles_m)](
        s, v, o, Sq, Skv, Hq, group, *v.stride(), D=D, BLOCK_M=BLOCK_M, num_warps=4
    )
    return o, lse


def scale_of(D: int) -> float:
    """The factor of a score in the exponent of 2."""
    return LOG2_E / math.sqrt(D)


@implementation(
    "attention", "triton.tensor_core", level="tensor_core", algorithm="FlashAttention-2", requires="sm_80"
)
def tensor_core(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    (B, Sq, Skv, Hq, group, D), (o, lse) = checked(q, k, v)
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    # fp32 does not use tensor cores: tl.dot keeps its operands in registers.
    tile = (2048 // D, 2048 // D) if q.dtype is torch.float32 else (128, 64)
    BLOCK_M, BLOCK_N = tile
    attention_tensor_core_kernel[grid_1d(B * Hq * cdiv(Sq, BLOCK_M))](
        q, k, v, o, lse, Sq, Skv, Hq, group, scale_of(D), *q.stride(), *k.stride(), *v.stride(),
        CAUSAL=causal, D=D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=8, num_stages=3,
    )  # fmt: skip
    return o, lse


def descriptor(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """The TMA descriptor of ``x[B,S,H,D]`` as [B,H,S,D], for tiles of ``rows`` rows of a head."""
    x = x.permute(0, 2, 1, 3)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, x.shape[3]])


@implementation(
    "attention",
    "triton.pipelined",
    level="hopper",
    requires="sm_90",
    tunable={"BLOCK_M": (64, 128), "WARPS": (4, 8), "STAGES": (2, 3, 4)},
)
def pipelined(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    BLOCK_M: int = 64,
    WARPS: int = 4,
    STAGES: int = 3,
) -> Outputs:
    (B, Sq, Skv, Hq, group, D), (o, lse) = checked(q, k, v)
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    if q.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")
    BLOCK_N = 8192 // D
    q_desc, k_desc, v_desc = (
        descriptor(for_tma(x), rows) for x, rows in ((q, BLOCK_M), (k, BLOCK_N), (v, BLOCK_N))
    )
    attention_pipelined_kernel[grid_1d(B * Hq * cdiv(Sq, BLOCK_M))](
        q_desc, k_desc, v_desc, o, lse, Sq, Skv, Hq, group, scale_of(D),
        CAUSAL=causal, D=D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return o, lse


def gluon_descriptor(x: torch.Tensor, rows: int) -> GluonDescriptor:
    """The TMA descriptor of ``x[B,S,H,D]`` as [B,H,S,D], for tiles of ``rows`` rows of a head."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    x = x.permute(0, 2, 1, 3)
    return GluonDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, x.shape[3]], layout)


@implementation(
    "attention",
    "triton.gluon",
    level="hopper",
    requires="sm_90a",
    without_gpu=False,
    tunable={"BLOCK_N": (64, 128), "STAGES": (3, 4), "CONSUMERS": (2, 3), "GUESS_FROM": (0, 2048)},
)
def in_gluon(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    BLOCK_N: int = 128,
    STAGES: int = 4,
    CONSUMERS: int = 3,
    GUESS_FROM: int = 2048,
) -> Outputs:
    """One program per multiprocessor; longest tiles first.

    Args:
        q, k, v, causal: as of every implementation.
        BLOCK_N: keys of a tile.
        STAGES: tiles of k or v in flight, of D=128 and 128 keys; smaller tiles are as many more.
        CONSUMERS: warpgroups for D=64; registers hold two times 64 rows of D=128.
        GUESS_FROM: least Skv for which maxima are guessed: the first tile's is not, and bf16's only.
    """
    (B, Sq, Skv, Hq, group, D), (o, lse) = checked(q, k, v)
    if q.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    if D == 128:
        CONSUMERS = 2
    STAGES = STAGES * 128 * 128 // (D * BLOCK_N)
    q_desc, o_desc = gluon_descriptor(for_tma(q), ROWS.value), gluon_descriptor(o, ROWS.value)
    k_desc, v_desc = gluon_descriptor(for_tma(k), BLOCK_N), gluon_descriptor(for_tma(v), BLOCK_N)
    next_tile = torch.zeros(1, dtype=torch.int32, device=q.device)
    programs = min(multiprocessors(q.device), B * Hq * cdiv(Sq, CONSUMERS * ROWS.value))
    attention_gluon_kernel[(programs,)](
        q_desc, k_desc, v_desc, o_desc, lse, next_tile, B, Sq, Skv, Hq, group, scale_of(D),
        CAUSAL=causal, GUESS=q.dtype is torch.bfloat16 and Skv >= GUESS_FROM, D=D, BLOCK_N=BLOCK_N,
        STAGES=STAGES, CONSUMERS=CONSUMERS, num_warps=4,
    )  # fmt: skip
    return o, lse
