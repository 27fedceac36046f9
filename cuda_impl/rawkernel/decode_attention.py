"""decode_attention through cupy, with the kernels of ``kernels/decode_attention.cuh``.

``q[B,1,Hq,D], k_pages[P,PAGE,Hk,D], v_pages[P,PAGE,Hk,D], block_table[B,pages], lengths[B] -> o[B,1,Hq,D]``
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch

from compare.arguments import check_pages
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.heads_map import check_shared, readable
from cuda_impl.loader import Argument, kernel
from cuda_impl.rawkernel.matmul import CTYPES, ceil_div, check_tensor_cores

HEADS, TOKENS, WARPS = 16, 16, 4
THREADS, BLOCK_N = WARPS * 32, WARPS * TOKENS
STATIC_BYTES = 2 * WARPS * HEADS * 4
"""Shared memory for the warps' maxima and sums."""


@dataclass(frozen=True)
class Decoding:
    """The arguments as the kernels take them, and an uninitialised output."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    o: torch.Tensor

    @property
    def units(self) -> int:
        """Tiles of query heads: those of a key head of a sequence, up to HEADS of them."""
        return self.k.shape[2] * ceil_div(self.G, HEADS) * self.q.shape[0]

    @property
    def G(self) -> int:
        return self.q.shape[2] // self.k.shape[2]

    def name(self, variant: str, *more: int) -> str:
        arguments = ", ".join(map(str, (CTYPES[self.q.dtype], self.q.shape[3], *more)))
        return f"decode_attention_{variant}_kernel<{arguments}>"

    def pointers(self) -> tuple[int, ...]:
        inputs = (self.q, self.k, self.v, self.table, self.lengths)
        return tuple(x.data_ptr() for x in inputs)

    def layout(self, *sizes: int) -> tuple[Argument, ...]:
        """Sizes, the scale and strides."""
        PAGE, D = self.k.shape[1], self.q.shape[3]
        scale_log2 = np.float32(math.log2(math.e) / math.sqrt(D))
        counts = (*sizes, self.table.shape[1], PAGE)
        strides = (self.q.stride(0), self.q.stride(2), *self.k.stride()[:3], *self.v.stride()[:3])
        return (*map(np.int32, counts), scale_log2, *map(np.int64, strides))


def checked(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> Decoding:
    check_pages("decode_attention", q, k_pages, v_pages, block_table, lengths)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return Decoding(q, k_pages, v_pages, block_table.contiguous(), lengths.contiguous(), o)


def for_tensor_cores(*arguments: torch.Tensor) -> Decoding:
    d = checked(*arguments)
    check_tensor_cores(d.q)
    return Decoding(readable(d.q, 8), readable(d.k, 8), readable(d.v, 8), d.table, d.lengths, d.o)


@implementation("decode_attention", "cupy.naive", level="naive")
def naive(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """A block per query head."""
    d = checked(q, k_pages, v_pages, block_table, lengths)
    if d.o.numel() == 0:
        return d.o
    d = Decoding(readable(d.q), readable(d.k), readable(d.v), d.table, d.lengths, d.o)
    B, _, Hq, _ = q.shape
    run = kernel("decode_attention", d.name("naive"), q.device)
    run((B * Hq,), (THREADS,), (*d.pointers(), d.o.data_ptr(), *d.layout(Hq, d.G)))
    return d.o


def shared_bytes(d: Decoding, STAGES: int) -> int:
    """A tile of keys and values for each warp and stage."""
    return WARPS * STAGES * 2 * TOKENS * d.q.shape[3] * 2


@implementation("decode_attention", "cupy.grouped", level="tensor_core")
def grouped(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """A block per key head: its query heads are the rows of one tile."""
    d = for_tensor_cores(q, k_pages, v_pages, block_table, lengths)
    if d.o.numel() == 0:
        return d.o
    run = kernel("decode_attention", d.name("grouped"), q.device)
    sizes = d.layout(d.k.shape[2], d.G, ceil_div(d.G, HEADS))
    run((d.units,), (THREADS,), (*d.pointers(), d.o.data_ptr(), *sizes), shared_mem=shared_bytes(d, 1))
    return d.o


@functools.cache
def splits_of(units: int, tiles: int, resident: int, sequences: int) -> int:
    """How many blocks share a unit's tiles: the fewest with which the last wave is nearly full.

    Args:
        resident: blocks that run at once.
        sequences: of several, each has its own length. Four waves, of 16 tiles or more each, balance them.

    Chosen from shapes alone: lengths are on the GPU, and the launch does not wait for them.
    """

    def efficiency(splits: int) -> float:
        return units * splits / (ceil_div(units * splits, resident) * resident)

    least = max(1, min(ceil_div(4 * resident, units), tiles // 16)) if sequences > 1 else 1
    candidates = range(least, max(least, min(tiles, 4 * ceil_div(resident, units))) + 1)
    best = max(map(efficiency, candidates))
    return next(splits for splits in candidates if efficiency(splits) >= 0.95 * best)


def split_and_combine(d: Decoding, variant: str, STAGES: int) -> torch.Tensor:
    """Launch a variant's kernel, and the one that combines its parts."""
    B, _, Hq, D = d.q.shape
    tiles = ceil_div(d.table.shape[1] * d.k.shape[1], BLOCK_N)
    BLOCKS = 256 // D  # per multiprocessor
    splits = splits_of(d.units, tiles, BLOCKS * multiprocessors(d.q.device), B)
    # o_part[B,Hq,splits,D] and lse_part[B,Hq,splits] in one allocation.
    rows = B * Hq * splits
    workspace = torch.empty(rows * (D + 1), dtype=torch.float32, device=d.q.device)
    parts = (workspace.data_ptr(), workspace.data_ptr() + 4 * rows * D)
    of_ring = () if STAGES == 1 else (STAGES,)
    run = kernel("decode_attention", d.name(variant, *of_ring), d.q.device)
    sizes = d.layout(splits, d.k.shape[2], d.G, ceil_div(d.G, HEADS))
    memory = shared_bytes(d, STAGES)
    run((d.units * splits,), (THREADS,), (*d.pointers(), *parts, *sizes), shared_mem=memory)
    combine = kernel("decode_attention", d.name("combine"), d.q.device)
    combine((B * Hq,), (D,), (*parts, d.o.data_ptr(), np.int32(splits)))
    return d.o


@implementation("decode_attention", "cupy.split", level="tensor_core")
def split(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Several blocks share a key head's tokens; a second kernel combines their results."""
    d = for_tensor_cores(q, k_pages, v_pages, block_table, lengths)
    if d.o.numel() == 0:
        return d.o
    return split_and_combine(d, "split", 1)


@implementation(
    "decode_attention",
    "cupy.pipelined",
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
    STAGES: int = 2,
) -> torch.Tensor:
    """As split, and each warp keeps the next STAGES - 1 tiles in flight."""
    d = for_tensor_cores(q, k_pages, v_pages, block_table, lengths)
    if d.o.numel() == 0:
        return d.o
    check_shared(q, shared_bytes(d, STAGES), f"STAGES={STAGES}", STATIC_BYTES)
    return split_and_combine(d, "pipelined", STAGES)
