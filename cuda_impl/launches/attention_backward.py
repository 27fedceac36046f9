"""attention_backward in CUDA: ``q, k, v, o, lse, do -> dq, dk, dv``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from compare.arguments import check_gradients
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, empty_like, zeros, zeros_like
from cuda_impl.launch import (
    HALVES,
    HOPPER,
    Argument,
    Kernel,
    Launch,
    Offset,
    Plan,
    ceil_div,
    int32,
    int64,
    variant,
)
from cuda_impl.launches.attention import MOST, MOST_SCORES, WARPGROUP, struct_of
from cuda_impl.layouts import HEAD_SIZES, check_shared, check_tensor_cores, contiguous, for_tma, readable
from cuda_impl.tensor_maps import SWIZZLE_ALIGNMENT, heads_map

OP = "attention_backward"
DTYPES = (*HALVES, torch.float32)
THREADS = 256
BLOCK_M = BLOCK_N = 128
"""A block's queries (in the kernel for dq) or keys (for dk and dv), 16 a warp."""
BLOCK = 64
"""Rows of the tiles that its loop fetches."""


def kernel_of(name: str, more: str = "", dtypes: Sequence[torch.dtype] = HALVES, **choices: Any) -> Kernel:
    """A kernel whose first template arguments are T and D; ``more``: further ones, and their choices."""
    return Kernel(f"{OP}_{name}_kernel<{{T}}, {{D}}{more}>", dtypes, D=HEAD_SIZES, **choices)


DELTA = kernel_of("delta", f", {THREADS}", DTYPES)


class Call(NamedTuple):
    """Checked arguments as kernels read them, new gradients, and memory for delta and lse2."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor
    do: Tensor
    gradients: tuple[Tensor, Tensor, Tensor]
    delta: Tensor
    """Followed by lse2, of as many rows."""
    problem: np.void
    """``Problem`` of kernels/attention_backward/rows.cuh."""

    @property
    def rows(self) -> int:
        """Of delta, of all heads."""
        return self.delta.numel() // 2

    @property
    def lse2(self) -> Offset:
        return Offset(self.delta, self.rows * 4)

    @property
    def is_empty(self) -> bool:
        return self.q.numel() == 0 or self.k.numel() == 0

    @property
    def key_blocks(self) -> int:
        B, Skv, Hk, _ = self.k.shape
        return ceil_div(Skv, BLOCK_N) * B * Hk

    def zeros(self) -> Plan:
        """Without queries or keys, gradients are 0."""
        return Plan(tuple(map(zeros_like, self.gradients)))

    def launch_delta(self) -> Launch:
        """Compute delta and lse2."""
        run = DELTA(self.q.dtype, D=self.q.size(3))
        args = (self.o, self.do, self.lse, self.delta, self.lse2, *int64(self.rows), self.problem)
        return Launch(run, ceil_div(self.rows, THREADS // 32), THREADS, args)

    def launch(self, run: Kernel, blocks: int, *args: Argument, shared_bytes: int = 0) -> Launch:
        """With the inputs before the arguments and the problem behind them."""
        inputs = (self.q, self.k, self.v, self.do, self.lse2, self.delta)
        instance = run(self.q.dtype, D=self.q.size(3))
        return Launch(instance, blocks, THREADS, (*inputs, *args, self.problem), shared_bytes)

    def maps(self, rows: int) -> tuple[Argument, ...]:
        """Tensor maps of q, k, v and do, with tiles of so many queries."""
        boxes = ((self.q, rows), (self.k, BLOCK_N), (self.v, BLOCK_N), (self.do, rows))
        return tuple(heads_map(for_tma(x), box) for x, box in boxes)


def checked(
    inputs: Sequence[Tensor],
    causal: bool,
    *,
    tensor_cores: bool = True,
    rows: Mapping[int, int] | None = None,
) -> Call:
    """The call, with heads padded to whole tiles of so many queries, by D; of BLOCK_M without ``rows``."""
    q, k, v, o, lse, do = inputs
    check_gradients(OP, q, k, v, o, lse, do, HEAD_SIZES)
    if tensor_cores:
        check_tensor_cores(q)
    (B, Sq, Hq, D), (_, Skv, Hk, _) = q.shape, k.shape
    if Sq + Skv > MOST:
        raise NotImplementedError(f"Sq={Sq}, Skv={Skv}: at most {MOST} together")
    if not tensor_cores and B * Hq * Sq * Skv > MOST_SCORES:  # naive takes seconds for more
        raise NotImplementedError(f"B*Hq*Sq*Skv={B * Hq * Sq * Skv}: it takes at most {MOST_SCORES} scores")
    gradients = (empty_like(q), empty_like(k), empty_like(v))
    q, k, v, o, do = heads = [readable(x, 8 if tensor_cores else 1) for x in (q, k, v, o, do)]
    tile = rows[D] if rows else BLOCK_M
    pitch = ceil_div(Sq, tile) * tile
    delta = empty((2, B * Hq * pitch), torch.float32, q.device)
    diagonal = Skv - Sq if causal else Skv
    problem = struct_of(heads, "6if4x", Sq, Skv, Hq, Hk, diagonal, pitch, 1 / math.sqrt(D))
    return Call(q, k, v, o, contiguous(lse), do, gradients, delta, problem)


NAIVE_DQ = kernel_of("naive_dq", f", {THREADS}", DTYPES)
NAIVE_DKDV = kernel_of("naive_dkdv", f", {THREADS}", DTYPES)


@variant(OP, "naive", kernels=[DELTA, NAIVE_DQ, NAIVE_DKDV], level="naive")
def naive(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool = False
) -> Plan:
    """A warp per row of dq, then one per row of dk and dv."""
    call = checked((q, k, v, o, lse, do), causal, tensor_cores=False)
    dq, dk, dv = call.gradients
    queries, keys, warps = dq.numel() // q.size(3), dk.numel() // k.size(3), THREADS // 32
    return Plan(
        call.gradients,
        call.launch_delta(),
        call.launch(NAIVE_DQ, ceil_div(queries, warps), dq, *int64(queries)),
        call.launch(NAIVE_DKDV, ceil_div(keys, warps), dk, dv, *int64(keys)),
    )


def tiles_bytes(D: int) -> int:
    """Of a block's own tiles, two stages, and two stages of lse2 and delta."""
    return (2 * BLOCK_N + 4 * BLOCK) * D * 2 + 4 * BLOCK * 4


