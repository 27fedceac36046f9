"""rms_norm over rows, in Triton: ``x[M,N], weight[N] -> y[M,N]``.

Variants; ``cuda_impl/kernels/rms_norm.cuh`` has the first three under the same names:

* ``online``: a program reads its row twice, tile by tile: any row length
* ``onepass``: the row stays in registers between reduction and output, so it is read once: 32768 columns
* ``packed``: the row stays in registers as loaded, two 16-bit elements per register, in tiles, and what
  128 KB of registers do not hold is loaded again: rows of 256 KB
* ``split``: several programs share rows and exchange partial sums through global memory: long rows, where
  CUDA and ``gluon_cluster/`` have clusters
* ``gluon``: as split in Gluon, Triton's lower-level language: asynchronous copies prefetch the next chunks
  into shared memory, where the weights stay; an unaligned row of up to 224 KB has a program to itself
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from compare.registry import implementation
from triton_impl import norm
from triton_impl.norm import KEPT, as_words, in_order, load_tile, narrow, of_body, of_columns, tile_of, widen
from triton_impl.parts import columns_of_body, edges, start_of_body
from triton_impl.shared_rows import fetch, published
from triton_impl.staged_rows import (
    AHEAD,
    fetch_row,
    inside,
    vectors_of_threads,
)
from triton_impl.staged_rows import load_tile as load_parameters

EPS = 1e-5


@triton.jit
def rms_norm_online_kernel(
    x_ptr, weight_ptr, y_ptr, N, stride_xm,
    eps, VEC: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per row.  Each lane sums the squares of its own elements until the row ends."""
    m = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + m * stride_xm
    y_row = y_ptr + m * N
    head = start_of_body(m * N, VEC) - m * N
    body = columns_of_body(N, VEC)
    x_body = x_ptr + start_of_body(m * stride_xm, VEC)
    y_body = y_ptr + start_of_body(m * N, VEC)
    column = tl.arange(0, BLOCK_N)
    lane_squares = tl.zeros([BLOCK_N], tl.float32)
    for begin in range(0, body, BLOCK_N):
        n = begin + column
        x = tl.load(x_body + n, mask=n < body, other=0.0).to(tl.float32)
        lane_squares += x * x
    squares = tl.sum(lane_squares)
    if VEC > 1:
        e = edges(head, N, VEC)
        edge = tl.load(x_row + e, mask=e < N, other=0.0).to(tl.float32)
        squares += tl.sum(edge * edge)
    scale = tl.rsqrt(squares / N + eps)

    for begin in range(0, body, BLOCK_N):
        n = begin + column
        x = tl.load(x_body + n, mask=n < body, other=0.0).to(tl.float32)
        weight = of_body(weight_ptr, n, head, N, VEC)
        tl.store(y_body + n, x * scale * weight.to(tl.float32), mask=n < body)
    if VEC > 1:
        weight = of_columns(weight_ptr, e, N)
        tl.store(y_row + e, edge * scale * weight.to(tl.float32), mask=e < N)


