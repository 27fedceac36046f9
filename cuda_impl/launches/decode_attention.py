"""decode_attention in CUDA, with the kernels of ``kernels/decode_attention.cuh``.

``q[B,1,Hq,D], k_pages[P,PAGE,Hk,D], v_pages[P,PAGE,Hk,D], block_table[B,pages], lengths[B] -> o[B,1,Hq,D]``
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from compare.arguments import check_pages
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, empty_like
from cuda_impl.launch import HALVES, Argument, Kernel, Launch, Offset, Plan, ceil_div, int32, int64, variant
from cuda_impl.layouts import HEAD_SIZES, check_shared, check_tensor_cores, contiguous, readable

OP = "decode_attention"
HEADS, TOKENS, WARPS = 16, 16, 4
THREADS, BLOCK_N = WARPS * 32, WARPS * TOKENS
STATIC_BYTES = 2 * WARPS * HEADS * 4
"""Shared memory for the warps' maxima and sums."""


class Decoding(NamedTuple):
    """The arguments as the kernels take them, and an uninitialised output."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    lengths: Tensor
    o: Tensor

    @property
    def groups(self) -> int:
        """Tiles of the query heads of a key head: up to HEADS of them each."""
        return ceil_div(self.G, HEADS)

    @property
    def units(self) -> int:
        """Tiles of query heads of all key heads and sequences."""
        return self.k.shape[2] * self.groups * self.q.shape[0]

    @property
    def G(self) -> int:
        return self.q.shape[2] // max(self.k.shape[2], 1)

    def args(self, outputs: tuple[Argument, ...], *sizes: int) -> tuple[Argument, ...]:
        """Of a kernel: inputs, outputs, sizes, the scale and strides."""
        PAGE, D = self.k.shape[1], self.q.shape[3]
        scale_log2 = np.float32(math.log2(math.e) / math.sqrt(D))
        counts = (*sizes, self.table.shape[1], PAGE)
        strides = (self.q.stride(0), self.q.stride(2), *self.k.stride()[:3], *self.v.stride()[:3])
        return (*self[:5], *outputs, *int32(*counts), scale_log2, *int64(*strides))


MOST_TOKENS = (1 << 31) - (1 << 20)
"""Of a sequence: positions, up to the end of the last split, are 32-bit."""


def checked(*arguments: Tensor, alignment: int = 1) -> Decoding:
    """The call, with heads aligned to so many elements.

    Raises:
        NotImplementedError: a sequence's pages may hold too many tokens.
    """
    check_pages(OP, *arguments)
    q, k, v, table, lengths = arguments
    if (tokens := table.shape[1] * k.shape[1]) > MOST_TOKENS:
        raise NotImplementedError(f"{tokens} tokens of a sequence: at most {MOST_TOKENS}")
    o = empty_like(q)
    q, k, v = (readable(x, alignment) for x in (q, k, v))
    return Decoding(q, k, v, contiguous(table), contiguous(lengths), o)


def for_tensor_cores(*arguments: Tensor) -> Decoding:
    d = checked(*arguments, alignment=8)
    check_tensor_cores(d.q)
    return d


NAIVE = Kernel(f"{OP}_naive_kernel<{{T}}, {{D}}>", D=HEAD_SIZES)


@variant(OP, "naive", kernels=[NAIVE], level="naive")
def naive(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor) -> Plan:
    """A block per query head."""
    d = checked(q, k_pages, v_pages, block_table, lengths)
    B, _, Hq, D = q.shape
    return Plan(d.o, Launch(NAIVE(q.dtype, D=D), B * Hq, THREADS, d.args((d.o,), Hq, d.G)))


def shared_bytes(d: Decoding, STAGES: int) -> int:
    """A tile of keys and values for each warp and stage."""
    return WARPS * STAGES * 2 * TOKENS * d.q.shape[3] * 2


GROUPED = Kernel(f"{OP}_grouped_kernel<{{T}}, {{D}}>", HALVES, D=HEAD_SIZES)


@variant(OP, "grouped", kernels=[GROUPED], level="tensor_core")
def grouped(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor) -> Plan:
    """A block per key head: its query heads are the rows of one tile."""
    d = for_tensor_cores(q, k_pages, v_pages, block_table, lengths)
    args = d.args((d.o,), d.k.shape[2], d.G, d.groups)
    return Plan(d.o, Launch(GROUPED(q.dtype, D=q.size(3)), d.units, THREADS, args, shared_bytes(d, 1)))


def splits_of(units: int, tiles: int, resident: int, sequences: int) -> int:
    """How many blocks share a unit's tiles: the fewest with which the last wave is nearly full.

    Args:
        units: tiles of query heads.
        tiles: of the longest sequence's tokens.
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


COMBINE = Kernel(f"{OP}_combine_kernel<{{T}}, {{D}}>", HALVES, D=HEAD_SIZES)


def split_and_combine(d: Decoding, run: Kernel, STAGES: int) -> Plan:
    """Launch a kernel, and the one that combines its parts."""
    B, _, Hq, D = d.q.shape
    if d.o.numel() == 0:
        return Plan(d.o)
    tiles = ceil_div(d.table.shape[1] * d.k.shape[1], BLOCK_N)
    BLOCKS = 256 // D  # per multiprocessor
    splits = splits_of(d.units, tiles, BLOCKS * multiprocessors(d.q.device), B)
    # o_part[B,Hq,splits,D] and lse_part[B,Hq,splits] in one allocation.
    rows = B * Hq * splits
    workspace = empty((rows * (D + 1),), torch.float32, d.q.device)
    parts = (workspace, Offset(workspace, 4 * rows * D))
    args = d.args(parts, splits, d.k.shape[2], d.G, d.groups)
    instance, combine = run(d.q.dtype, D=D, STAGES=STAGES), COMBINE(d.q.dtype, D=D)
    return Plan(
        d.o,
        Launch(instance, d.units * splits, THREADS, args, shared_bytes(d, STAGES)),
        Launch(combine, B * Hq, D, (*parts, d.o, *int32(splits))),
    )


SPLIT = Kernel(f"{OP}_split_kernel<{{T}}, {{D}}>", HALVES, D=HEAD_SIZES)


@variant(OP, "split", kernels=[SPLIT, COMBINE], level="tensor_core")
def split(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor) -> Plan:
    """Several blocks share a key head's tokens; a second kernel combines their results."""
    return split_and_combine(for_tensor_cores(q, k_pages, v_pages, block_table, lengths), SPLIT, STAGES=1)


PIPELINED = Kernel(f"{OP}_pipelined_kernel<{{T}}, {{D}}, {{STAGES}}>", HALVES, D=HEAD_SIZES, STAGES=[2])


@variant(
    OP,
    "pipelined",
    kernels=[PIPELINED, COMBINE],
    level="tensor_core",
    requires="sm_80",
    tunable={"STAGES": (2, 3, 4)},
)
def pipelined(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *, STAGES: int = 2
) -> Plan:
    """As split, and each warp keeps the next STAGES - 1 tiles in flight."""
    d = for_tensor_cores(q, k_pages, v_pages, block_table, lengths)
    check_shared(q, shared_bytes(d, STAGES), f"STAGES={STAGES}", STATIC_BYTES)
    return split_and_combine(d, PIPELINED, STAGES)
