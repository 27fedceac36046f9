"""attention_backward through cupy: ``q, k, v, o, lse, do -> dq, dk, dv``."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from compare.arguments import check_gradients
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.heads_map import SWIZZLED_BYTES, check_shared, for_tma, heads_map, readable
from cuda_impl.loader import kernel
from cuda_impl.rawkernel.matmul import CTYPES, ceil_div, check_tensor_cores

OP = "attention_backward"
HEAD_SIZES = (64, 128)
THREADS = 256
BLOCK_M = BLOCK_N = 128
"""A block's queries (in the kernel for dq) or keys (for dk and dv), 16 a warp."""
BLOCK = 64
"""Rows of the tiles that its loop fetches."""
MOST_SCORES = 1 << 28
"""Of naive, which takes seconds for more."""

MOST = (1 << 31) - (1 << 16)
"""Maximum Sq + Skv: positions are 32-bit."""

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Call:
    """Checked arguments, new gradients, and what delta's kernel has computed."""

    inputs: tuple[torch.Tensor, ...]
    """q, k, v and do; lse2 and delta."""
    gradients: Gradients
    problem: np.void
    """``Problem`` of kernels/attention_backward/rows.cuh."""

    def instance(self, name: str, *arguments: object) -> str:
        """A kernel's name with its template arguments, of which the first are T and D."""
        q = self.inputs[0]
        of_all = ", ".join(map(str, (CTYPES[q.dtype], q.size(3), *arguments)))
        return f"{OP}_{name}_kernel<{of_all}>"

    def launch(self, name: str, blocks: int, *arguments: int | np.generic, shared_bytes: int = 0) -> None:
        """With the inputs before the arguments and the problem behind them."""
        if blocks > 0:
            run = kernel(OP, name, self.inputs[0].device)
            pointers = (x.data_ptr() for x in self.inputs)
            run((blocks,), (THREADS,), (*pointers, *arguments, self.problem), shared_mem=shared_bytes)

    @property
    def key_blocks(self) -> int:
        B, Skv, Hk, _ = self.inputs[1].shape
        return ceil_div(Skv, BLOCK_N) * B * Hk

    @property
    def query_blocks(self) -> int:
        B, Sq, Hq, _ = self.inputs[0].shape
        return ceil_div(Sq, BLOCK_M) * B * Hq


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
    tensor_cores: bool = True,
    rows: Mapping[int, int] | None = None,
) -> Call:
    """Check the arguments, and compute delta and lse2 if there is any row.

    With ``rows``, by D, heads are padded to whole tiles of so many queries, and nothing is computed yet.
    """
    check_gradients(OP, q, k, v, o, lse, do, HEAD_SIZES)
    if tensor_cores:
        check_tensor_cores(q)
    B, Sq, Hq, D = q.shape
    Skv, Hk = k.shape[1], k.shape[2]
    if Sq + Skv > MOST:
        raise NotImplementedError(f"Sq={Sq}, Skv={Skv}: at most {MOST} together")
    if not tensor_cores and B * Hq * Sq * Skv > MOST_SCORES:
        raise NotImplementedError(f"B*Hq*Sq*Skv={B * Hq * Sq * Skv}: it takes at most {MOST_SCORES} scores")
    gradients = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    alignment = 8 if tensor_cores else 1
    q, k, v, o, do = (readable(x, alignment) for x in (q, k, v, o, do))
    lse = lse.contiguous()
    tile = BLOCK_M if rows is None else rows[D]
    pitch = ceil_div(Sq, tile) * tile
    delta, lse2 = torch.empty((2, B * Hq * pitch), dtype=torch.float32, device=q.device).unbind()
    strides = [step for x in (q, k, v, o, do) for step in x.stride()[:3]]
    diagonal = Skv - Sq if causal else Skv
    packed = struct.pack("15q6if4x", *strides, Sq, Skv, Hq, Hk, diagonal, pitch, 1 / math.sqrt(D))
    problem = np.frombuffer(packed, dtype=f"V{len(packed)}")[0]
    call = Call((q, k, v, do, lse2, delta), gradients, problem)
    if delta.numel() > 0 and rows is None:
        run = kernel(OP, call.instance("delta", THREADS), q.device)
        pointers = (o.data_ptr(), do.data_ptr(), lse.data_ptr(), delta.data_ptr(), lse2.data_ptr())
        blocks = ceil_div(delta.numel(), THREADS // 32)
        run((blocks,), (THREADS,), (*pointers, np.int64(delta.numel()), problem))
    return call


@implementation(OP, "cupy.naive", level="naive")
def naive(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """A warp per row of dq, then one per row of dk and dv."""
    call = prepare(q, k, v, o, lse, do, causal, tensor_cores=False)
    dq, dk, dv = call.gradients
    queries, keys = dq.numel() // q.size(3), dk.numel() // k.size(3)
    pointers = (dk.data_ptr(), dv.data_ptr())
    warps = THREADS // 32
    call.launch(
        call.instance("naive_dq", THREADS), ceil_div(queries, warps), dq.data_ptr(), np.int64(queries)
    )
    call.launch(call.instance("naive_dkdv", THREADS), ceil_div(keys, warps), *pointers, np.int64(keys))
    return call.gradients


def tiles_bytes(D: int) -> int:
    """Of a block's own tiles, two stages, and two stages of lse2 and delta."""
    return (2 * BLOCK_N + 4 * BLOCK) * D * 2 + 4 * BLOCK * 4


@implementation(OP, "cupy.split", level="tensor_core", requires="sm_80")
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
    shared_bytes = check_shared(q, tiles_bytes(q.size(3)), f"D={q.size(3)}")
    if dq.numel() == 0:
        return dq, dk.zero_(), dv.zero_()
    pointers = (dk.data_ptr(), dv.data_ptr())
    dkdv = call.instance("split_dkdv", BLOCK, BLOCK_N)
    call.launch(dkdv, call.key_blocks, *pointers, shared_bytes=shared_bytes)
    dq_kernel = call.instance("split_dq", BLOCK_M, BLOCK)
    call.launch(dq_kernel, call.query_blocks, dq.data_ptr(), shared_bytes=shared_bytes)
    return call.gradients


@implementation(OP, "cupy.fused", level="tensor_core", requires="sm_80", deterministic=False)
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
    shared_bytes = check_shared(q, tiles_bytes(q.size(3)) + BLOCK * BLOCK_N * 2, f"D={q.size(3)}")
    if dq.numel() == 0:
        return dq, dk.zero_(), dv.zero_()
    dq_sum = torch.zeros(dq.shape, dtype=torch.float32, device=dq.device)
    pointers = (dq_sum.data_ptr(), dk.data_ptr(), dv.data_ptr())
    fused_kernel = call.instance("fused", BLOCK, BLOCK_N)
    call.launch(fused_kernel, call.key_blocks, *pointers, shared_bytes=shared_bytes)
    run = kernel(OP, f"{OP}_round_kernel<{CTYPES[q.dtype]}, {THREADS}>", q.device)
    sizes = (np.int64(dq.numel()), np.float32(1 / math.sqrt(q.size(3))))
    run((ceil_div(dq.numel(), THREADS * 4),), (THREADS,), (dq_sum.data_ptr(), dq.data_ptr(), *sizes))
    return call.gradients


WARPGROUP = 128


@implementation(OP, "cupy.wgmma", level="hopper", requires="sm_90a", deterministic=False, emulated=True)
def wgmma(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """As fused, with TMA, a producer warp and two consumer warpgroups."""
    call = prepare(q, k, v, o, lse, do, causal)
    dq, dk, dv = call.gradients
    if dq.numel() == 0 or dk.numel() == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    D = q.size(3)
    *heads, lse2, delta = call.inputs
    held = [for_tma(x) for x in heads]
    maps = [heads_map(x, rows) for x, rows in zip(held, (BLOCK, BLOCK_N, BLOCK_N, BLOCK), strict=True)]
    dq_sum = torch.zeros(lse2.numel() * D, dtype=torch.float32, device=q.device)
    pointers = [x.data_ptr() for x in (lse2, delta, dq_sum, dk, dv)]
    # Beside the tiles of fused two of ds, one of dq in fp32, and five mbarriers.
    shared_bytes = tiles_bytes(D) + 2 * BLOCK * BLOCK_N * 2 + BLOCK * D * 4 + 5 * 8 + SWIZZLED_BYTES
    check_shared(q, shared_bytes, f"D={D}")
    run = kernel(OP, call.instance("wgmma"), q.device)
    run((call.key_blocks,), (3 * WARPGROUP,), (*maps, *pointers, call.problem), shared_mem=shared_bytes)
    run = kernel(OP, call.instance("place"), q.device)
    blocks = lse2.numel() // BLOCK * 2
    run((blocks,), (WARPGROUP,), (dq_sum.data_ptr(), dq.data_ptr(), call.problem))
    return call.gradients


ROWS = {64: 128, 128: 80}
"""Queries of a tile of overlapped, by D: with 64 the gradients of keys take half the registers."""


@implementation(OP, "cupy.overlapped", level="hopper", requires="sm_90a", deterministic=False, emulated=True)
def overlapped(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """As wgmma, persistent; dq's product of a tile runs under the exponentials of the next one."""
    call = prepare(q, k, v, o, lse, do, causal, rows=ROWS)
    dq, dk, dv = call.gradients
    if dq.numel() == 0 or dk.numel() == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    D, rows = q.size(3), ROWS[q.size(3)]
    *heads, lse2, delta = call.inputs
    held = [for_tma(x) for x in heads]
    maps = [heads_map(x, box) for x, box in zip(held, (rows, BLOCK_N, BLOCK_N, rows), strict=True)]
    dq_sum = torch.empty(lse2.numel() * D, dtype=torch.float32, device=q.device)
    taken = torch.empty(1, dtype=torch.float32, device=q.device)  # of 4 bytes; an integer there
    o, do, lse = readable(o, 8), heads[3], lse.contiguous()
    pointers = [x.data_ptr() for x in (o, do, lse, delta, lse2, dq_sum, taken)]
    run = kernel(OP, call.instance("prepare", THREADS), q.device)
    blocks = ceil_div(dq_sum.numel() // 8, THREADS)
    run((blocks,), (THREADS,), (*pointers, np.int64(lse2.numel()), call.problem))

    # Beside the tiles two of ds, one of dq in fp32, lse2 and delta; mbarriers, and which keys are taken.
    shared_bytes = (2 * BLOCK_N + 4 * rows) * D * 2 + 2 * rows * BLOCK_N * 2 + rows * D * 4 + 4 * rows * 4
    shared_bytes += 8 * 8 + 8 + SWIZZLED_BYTES
    pointers = [x.data_ptr() for x in (lse2, delta, dq_sum, dk, dv, taken)]
    arguments = (*maps, *pointers, np.int32(k.size(0) * k.size(2)), call.problem)
    blocks = min(call.key_blocks, multiprocessors(q.device))
    run = kernel(OP, call.instance("overlapped", rows), q.device)
    check_shared(q, shared_bytes, f"D={D}")
    run((blocks,), (3 * WARPGROUP,), arguments, shared_mem=shared_bytes)
    run = kernel(OP, call.instance("transpose", rows), q.device)
    blocks = lse2.numel() // rows * 2
    run((blocks,), (WARPGROUP,), (dq_sum.data_ptr(), dq.data_ptr(), call.problem))
    return call.gradients