@triton.jit
def rms_norm_onepass_kernel(
    x_ptr, weight_ptr, y_ptr, M, N, stride_xm,
    eps, VEC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per BLOCK_M rows of N <= BLOCK_N columns, which stay in registers.

    For short rows the weights are loaded together with the rows, so that nothing waits after the reduction.
    For long rows they are loaded later, because registers limit how many programs are resident.
    """
    WEIGHTS_FIRST: tl.constexpr = BLOCK_N <= 2048
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    inside = (m < M) & (n < columns_of_body(N, VEC))
    head = start_of_body(m * N, VEC) - m * N
    x = tl.load(x_ptr + start_of_body(m * stride_xm, VEC) + n, mask=inside, other=0.0)
    if VEC > 1:
        column = edges(head, N, VEC)
        at_edge = (m < M) & (column < N)
        edge = tl.load(x_ptr + m * stride_xm + column, mask=at_edge, other=0.0).to(tl.float32)
    if WEIGHTS_FIRST:
        weight = of_body(weight_ptr, n, head, N, VEC)
    x = x.to(tl.float32)
    squares = tl.sum(x * x, axis=1, keep_dims=True)
    if VEC > 1:
        squares += tl.sum(edge * edge, axis=1, keep_dims=True)
    scale = tl.rsqrt(squares / N + eps)
    if not WEIGHTS_FIRST:
        weight = of_body(weight_ptr, n, head, N, VEC)
    tl.store(y_ptr + start_of_body(m * N, VEC) + n, x * scale * weight.to(tl.float32), mask=inside)
    if VEC > 1:
        weight = of_columns(weight_ptr, column, N)
        tl.store(y_ptr + m * N + column, edge * scale * weight.to(tl.float32), mask=at_edge)


@triton.jit
def rms_norm_packed_kernel(
    x_ptr, weight_ptr, windows_ptr, y_ptr, N, stride_xm, eps,
    DTYPE: tl.constexpr, VEC: tl.constexpr, BLOCK_N: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Grid: one program per row, whose body stays in registers as loaded: TILES tiles of BLOCK_N words.

    Registers then hold twice as many 16-bit elements, and weights are loaded tile by tile.  64 registers per
    thread are enough for 32 words, so that a multiprocessor holds 128 KB of rows.  Tiles from the KEPT-th on
    are loaded again, from the L2.  windows[VEC, body] has the weights from column 0, 1, 2 ... on, so that one
    row of it is aligned to the body.
    """
    PER_WORD: tl.constexpr = 32 // DTYPE.primitive_bitwidth
    m = tl.program_id(0).to(tl.int64)
    head = start_of_body(m * N, VEC) - m * N
    x_row, y_row = x_ptr + m * stride_xm, y_ptr + m * N
    x_words = as_words(x_ptr + start_of_body(m * stride_xm, VEC))
    y_body = y_ptr + start_of_body(m * N, VEC)
    body = columns_of_body(N, VEC)
    window = head * body
    count = body // PER_WORD
    column = tl.arange(0, BLOCK_N * PER_WORD)
    tiles = ()
    for t in tl.static_range(min(TILES, KEPT)):
        x = load_tile(x_words, t, count, 0, BLOCK_N, TILES)
        tiles = tiles + (x,)  # noqa: RUF005 - Triton does not support (*tiles, x) (to 3.9)
    if VEC > 1:
        e = edges(head, N, VEC)
        edge = tl.load(x_row + e, mask=e < N, other=0.0).to(tl.float32)

    lane_squares = tl.zeros([BLOCK_N * PER_WORD], tl.float32)
    for t in tl.static_range(TILES):
        words = tile_of(tiles, t, x_words, count, 0, BLOCK_N, TILES)
        x = in_order(words, DTYPE)
        lane_squares += x * x
    # A tile's weights are loaded before the previous tile is stored: the compiler moves no load across a
    # store.
    weight = of_columns(windows_ptr + window, column, body)
    squares = tl.sum(lane_squares)
    if VEC > 1:
        squares += tl.sum(edge * edge)
    scale = tl.rsqrt(squares / N + eps)

    for t in tl.static_range(TILES):
        words = tile_of(tiles, t, x_words, count, 0, BLOCK_N, TILES)
        n = t * BLOCK_N * PER_WORD + column
        next_n = n + BLOCK_N * PER_WORD
        if t + 1 < TILES:
            next_weight = of_columns(windows_ptr + window, next_n, body)
        y = in_order(words, DTYPE) * scale * weight.to(tl.float32)
        tl.store(y_body + n, y, mask=(n < body) | (t + 1 < TILES))
        if t + 1 < TILES:
            weight = next_weight
    if VEC > 1:
        weight = of_columns(weight_ptr, e, N)
        tl.store(y_row + e, edge * scale * weight.to(tl.float32), mask=e < N)


@triton.jit
def pack(squares):
    """A sum of squares in an 8-byte word, written by one store; its sign bit makes it never 0.

    ``-squares`` would lose the sign of 0: Triton computes it as ``0 - squares``.  A product keeps it.
    """
    return (squares * -1.0).to(tl.int32, bitcast=True).to(tl.int64)


@triton.jit
def wait_for_row(of_chunk_ptr, chunks, BLOCK_C: tl.constexpr):
    """Sum of squares of a row from all its chunks; polls until every chunk's word is not 0."""
    c = tl.arange(0, BLOCK_C)
    part = tl.load(of_chunk_ptr + c, mask=c < chunks, other=-1, volatile=True)
    while tl.sum((part == 0).to(tl.int32), axis=0) > 0:
        part = tl.load(of_chunk_ptr + c, mask=c < chunks, other=-1, volatile=True)
    return tl.sum(tl.where(c < chunks, -part.to(tl.int32).to(tl.float32, bitcast=True), 0.0), axis=0)


@triton.jit
def rms_norm_split_kernel(
    x_ptr, weight_ptr, y_ptr, M, N, stride_xm, chunks, of_chunk_ptr, eps,
    DTYPE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Rows are split into ``chunks`` chunks of BLOCK_N words; a program has the same columns of many rows.

    Its weights therefore stay in the L1.  Each iteration reduces its chunk of a row, publishes the sum of
    squares and keeps the chunk in registers.  One iteration later the row's other programs have published
    theirs, and the output is written.  Every element is read once, and the next chunk is prefetched
    meanwhile.

    Invariant: all programs are resident, because they wait for each other; their number is a multiple of
    ``chunks``.  The host ensures both.  of_chunk[M * chunks] starts as 0: one nonzero word is both result and
    flag. Other pointers are to 32-bit words; N and stride_xm count words.
    """
    PER_WORD: tl.constexpr = 32 // DTYPE.primitive_bitwidth
    c = tl.program_id(0) % chunks
    step = tl.num_programs(0) // chunks
    first = (tl.program_id(0) // chunks).to(tl.int64)
    n = c * BLOCK_N + tl.arange(0, BLOCK_N)

    x = tl.load(x_ptr + first * stride_xm + n, mask=(n < N) & (first < M), other=0)
    # Not `kept = x`: Triton treats two names of one value as loop-invariant and drops the update.
    kept = tl.where(n < N, x, 0)
    for m in tl.range(first, M + step, step):
        if m < M:
            elements = widen(x, DTYPE)
            tl.store(of_chunk_ptr + m * chunks + c, pack(tl.sum(elements * elements)))
        next_m = m + step
        next_x = tl.load(x_ptr + next_m * stride_xm + n, mask=(n < N) & (next_m < M), other=0)
        old_m = m - step
        if old_m >= first:
            of_row = of_chunk_ptr + old_m * chunks
            squares = wait_for_row(of_row, chunks, BLOCK_C)
            weight = of_columns(weight_ptr, n, N)
            scale = tl.rsqrt(squares / (N * PER_WORD) + eps)
            y = widen(kept, DTYPE) * scale * widen(weight, DTYPE)
            tl.store(y_ptr + old_m * N + n, narrow(y, DTYPE), mask=n < N)
        kept = x
        x = next_x


# --------------------------------------------------------------------------- Gluon
# As softmax's kernel, and the weights are in shared memory too.


@gluon.jit
def scale_of_rows(words, there, N, eps):
    """Scale of each row, from the words of all its chunks (`wait_for_row`, row by row)."""
    squares = gl.where(there, -words.to(gl.int32).to(gl.float32, bitcast=True), 0.0)
    return gl.rsqrt(gl.sum(squares, axis=0) / N + eps)


@gluon.jit
def rms_norm_gluon_kernel(
    x_ptr, weight_ptr, y_ptr, M, vectors, stride_vectors, chunks, of_chunk_ptr, eps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_C: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """As split: a program has the same BLOCK_N columns of many rows, and writes them one iteration later.

    An iteration has BLOCK_M rows, one per warp: a row's sums need no block barrier, and one warp polls its
    words. Two warps polling the same words could see different values.  Tiles are prefetched into a ring of
    STAGES stages in shared memory: two are in use, this iteration's and the last one's; the others are in
    flight.  Weights are in shared memory too, read once for all rows.  A thread reads only what it has copied
    itself, so it waits for no other thread's copies.

    Rows of x are 16-byte aligned; `vectors` and `stride_vectors` are N and x's stride in 16-byte vectors.
    """
    T: gl.constexpr = x_ptr.dtype.element_ty
    VEC: gl.constexpr = 128 // T.primitive_bitwidth
    TILE: gl.constexpr = gl.BlockedLayout([1, VEC], [1, 32], [BLOCK_M, 1], [1, 0])
    WORDS: gl.constexpr = gl.BlockedLayout([BLOCK_C // 32, 1], [32, 1], [1, BLOCK_M], [0, 1])
    DENSE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    N = vectors * VEC
    c = gl.program_id(0) % chunks
    step = gl.num_programs(0) // chunks * BLOCK_M
    first = (gl.program_id(0) // chunks).to(gl.int64) * BLOCK_M
    r = gl.arange(0, BLOCK_M, gl.SliceLayout(1, TILE))
    n = c * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, TILE))[None, :]
    inside = n < N
    every_r = gl.arange(0, BLOCK_M, gl.SliceLayout(0, WORDS))[None, :]
    every_c = gl.arange(0, BLOCK_C, gl.SliceLayout(1, WORDS))[:, None]

    ring = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_N], DENSE)
    for iteration in gl.static_range(STAGES - 1):
        rows = (first + iteration * step + r)[:, None]
        fetch(ring, iteration, x_ptr + rows * stride_vectors * VEC + n, (rows < M) & inside, STAGES)
    weights = gl.allocate_shared_memory(T, [1, BLOCK_N], DENSE)
    weights.store(of_columns(weight_ptr, n, N))

    iteration = 0
    for m in range(first, M + step, step):
        old_m = m - step
        # Loaded now, used after the reduction, which takes as long as the load's latency.
        words = published(of_chunk_ptr, old_m + every_r, every_c, M, chunks)
        async_copy.wait_group(STAGES - 2)
        if m < M:
            x = ring.index(iteration % STAGES).load(TILE).to(gl.float32)
            squares = gl.sum(x * x, axis=1)
            gl.store(of_chunk_ptr + (m + r) * chunks + c, pack(squares), mask=m + r < M)
        if old_m >= 0:
            while gl.sum(gl.sum((words == 0).to(gl.int32), axis=0), axis=0) > 0:
                words = published(of_chunk_ptr, old_m + every_r, every_c, M, chunks)
            scale = scale_of_rows(words, every_c < chunks, N, eps)
            scale = gl.convert_layout(scale, gl.SliceLayout(1, TILE), assert_trivial=True)[:, None]
            x = ring.index((iteration + STAGES - 1) % STAGES).load(TILE).to(gl.float32)
            y = x * scale * weights.load(TILE).to(gl.float32)
            rows = (old_m + r)[:, None]
            gl.store(y_ptr + rows * N + n, y.to(T), mask=(rows < M) & inside)
        rows = (m + (STAGES - 1) * step + r)[:, None]
        x_ptrs = x_ptr + rows * stride_vectors * VEC + n
        fetch(ring, iteration + STAGES - 1, x_ptrs, (rows < M) & inside, STAGES)
        iteration += 1  # noqa: SIM113 - Triton has no enumerate (to 3.9)


@gluon.jit
def rms_norm_gluon_row_kernel(
    x_ptr, weight_ptr, windows_ptr, y_ptr, N, stride_xm, eps,
    VEC: gl.constexpr, BLOCK_N: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Grid: one program per unaligned row, whose body stays in shared memory: TILES tiles of BLOCK_N columns.

    As packed, but a multiprocessor has room for several such rows: one arrives while another is written.  A
    tile is reduced as it arrives.  A thread reads only what it has copied itself.
    """
    T: gl.constexpr = x_ptr.dtype.element_ty
    TILE: gl.constexpr = vectors_of_threads(VEC, gl.num_warps())
    m = gl.program_id(0).to(gl.int64)
    tiles, n, body, head, e = fetch_row(x_ptr, m, N, stride_xm, VEC, BLOCK_N, TILES)
    edge = gl.load(x_ptr + m * stride_xm + e, mask=e < N, other=0.0).to(gl.float32)

    lane_squares = gl.zeros([BLOCK_N], gl.float32, TILE)
    for t in gl.static_range(TILES):
        async_copy.wait_group(TILES - 1 - t)
        x = tiles.index(t).load(TILE).to(gl.float32)
        lane_squares += x * x
    squares = gl.sum(lane_squares, axis=0)
    squares += gl.sum(edge * edge, axis=0)
    scale = gl.rsqrt(squares / N + eps)

    y_body = y_ptr + start_of_body(m * N, VEC)
    weights = ()
    for t in gl.static_range(TILES + AHEAD):
        if t < TILES:
            weight = load_parameters(windows_ptr + head * body, n, t, body, BLOCK_N, TILES)
            weights = weights + (weight,)  # noqa: RUF005
        if t >= AHEAD:
            x = tiles.index(t - AHEAD).load(TILE).to(gl.float32)
            y = x * scale * weights[t - AHEAD].to(gl.float32)
            y_ptrs = y_body + (t - AHEAD) * BLOCK_N + n
            gl.store(y_ptrs, y.to(T), mask=inside(n, t - AHEAD, body, BLOCK_N, TILES))
    weight = gl.load(weight_ptr + e, mask=e < N, other=0.0).to(gl.float32)
    gl.store(y_ptr + m * N + e, (edge * scale * weight).to(T), mask=e < N)


@implementation(
    "rms_norm", "triton.online", level="tiled", algorithm="row read twice: sum of squares, output"
)
def online(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """A program reads its row twice: any row length."""
    return norm.online(rms_norm_online_kernel, "rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "triton.onepass", level="tiled")
def onepass(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The row stays in registers: up to 32768 columns."""
    return norm.onepass(rms_norm_onepass_kernel, "rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "triton.packed", level="tiled")
def packed(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The row stays in registers as loaded: up to 131072 columns of 16 bits, or 65536 of 32."""
    return norm.packed(rms_norm_packed_kernel, "rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "triton.split", level="tiled")
def split(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """Several programs share a row: up to as long as all resident programs can hold."""
    return norm.split(rms_norm_split_kernel, "rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "triton.gluon", level="tiled", requires="sm_80", without_gpu=False)
def in_gluon(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """Several programs share a row and prefetch: up to as long as all resident programs can hold."""
    return norm.in_gluon(rms_norm_gluon_kernel, rms_norm_gluon_row_kernel, "rms_norm", eps, x, weight=weight)