SPLIT_DKDV = kernel_of("split_dkdv", f", {BLOCK}, {BLOCK_N}")
SPLIT_DQ = kernel_of("split_dq", f", {BLOCK_M}, {BLOCK}")


@variant(OP, "split", kernels=[DELTA, SPLIT_DKDV, SPLIT_DQ], level="tensor_core", requires="sm_80")
def split(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool = False
) -> Plan:
    """A kernel for dk and dv, and one for dq."""
    call = checked((q, k, v, o, lse, do), causal)
    (B, Sq, Hq, D), (dq, dk, dv) = q.shape, call.gradients
    shared_bytes = check_shared(q, tiles_bytes(D), f"D={D}")
    if dq.numel() == 0:
        return call.zeros()
    query_blocks = ceil_div(Sq, BLOCK_M) * B * Hq
    return Plan(
        call.gradients,
        call.launch_delta(),
        call.launch(SPLIT_DKDV, call.key_blocks, dk, dv, shared_bytes=shared_bytes),
        call.launch(SPLIT_DQ, query_blocks, dq, shared_bytes=shared_bytes),
    )


FUSED = kernel_of("fused", f", {BLOCK}, {BLOCK_N}")
ROUND = Kernel(f"{OP}_round_kernel<{{T}}, {THREADS}>", HALVES)


@variant(
    OP, "fused", kernels=[DELTA, FUSED, ROUND], level="tensor_core", requires="sm_80", deterministic=False
)
def fused(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool = False
) -> Plan:
    """One kernel; dq is summed in fp32 by atomics and rounded by another."""
    call = checked((q, k, v, o, lse, do), causal)
    D, (dq, dk, dv) = q.size(3), call.gradients
    shared_bytes = check_shared(q, tiles_bytes(D) + BLOCK * BLOCK_N * 2, f"D={D}")
    if dq.numel() == 0:
        return call.zeros()
    dq_sum, scale = zeros(dq.shape, torch.float32, q.device), np.float32(1 / math.sqrt(D))
    of_round: tuple[Argument, ...] = (dq_sum, dq, *int64(dq.numel()), scale)
    return Plan(
        call.gradients,
        call.launch_delta(),
        call.launch(FUSED, call.key_blocks, dq_sum, dk, dv, shared_bytes=shared_bytes),
        Launch(ROUND(q.dtype), ceil_div(dq.numel(), THREADS * 4), THREADS, of_round),
    )


