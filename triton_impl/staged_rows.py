"""Unaligned rows, each in the shared memory of one program, in Gluon: softmax's and the norms' ``gluon``.

Where registers hold one row per multiprocessor, shared memory holds two rows of up to 112 KB.  One program's
row arrives while the other's is reduced and written.  A row has a body of whole 16-byte vectors and edges, as
in ``parts.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from compare.device import shared_bytes_of_a_block
from triton_impl.counts import cdiv
from triton_impl.parts import as_output, columns_of_body, start_of_body
from triton_impl.shared_rows import async_load

AHEAD = gl.constexpr(2)
"""Weights are loaded so many tiles before they are used."""


@gluon.constexpr_function
def vectors_of_threads(VEC, num_warps):
    """The layout of a tile: VEC neighbouring columns per thread."""
    return gl.BlockedLayout([VEC], [32], [num_warps], [0])


@gluon.jit
def columns_of_edges(head, N, VEC: gl.constexpr):
    """The columns of a row's edges if it has ``head`` of them before its body; N and more: none."""
    e = gl.arange(0, 2 * VEC, vectors_of_threads(1, gl.num_warps()))
    return gl.where(e < head, e, e + columns_of_body(N, VEC))


@gluon.jit
def inside(n, t: gl.constexpr, body, BLOCK_N: gl.constexpr, TILES: gl.constexpr):
    """Which columns of tile t the body has; only the last tile is partial."""
    return (n + t * BLOCK_N < body) | (t + 1 < TILES)


@gluon.jit
def fetch_row(x_ptr, m, N, stride_xm, VEC: gl.constexpr, BLOCK_N: gl.constexpr, TILES: gl.constexpr):
    """Start the copies of row m's body into shared memory, each tile a group of its own; zeros behind it.

    Returns the tiles, the columns of the first one, the body's number of columns, how many there are before
    it, and the columns of the edges.
    """
    TILE: gl.constexpr = vectors_of_threads(VEC, gl.num_warps())
    body = columns_of_body(N, VEC)
    n = gl.arange(0, BLOCK_N, TILE)
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    tiles = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [TILES, BLOCK_N], LAYOUT)
    x_body = x_ptr + start_of_body(m * stride_xm, VEC)
    for t in gl.static_range(TILES):
        async_load(tiles.index(t), x_body + t * BLOCK_N + n, mask=inside(n, t, body, BLOCK_N, TILES))
        async_copy.commit_group()
    head = start_of_body(m * N, VEC) - m * N
    return tiles, n, body, head, columns_of_edges(head, N, VEC)


@gluon.jit
def load_tile(ptr, n, t: gl.constexpr, body, BLOCK_N: gl.constexpr, TILES: gl.constexpr):
    """Tile t of weight or bias; evict_last, because every row needs them."""
    mask = inside(n, t, body, BLOCK_N, TILES)
    return gl.load(ptr + t * BLOCK_N + n, mask=mask, other=0.0, eviction_policy="evict_last")


class StagedRows(NamedTuple):
    """Of a kernel that has a program per row."""

    x: torch.Tensor
    body: int
    """Columns."""
    tiles: dict[str, Any]
    """The kernel's further constants and options."""


def staged_rows(x: torch.Tensor) -> StagedRows | None:
    """Of ``x[M,N]`` with contiguous rows, copied if they start elsewhere between boundaries than an output's.

    None if all rows are whole 16-byte vectors, or if shared memory does not hold a row.
    """
    N, VEC = x.size(1), 16 // x.element_size()
    if N % VEC == 0:
        return None
    body = max(N // VEC - 1, 0) * VEC
    row_bytes = body * x.element_size()
    num_warps = 16 if row_bytes > 64 << 10 else 8 if row_bytes > 8 << 10 else 2
    BLOCK_N = num_warps * 32 * VEC * (1 if num_warps == 16 else 2)
    TILES = max(1, cdiv(body, BLOCK_N))
    shared_bytes, most = TILES * BLOCK_N * x.element_size() + 1024, shared_bytes_of_a_block(x.device)
    if shared_bytes > most:
        return None
    programs = min(14, most // shared_bytes)  # per multiprocessor
    maxnreg = min(128, 65536 // (programs * num_warps * 32) // 8 * 8)
    tiles = {"VEC": VEC, "BLOCK_N": BLOCK_N, "TILES": TILES, "num_warps": num_warps, "maxnreg": maxnreg}
    return StagedRows(as_output(x), body, tiles)
