"""A row shared by the blocks of a cluster, in Gluon: common code of the ops that have this level.

The steps are those of CUDA's ``cluster``: each block reduces its slice of the row, the blocks exchange their
partial results through distributed shared memory, and each writes its slice.  Here slices stay in registers.
A cluster is one program.  Its tile is ``x[CLUSTER, BLOCK_N]``, and the layout gives each block a row of that.

A row of N columns has a body of whole 16-byte vectors and edges, as in ``parts.py``; the first block has the
edges.  ALIGNED: every row starts and ends at a 16-byte boundary, so none has edges.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_impl.counts import cdiv, grid_1d, next_power_of_2
from triton_impl.parts import start_of_body

SLICE_BYTES = 16 << 10
"""Of a row in a block, so that a multiprocessor holds several blocks; more only beyond 16 blocks."""
MOST_SLICE = 1 << 14
"""Columns, in 64 registers of each of 256 threads, or 32 of 512."""


@gluon.constexpr_function
def tile(CLUSTER, VEC, num_warps):
    """The layout of x[CLUSTER, BLOCK_N]: a row per block, VEC neighbouring columns per thread."""
    of_blocks = [[1 << bit, 0] for bit in range(CLUSTER.bit_length() - 1)]
    return gl.BlockedLayout([1, VEC], [1, 32], [1, num_warps], [1, 0], of_blocks)


@gluon.constexpr_function
def in_every_block(CLUSTER, num_warps):
    """The layout of words[CLUSTER], all of which every warp of every block has."""
    of_blocks = [[0] for _ in range(CLUSTER.bit_length() - 1)]
    return gl.BlockedLayout([1], [32], [num_warps], [0], of_blocks)


@gluon.jit
def columns_of_body(N, VEC: gl.constexpr, ALIGNED: gl.constexpr):
    """If rows are not aligned, a vector fewer than N columns make: so many are in every row."""
    vectors = N // VEC if ALIGNED else gl.maximum(N // VEC - 1, 0)
    return vectors * VEC


@gluon.jit
def body(
    N, slice_columns, VEC: gl.constexpr, ALIGNED: gl.constexpr,
    BLOCK_N: gl.constexpr, TILE: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """Columns n[CLUSTER, BLOCK_N] of the body, counted from its start, and which of them there are."""
    rank = gl.arange(0, CLUSTER, gl.SliceLayout(1, TILE))[:, None]
    of_slice = gl.arange(0, BLOCK_N, gl.SliceLayout(0, TILE))[None, :]
    n = rank * slice_columns + of_slice
    return n, (of_slice < slice_columns) & (n < columns_of_body(N, VEC, ALIGNED))


@gluon.jit
def edges(head, N, VEC: gl.constexpr, ALIGNED: gl.constexpr, TILE: gl.constexpr, CLUSTER: gl.constexpr):
    """Columns e[CLUSTER, 2 * VEC] of the edges, and which there are; ``head`` of them are before the body."""
    rank = gl.arange(0, CLUSTER, gl.SliceLayout(1, TILE))[:, None]
    e = gl.arange(0, 2 * VEC, gl.SliceLayout(0, TILE))[None, :]
    e = gl.where(rank == 0, gl.where(e < head, e, e + columns_of_body(N, VEC, ALIGNED)), N)
    return e, (e < N) & (not ALIGNED)


@gluon.jit
def load_row(
    x_ptr, start, head, N, slice_columns, other: gl.constexpr, VEC: gl.constexpr, ALIGNED: gl.constexpr,
    BLOCK_N: gl.constexpr, TILE: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """Columns n of the body and e of the edges, which there are, and their elements in fp32, else ``other``.

    The row starts at ``start``, ``head`` columns before its body.
    """
    n, inside = body(N, slice_columns, VEC, ALIGNED, BLOCK_N, TILE, CLUSTER)
    e, at_edge = edges(head, N, VEC, ALIGNED, TILE, CLUSTER)
    x = gl.load(x_ptr + start_of_body(start, VEC) + n, mask=inside, other=other).to(gl.float32)
    edge = gl.load(x_ptr + start + e, mask=at_edge, other=other).to(gl.float32)
    return n, inside, e, at_edge, x, edge


@gluon.jit
def parameter(
    ptr, head, N, slice_columns, VEC: gl.constexpr, ALIGNED: gl.constexpr,
    BLOCK_N: gl.constexpr, TILE: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """Weight or bias of the body's columns; evict_last, because every row needs them.

    Unaligned vectors are loaded by neighbouring lanes, an element each, so that loads are coalesced.
    """
    LOADED: gl.constexpr = TILE if ALIGNED else tile(CLUSTER, 1, gl.num_warps())
    n, inside = body(N, slice_columns, VEC, ALIGNED, BLOCK_N, LOADED, CLUSTER)
    if not ALIGNED:
        ptr += head
    values = gl.load(ptr + n, mask=inside, other=0.0, eviction_policy="evict_last")
    return gl.convert_layout(values, TILE)


@gluon.jit
def exchange(words, CLUSTER: gl.constexpr):
    """Each block's word, in all blocks: every block reads the others' shared memory."""
    return gl.convert_layout(words, in_every_block(CLUSTER, gl.num_warps()))


@gluon.jit
def to_word(low, high):
    """Two floats in one 8-byte word, so that one exchange is enough."""
    word = low.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF
    return word | (high.to(gl.int32, bitcast=True).to(gl.int64) << 32)


@gluon.jit
def from_word(word):
    low, high = word.to(gl.int32), (word >> 32).to(gl.int32)
    return low.to(gl.float32, bitcast=True), high.to(gl.float32, bitcast=True)


def as_output(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows start as far from 16-byte boundaries as a contiguous output's; else a copy."""
    VEC = 16 // x.element_size()
    fits = x.data_ptr() % 16 == 0 and (x.stride(0) - x.size(1)) % VEC == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def share_row(kernel: Any, tensors: tuple[torch.Tensor, ...], *more: float) -> None:
    """Launch a kernel of one cluster per row of ``x[M,N]``, the first of ``tensors``.

    Arguments of the kernel: ``tensors``, N, the stride of x, columns of a slice, ``more``.

    Raises:
        NotImplementedError: 16 blocks cannot hold a row.
    """
    x = tensors[0]
    (M, N), stride_xm, VEC = x.shape, x.stride(0), 16 // x.element_size()
    ALIGNED = N % VEC == 0 and stride_xm % VEC == 0
    columns = N if ALIGNED else max(N // VEC - 1, 1) * VEC  # of the body
    # A multiple of 16, for which Triton tests: so it knows that slices start at whole vectors.
    slices = {CLUSTER: cdiv(cdiv(columns, CLUSTER), 16) * 16 for CLUSTER in (2, 4, 8, 16)}
    fitting = [CLUSTER for CLUSTER, n in slices.items() if n * x.element_size() <= SLICE_BYTES]
    CLUSTER = min(fitting, default=16)
    if slices[CLUSTER] > MOST_SLICE:
        raise NotImplementedError(f"N={N}: the registers of 16 blocks hold {16 * MOST_SLICE} columns")
    BLOCK_N = next_power_of_2(slices[CLUSTER])
    num_warps = max(1, min(16, BLOCK_N * x.element_size() // 4096))  # 128 bytes of a row per thread
    grid_1d(M * CLUSTER)
    kernel[(M,)](
        *tensors, N, stride_xm, slices[CLUSTER], *more,
        VEC=VEC, ALIGNED=ALIGNED, BLOCK_N=BLOCK_N, CLUSTER=CLUSTER,
        num_warps=num_warps, num_ctas=CLUSTER,
    )  # fmt: skip
