"""attention in CUDA: ``q, k, v -> o, lse``, with the kernels of ``kernels/attention/``."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from compare.arguments import check_queries
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, empty_like, zeros
from cuda_impl.launch import HALVES, HOPPER, Argument, Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.layouts import HEAD_SIZES, check_shared, check_tensor_cores, for_tma, readable
from cuda_impl.tensor_maps import SWIZZLE_ALIGNMENT, heads_map

OP = "attention"
MOST = (1 << 31) - (1 << 16)
"""Maximum Sq and Skv: positions, up to the end of the last tile, are 32-bit."""
MOST_SCORES = 1 << 28  # 1 GB in fp32
THREADS = 256


class Attention(NamedTuple):
    """Checked arguments, and uninitialised outputs."""

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    o: Tensor
    lse: Tensor

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """B, Sq, Skv, Hq, Hk and D."""
        (B, Sq, Hq, D), (_, Skv, Hk, _) = self.q.shape, self.k.shape
        return B, Sq, Skv, Hq, Hk, D

    def blocks(self, BLOCK_M: int) -> int:
        """One per BLOCK_M rows of a head."""
        B, Sq, _, Hq, *_ = self.sizes
        return B * Hq * ceil_div(Sq, BLOCK_M)


def checked(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Attention:
    check_queries(OP, q, k, v, HEAD_SIZES)
    (B, Sq, Hq, _), Skv = q.shape, k.shape[1]
    if max(Sq, Skv) > MOST:
        raise NotImplementedError(f"Sq={Sq}, Skv={Skv}: at most {MOST} of each")
    return Attention(q, k, v, causal, empty_like(q), empty((B, Hq, Sq), torch.float32, q.device))


# --------------------------------------------------------------------------- any GPU


def struct_of(heads: Iterable[Tensor], more: str, *values: float) -> np.void:
    """A struct for a kernel: the strides of ``x[B,S,H,D]``, then values in the format ``more``."""
    strides = [step for x in heads for step in x.stride()[:3]]
    int32(*(value for value in values if isinstance(value, int)))
    packed = struct.pack(f"{len(strides)}q{more}", *strides, *values)
    return np.void(packed)


class Arguments(NamedTuple):
    """Of the kernels without TMA."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor
    problem: np.void
    """``Problem`` of kernels/attention/problem.cuh."""


def arguments(a: Attention, alignment: int = 1) -> Arguments:
    q, k, v = heads = (readable(a.q, alignment), readable(a.k, alignment), readable(a.v, alignment))
    _, Sq, Skv, Hq, Hk, _ = a.sizes
    return Arguments(q, k, v, a.o, a.lse, struct_of(heads, "5i4x", Sq, Skv, Hq, Hk, a.causal))


SCORES = Kernel("attention_scores_kernel<{T}, {D}>", D=HEAD_SIZES)
SOFTMAX = Kernel(f"attention_softmax_kernel<{THREADS}>")
VALUES = Kernel(f"attention_values_kernel<{{T}}, {{D}}, {THREADS}>", D=HEAD_SIZES)