WGMMA, PLACE = kernel_of("wgmma"), kernel_of("place")


@variant(OP, "wgmma", kernels=[DELTA, WGMMA, PLACE], deterministic=False, **HOPPER)
def wgmma(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool = False
) -> Plan:
    """As fused, with TMA, a producer warp and two consumer warpgroups."""
    call = checked((q, k, v, o, lse, do), causal)
    if call.is_empty:
        return call.zeros()
    D, (dq, dk, dv) = q.size(3), call.gradients
    # Beside the tiles of fused two of ds, one of dq in fp32, and five mbarriers.
    shared_bytes = tiles_bytes(D) + 2 * BLOCK * BLOCK_N * 2 + BLOCK * D * 4 + 5 * 8 + SWIZZLE_ALIGNMENT
    check_shared(q, shared_bytes, f"D={D}")
    dq_sum = zeros((call.rows * D,), torch.float32, q.device)
    args = (*call.maps(BLOCK), call.lse2, call.delta, dq_sum, dk, dv, call.problem)
    run, place = WGMMA(q.dtype, D=D), PLACE(q.dtype, D=D)
    return Plan(
        call.gradients,
        call.launch_delta(),
        Launch(run, call.key_blocks, 3 * WARPGROUP, args, shared_bytes),
        Launch(place, call.rows // BLOCK * 2, WARPGROUP, (dq_sum, dq, call.problem)),
    )


ROWS = {64: 128, 128: 80}
"""Queries of a tile of overlapped, by D: with 64 the gradients of keys take half the registers."""
PREPARE = kernel_of("prepare", f", {THREADS}")
OVERLAPPED = kernel_of("overlapped", ", {rows}", rows=lambda T, D: [ROWS[D]])
TRANSPOSE = kernel_of("transpose", ", {rows}", rows=lambda T, D: [ROWS[D]])


@variant(OP, "overlapped", kernels=[PREPARE, OVERLAPPED, TRANSPOSE], deterministic=False, **HOPPER)
def overlapped(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool = False
) -> Plan:
    """As wgmma, persistent; dq's product of a tile runs under the exponentials of the next one."""
    call = checked((q, k, v, o, lse, do), causal, rows=ROWS)
    if call.is_empty:
        return call.zeros()
    D, (dq, dk, dv), delta, lse2 = q.size(3), call.gradients, call.delta, call.lse2
    rows, sums = ROWS[D], call.rows * D
    # Beside the tiles two of ds, one of dq in fp32, lse2 and delta; mbarriers, and which keys are taken.
    shared_bytes = (2 * BLOCK_N + 4 * rows) * D * 2 + 2 * rows * BLOCK_N * 2 + rows * D * 4 + 4 * rows * 4
    shared_bytes += 8 * 8 + 8 + SWIZZLE_ALIGNMENT
    check_shared(q, shared_bytes, f"D={D}")
    dq_sum = empty((sums + 1,), torch.float32, q.device)
    taken = Offset(dq_sum, sums * 4)  # of 4 bytes; an integer there
    of_rows = (call.o, call.do, call.lse, delta, lse2, dq_sum, taken, *int64(call.rows), call.problem)
    tiles = (
        *call.maps(rows),
        lse2,
        delta,
        dq_sum,
        dk,
        dv,
        taken,
        *int32(k.size(0) * k.size(2)),
        call.problem,
    )
    blocks = min(call.key_blocks, multiprocessors(q.device))
    run, transpose = OVERLAPPED(q.dtype, D=D, rows=rows), TRANSPOSE(q.dtype, D=D, rows=rows)
    return Plan(
        call.gradients,
        Launch(PREPARE(q.dtype, D=D), ceil_div(sums // 8, THREADS), THREADS, of_rows),
        Launch(run, blocks, 3 * WARPGROUP, tiles, shared_bytes),
        Launch(transpose, call.rows // rows * 2, WARPGROUP, (dq_sum, dq, call.problem)),
    )