@variant(OP, "naive", kernels=[SCORES, SOFTMAX, VALUES], level="naive", algorithm="scores in memory")
def naive(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Plan:
    """Three kernels: scores, their softmax, and the weighted sum of v."""
    a = checked(q, k, v, causal)
    B, Sq, Skv, Hq, _, D = a.sizes
    rows = B * Hq * Sq
    if rows * Skv > MOST_SCORES:
        raise NotImplementedError(f"B*Hq*Sq*Skv={rows * Skv}: scores in memory, at most {MOST_SCORES}")
    s, of = empty((B, Hq, Sq, Skv), torch.float32, q.device), arguments(a)
    scores, softmax, values = SCORES(q.dtype, D=D), SOFTMAX(), VALUES(q.dtype, D=D)
    return Plan(
        (a.o, a.lse),
        Launch(scores, a.blocks(16) * ceil_div(Skv, 16), THREADS, (of.q, of.k, s, of.problem)),
        Launch(softmax, ceil_div(rows, THREADS // 32), THREADS, (s, a.lse, *int64(rows), *int32(Skv))),
        Launch(values, ceil_div(rows, THREADS // D), THREADS, (s, of.v, a.o, *int64(rows), of.problem)),
    )


ONLINE = Kernel("attention_online_kernel<{T}, {D}, 64, 32>", D=HEAD_SIZES)


@variant(OP, "online", kernels=[ONLINE], level="tiled")
def online(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Plan:
    """One pass over the keys, without tensor cores."""
    a = checked(q, k, v, causal)
    BLOCK_M, BLOCK_N, D = 64, 32, q.size(3)
    run, shared_bytes = ONLINE(q.dtype, D=D), (BLOCK_M + BLOCK_N) * (D + 4) * 4
    return Plan((a.o, a.lse), Launch(run, a.blocks(BLOCK_M), BLOCK_M * 4, arguments(a), shared_bytes))


TENSOR_CORE = Kernel("attention_tensor_core_kernel<{T}, {D}, {BLOCK_N}>", HALVES, D=HEAD_SIZES, BLOCK_N=[64])


@variant(
    OP,
    "tensor_core",
    kernels=[TENSOR_CORE, ONLINE],
    level="tensor_core",
    requires="sm_80",
    tunable={"BLOCK_N": (32, 64, 128)},
)
def tensor_core(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, BLOCK_N: int = 64) -> Plan:
    """Both products by mma.sync, probabilities in registers.  Falls back to online without keys."""
    a = checked(q, k, v, causal)
    check_tensor_cores(q)
    BLOCK_M, D = 128, q.size(3)
    shared_bytes = check_shared(q, (BLOCK_M + 4 * BLOCK_N) * D * 2, f"BLOCK_N={BLOCK_N}")
    if k.size(1) == 0:
        return online.plan(q, k, v, causal=causal)
    run = TENSOR_CORE(q.dtype, D=D, BLOCK_N=BLOCK_N)
    return Plan((a.o, a.lse), Launch(run, a.blocks(BLOCK_M), BLOCK_M, arguments(a, 8), shared_bytes))


# --------------------------------------------------------------------------- Hopper's own units

GROUP_M = 64
"""Rows of q of a warpgroup."""
WARPGROUP = 128


def hopper_kernel(
    variant: str, TILE: Mapping[int, tuple[int, ...]], dtypes: Sequence[torch.dtype] = HALVES
) -> Kernel:
    """Of operands by TMA; ``TILE``: its further template arguments, by D."""
    return Kernel(
        f"attention_{variant}_kernel<{{T}}, {{D}}, {{TILE}}>",
        dtypes,
        D=HEAD_SIZES,
        TILE=lambda T, D: [TILE[D]],
    )


def tile_of(D: int, BLOCK_N: int, STAGES: int) -> tuple[int, int, int]:
    """CONSUMERS, BLOCK_N and STAGES beside a producer.

    Registers hold two times 64 rows of D=128 or three times of D=64, whose stages are half the size.
    """
    if D == 64 and BLOCK_N > 128:
        raise NotImplementedError(f"BLOCK_N={BLOCK_N}: with D=64, registers hold 128")
    return (3, BLOCK_N, 2 * STAGES) if D == 64 else (2, BLOCK_N, STAGES)


def on_hopper(
    run: Kernel,
    a: Attention,
    BLOCK_N: int,
    STAGES: int,
    *,
    specialized: bool = True,
    persistent: bool = False,
) -> Plan:
    """Tiles are fetched by TMA.  Falls back to online without keys.

    Args:
        run: the kernel.
        a: the arguments.
        BLOCK_N: keys of a tile.
        STAGES: tiles of k or v in flight, if ``specialized`` of D=128; else of k and of v.
        specialized: a producer and two or three consumer warpgroups; else two that do both.
        persistent: one block per multiprocessor.
    """
    B, Sq, Skv, Hq, Hk, D = a.sizes
    check_tensor_cores(a.q)
    if Skv == 0:
        return online.plan(a.q, a.k, a.v, causal=a.causal)
    TILE: tuple[int, ...] = tile_of(D, BLOCK_N, STAGES) if specialized else (BLOCK_N, STAGES)
    CONSUMERS, STAGES = TILE[0] if specialized else 2, TILE[-1]
    BLOCK_M = CONSUMERS * GROUP_M
    rows = (2 if persistent else 1) * BLOCK_M + STAGES * BLOCK_N * (1 if specialized else 2)
    shared_bytes = rows * D * 2 + SWIZZLE_ALIGNMENT
    check_shared(a.q, shared_bytes, f"BLOCK_N={BLOCK_N}, STAGES={STAGES}")
    q, k, v = for_tma(a.q), for_tma(a.k), for_tma(a.v)
    maps = (heads_map(q, BLOCK_M), heads_map(k, BLOCK_N), heads_map(v, BLOCK_N))
    blocks = a.blocks(BLOCK_M)
    more: tuple[Argument, ...] = ()
    if persistent:  # the next tile's number, and B
        blocks = min(blocks, multiprocessors(q.device))
        more = (zeros((1,), torch.int64, q.device), *int32(B))
    args = (*maps, a.o, a.lse, *more, *int32(Sq, Skv, Hq, Hk, a.causal))
    threads = (CONSUMERS + specialized) * WARPGROUP
    return Plan((a.o, a.lse), Launch(run(q.dtype, D=D, TILE=TILE), blocks, threads, args, shared_bytes))


WGMMA_TILE = {64: (64, 2), 128: (128, 2)}
"""BLOCK_N and STAGES by D: with 64 half the registers, so that two blocks share a multiprocessor."""
WGMMA = hopper_kernel("wgmma", WGMMA_TILE)


@variant(OP, "wgmma", kernels=[WGMMA, ONLINE], **HOPPER)
def wgmma(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Plan:
    """TMA and wgmma; two warpgroups per block."""
    a = checked(q, k, v, causal)
    return on_hopper(WGMMA, a, *WGMMA_TILE[q.size(3)], specialized=False)


def specialized_kernel(variant: str, STAGES: int) -> Kernel:
    return hopper_kernel(variant, {D: tile_of(D, 128, STAGES) for D in HEAD_SIZES})


TILES = {"BLOCK_N": (128, 192), "STAGES": (3, 4, 5)}
SPECIALIZED = specialized_kernel("specialized", STAGES=4)


@variant(OP, "specialized", kernels=[SPECIALIZED, ONLINE], tunable=TILES, **HOPPER)
def specialized(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, BLOCK_N: int = 128, STAGES: int = 4
) -> Plan:
    """A producer warpgroup, and consumers that multiply in turn."""
    return on_hopper(SPECIALIZED, checked(q, k, v, causal), BLOCK_N, STAGES)


OVERLAPPED = specialized_kernel("overlapped", STAGES=4)


@variant(OP, "overlapped", kernels=[OVERLAPPED, ONLINE], tunable=TILES, **HOPPER)
def overlapped(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, BLOCK_N: int = 128, STAGES: int = 4) -> Plan:
    """Softmax of a tile runs while the previous tile's p @ v does."""
    return on_hopper(OVERLAPPED, checked(q, k, v, causal), BLOCK_N, STAGES)


PERSISTENT = specialized_kernel("persistent", STAGES=5)


@variant(OP, "persistent", kernels=[PERSISTENT, ONLINE], tunable=TILES, **HOPPER)
def persistent(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, BLOCK_N: int = 128, STAGES: int = 5) -> Plan:
    """One block per multiprocessor; longest tiles first."""
    return on_hopper(PERSISTENT, checked(q, k, v, causal), BLOCK_N, STAGES, persistent=True)


SPECULATIVE_KEYS = {64: 96, 128: 128}
"""BLOCK_N by D: registers hold the weights of two tiles."""
SPECULATIVE_TILE = {D: tile_of(D, keys, 5) for D, keys in SPECULATIVE_KEYS.items()}
SPECULATIVE = hopper_kernel("speculative", SPECULATIVE_TILE, [torch.bfloat16])


@variant(OP, "speculative", kernels=[SPECULATIVE, PERSISTENT, ONLINE], **HOPPER)
def speculative(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Plan:
    """Softmax with the maximum of earlier tiles.  fp16 has no room for it: as persistent."""
    a = checked(q, k, v, causal)
    if q.dtype is torch.float16:
        return persistent.plan(q, k, v, causal=causal)
    return on_hopper(SPECULATIVE, a, SPECULATIVE_KEYS[q.size(3)], 5, persistent=True)
