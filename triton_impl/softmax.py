"""softmax over rows, in Triton: ``x[M,N] -> y[M,N]``.

Variants; ``cuda_impl/kernels/softmax.cuh`` has the first four under the same names:

* ``online``: a program reads its row twice, tile by tile: any row length
* ``onepass``: the row stays in registers between reduction and output, so it is read once: 65536 columns
* ``packed``: the row stays in registers as loaded, two 16-bit elements per register; what 128 KB of
  registers do not hold is loaded again: 256 KB
* ``split``: several programs share a row and exchange partial sums through global memory: long rows
* ``gluon``: as split in Gluon, Triton's lower-level language: asynchronous copies prefetch the next chunks
  into shared memory, and a row's partial sums are loaded before they are needed; an unaligned row
  of up to 224 KB has a program to itself, in whose shared memory it stays

``fast_expf`` is CUDA's ``__expf``: the GPU's own instruction, which flushes subnormal results to zero.
``tl.exp`` keeps them, at three more instructions per element.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.libdevice import fast_expf

from compare.arguments import check_same
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, grid_1d, next_power_of_2
from triton_impl.norm import KEPT, TYPES, as_words, in_order, load_tile, rows_as_loaded, tile_of
from triton_impl.parts import columns_of_body, contiguous_rows, edges, start_of_body, vec
from triton_impl.shared_rows import (
    COOPERATIVE,
    columns_of_a_chunk,
    fetch,
    in_vectors,
    published,
    resident_programs,
    share_rows,
)
from triton_impl.staged_rows import (
    fetch_row,
    inside,
    staged_rows,
    vectors_of_threads,
)


@triton.jit
def finite_shift(maximum):
    """The shift before exp: 0 if the maximum is -inf, where exp(-inf - -inf) would be NaN instead of 0."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def softmax_online_kernel(x_ptr, y_ptr, N, stride_xm, BLOCK_N: tl.constexpr):
    """Grid: one program per row.  Each lane keeps a running maximum and sum until the row ends.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    m = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + m * stride_xm
    y_row = y_ptr + m * N
    lane_max = tl.full([BLOCK_N], -float("inf"), tl.float32)
    lane_sum = tl.zeros([BLOCK_N], tl.float32)
    for begin in range(0, N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + n, mask=n < N, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(lane_max, x)
        shift = finite_shift(new_max)
        lane_sum = lane_sum * fast_expf(lane_max - shift) + fast_expf(x - shift)
        lane_max = new_max

    row_max = tl.max(lane_max, axis=0)
    row_sum = tl.sum(lane_sum * fast_expf(lane_max - finite_shift(row_max)), axis=0)

    inverse_sum = 1.0 / row_sum
    for begin in range(0, N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + n, mask=n < N, other=-float("inf")).to(tl.float32)
        tl.store(y_row + n, fast_expf(x - row_max) * inverse_sum, mask=n < N)


@triton.jit
def softmax_onepass_kernel(
    x_ptr, y_ptr, M, N, stride_xm, VEC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Grid: one program per BLOCK_M rows of N <= BLOCK_N columns, which stay in registers."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    inside = (m < M) & (n < columns_of_body(N, VEC))
    x = tl.load(x_ptr + start_of_body(m * stride_xm, VEC) + n, mask=inside, other=-float("inf"))
    x = x.to(tl.float32)
    row_max = tl.max(x, axis=1, keep_dims=True)
    if VEC > 1:
        column = edges(start_of_body(m * N, VEC) - m * N, N, VEC)
        at_edge = (m < M) & (column < N)
        edge = tl.load(x_ptr + m * stride_xm + column, mask=at_edge, other=-float("inf")).to(tl.float32)
        row_max = tl.maximum(row_max, tl.max(edge, axis=1, keep_dims=True))
    e = fast_expf(x - row_max)
    row_sum = tl.sum(e, axis=1, keep_dims=True)
    if VEC > 1:
        edge = fast_expf(edge - row_max)
        row_sum += tl.sum(edge, axis=1, keep_dims=True)
        tl.store(y_ptr + m * N + column, edge * (1.0 / row_sum), mask=at_edge)
    tl.store(y_ptr + start_of_body(m * N, VEC) + n, e * (1.0 / row_sum), mask=inside)


@triton.jit
def softmax_packed_kernel(
    x_ptr, y_ptr, N, stride_xm,
    DTYPE: tl.constexpr, NOTHING: tl.constexpr, VEC: tl.constexpr, BLOCK_N: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Grid: one program per row, whose body stays in registers as loaded: TILES tiles of BLOCK_N words.

    Registers then hold twice as many 16-bit elements; exponentials are computed twice.  64 registers per
    thread are enough for 32 words, so that a multiprocessor holds 128 KB of rows.  Tiles from the KEPT-th on
    are loaded again, from the L2.  NOTHING: a word of -inf.
    """
    PER_WORD: tl.constexpr = 32 // DTYPE.primitive_bitwidth
    m = tl.program_id(0).to(tl.int64)
    body = columns_of_body(N, VEC)
    x_words = as_words(x_ptr + start_of_body(m * stride_xm, VEC))
    count = body // PER_WORD
    column = tl.arange(0, BLOCK_N * PER_WORD)
    tiles = ()
    for t in tl.static_range(min(TILES, KEPT)):
        x = load_tile(x_words, t, count, NOTHING, BLOCK_N, TILES)
        tiles = tiles + (x,)  # noqa: RUF005 - Triton does not support (*tiles, x) (to 3.9)
    lane_max = tl.full([BLOCK_N * PER_WORD], -float("inf"), tl.float32)
    if VEC > 1:
        e = edges(start_of_body(m * N, VEC) - m * N, N, VEC)
        edge = tl.load(x_ptr + m * stride_xm + e, mask=e < N, other=-float("inf")).to(tl.float32)

    for t in tl.static_range(TILES):
        words = tile_of(tiles, t, x_words, count, NOTHING, BLOCK_N, TILES)
        lane_max = tl.maximum(lane_max, in_order(words, DTYPE))
    row_max = tl.max(lane_max)
    if VEC > 1:
        row_max = tl.maximum(row_max, tl.max(edge))
    lane_sum = tl.zeros([BLOCK_N * PER_WORD], tl.float32)
    for t in tl.static_range(TILES):
        words = tile_of(tiles, t, x_words, count, NOTHING, BLOCK_N, TILES)
        lane_sum += fast_expf(in_order(words, DTYPE) - row_max)
    row_sum = tl.sum(lane_sum)
    if VEC > 1:
        edge = fast_expf(edge - row_max)
        row_sum += tl.sum(edge)
    inverse_sum = 1.0 / row_sum

    y_body = y_ptr + start_of_body(m * N, VEC)
    for t in tl.static_range(TILES):
        words = tile_of(tiles, t, x_words, count, NOTHING, BLOCK_N, TILES)
        n = t * BLOCK_N * PER_WORD + column
        y = fast_expf(in_order(words, DTYPE) - row_max) * inverse_sum
        tl.store(y_body + n, y, mask=(n < body) | (t + 1 < TILES))
    if VEC > 1:
        tl.store(y_ptr + m * N + e, edge * inverse_sum, mask=e < N)


@triton.jit
def pack(maximum, total):
    """Two floats in one 8-byte word, written by one store."""
    low = maximum.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (total.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def wait_for_row(of_chunk_ptr, chunks, BLOCK_C: tl.constexpr):
    """Maximum and sum of a row from all its chunks; polls until every chunk's word is not 0."""
    c = tl.arange(0, BLOCK_C)
    part = tl.load(of_chunk_ptr + c, mask=c < chunks, other=-1, volatile=True)
    while tl.sum((part == 0).to(tl.int32), axis=0) > 0:
        part = tl.load(of_chunk_ptr + c, mask=c < chunks, other=-1, volatile=True)
    maximum = part.to(tl.int32).to(tl.float32, bitcast=True)
    total = (part >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    maximum = tl.where(c < chunks, maximum, -float("inf"))
    total = tl.where(c < chunks, total, 0.0)
    row_max = tl.max(maximum, axis=0)
    return row_max, tl.sum(total * fast_expf(maximum - finite_shift(row_max)), axis=0)


@triton.jit
def softmax_split_kernel(
    x_ptr, y_ptr, M, N, stride_xm, chunks, of_chunk_ptr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Rows are split into ``chunks`` chunks of BLOCK_N columns, assigned round-robin to persistent programs.

    Each iteration reduces a chunk, publishes its maximum and sum and keeps the chunk in registers.  Two
    iterations later the other programs have published theirs, and the output is written.  Every element is
    read once, and the next chunk is prefetched meanwhile.

    Invariant: all programs are resident, because they wait for each other.  A row has no more chunks than
    there are programs, nor than BLOCK_C.  The host ensures it.  of_chunk[M * chunks] starts as 0: no chunk
    has maximum 0 and sum 0, so one nonzero word is both result and flag.
    """
    programs = tl.num_programs(0)
    first = tl.program_id(0)
    total = tl.cast(M, tl.int64) * chunks
    column = tl.arange(0, BLOCK_N)
    # The current chunk is the c-th of row m: incremental, because that is cheaper than a division per
    # iteration.
    step_m, step_c = programs // chunks, programs % chunks
    m, c = (first // chunks).to(tl.int64), first % chunks

    n = c * BLOCK_N + column
    x = tl.load(x_ptr + m * stride_xm + n, mask=(n < N) & (m < M), other=-float("inf"))
    # Not `kept = x`: Triton treats two names of one value as loop-invariant and drops the update.
    kept, kept_m, kept_c = tl.where(n < N, x, x), m + 0, c + 0
    old, old_m, old_c = tl.where(n < N, x, x), m + 0, c + 0
    for chunk in tl.range(first, total + 2 * programs, programs):
        if chunk < total:
            chunk_max = tl.max(x, axis=0).to(tl.float32)
            chunk_sum = tl.sum(fast_expf(x.to(tl.float32) - finite_shift(chunk_max)), axis=0)
            tl.store(of_chunk_ptr + chunk, pack(chunk_max, chunk_sum))
        next_c = c + step_c
        next_m = m + step_m + (next_c >= chunks).to(tl.int32)
        next_c = tl.where(next_c >= chunks, next_c - chunks, next_c)
        n = next_c * BLOCK_N + column
        next_x = tl.load(x_ptr + next_m * stride_xm + n, mask=(n < N) & (next_m < M), other=-float("inf"))
        if chunk >= 2 * programs:
            row_max, row_sum = wait_for_row(of_chunk_ptr + old_m * chunks, chunks, BLOCK_C)
            n = old_c * BLOCK_N + column
            y = fast_expf(old.to(tl.float32) - row_max) * (1.0 / row_sum)
            tl.store(y_ptr + old_m * N + n, y, mask=n < N)
        old, old_m, old_c = kept, kept_m, kept_c
        kept, kept_m, kept_c = x, m, c
        x, m, c = next_x, next_m, next_c


# --------------------------------------------------------------------------- Gluon
# Explicit: which thread holds which element, what is in shared memory, and when it has arrived.


@gluon.jit
def of_rows(words, there):
    """Maximum and sum of each row, from the words of all its chunks (`wait_for_row`, row by row)."""
    maximum = gl.where(there, words.to(gl.int32).to(gl.float32, bitcast=True), -float("inf"))
    total = gl.where(there, (words >> 32).to(gl.int32).to(gl.float32, bitcast=True), 0.0)
    row_max = gl.max(maximum, axis=0)
    return row_max, gl.sum(total * fast_expf(maximum - finite_shift(row_max)[None, :]), axis=0)


@gluon.jit
def softmax_gluon_kernel(
    x_ptr, y_ptr, M, vectors, stride_vectors, chunks, of_chunk_ptr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_C: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As split, but a program has the same BLOCK_N columns of many rows, and writes them one iteration later.

    An iteration has BLOCK_M rows, one per warp: a row's sums need no block barrier, and one warp polls its
    words. Two warps polling the same words could see different values.  Tiles are prefetched into a ring of
    STAGES stages in shared memory: two are in use, this iteration's and the last one's; the others are in
    flight.  A thread reads only what it has copied itself, so it waits for no other thread's copies.

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

    iteration = 0
    for m in range(first, M + step, step):
        old_m = m - step
        # Loaded now, used after the reduction, which takes as long as the load's latency.
        words = published(of_chunk_ptr, old_m + every_r, every_c, M, chunks)
        async_copy.wait_group(STAGES - 2)
        if m < M:
            x = gl.where(inside, ring.index(iteration % STAGES).load(TILE).to(gl.float32), -float("inf"))
            chunk_max = gl.max(x, axis=1)
            chunk_sum = gl.sum(fast_expf(x - finite_shift(chunk_max)[:, None]), axis=1)
            gl.store(of_chunk_ptr + (m + r) * chunks + c, pack(chunk_max, chunk_sum), mask=m + r < M)
        if old_m >= 0:
            while gl.sum(gl.sum((words == 0).to(gl.int32), axis=0), axis=0) > 0:
                words = published(of_chunk_ptr, old_m + every_r, every_c, M, chunks)
            row_max, row_sum = of_rows(words, every_c < chunks)
            row_max = gl.convert_layout(row_max, gl.SliceLayout(1, TILE), assert_trivial=True)[:, None]
            row_sum = gl.convert_layout(row_sum, gl.SliceLayout(1, TILE), assert_trivial=True)[:, None]
            x = ring.index((iteration + STAGES - 1) % STAGES).load(TILE).to(gl.float32)
            y = fast_expf(x - row_max) * (1.0 / row_sum)
            rows = (old_m + r)[:, None]
            gl.store(y_ptr + rows * N + n, y.to(T), mask=(rows < M) & inside)
        rows = (m + (STAGES - 1) * step + r)[:, None]
        x_ptrs = x_ptr + rows * stride_vectors * VEC + n
        fetch(ring, iteration + STAGES - 1, x_ptrs, (rows < M) & inside, STAGES)
        iteration += 1  # noqa: SIM113 - Triton has no enumerate (to 3.9)


@gluon.jit
def softmax_gluon_row_kernel(
    x_ptr, y_ptr, N, stride_xm,
    VEC: gl.constexpr, BLOCK_N: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Grid: one program per unaligned row, whose body stays in shared memory: TILES tiles of BLOCK_N columns.

    As packed, but a multiprocessor has room for several such rows: one arrives while another is written.  A
    tile is reduced as it arrives.  A thread reads only what it has copied itself.
    """
    T: gl.constexpr = x_ptr.dtype.element_ty
    TILE: gl.constexpr = vectors_of_threads(VEC, gl.num_warps())
    m = gl.program_id(0).to(gl.int64)
    tiles, n, body, _, e = fetch_row(x_ptr, m, N, stride_xm, VEC, BLOCK_N, TILES)
    edge = gl.load(x_ptr + m * stride_xm + e, mask=e < N, other=-float("inf")).to(gl.float32)

    lane_max = gl.full([BLOCK_N], -float("inf"), gl.float32, TILE)
    for t in gl.static_range(TILES):
        async_copy.wait_group(TILES - 1 - t)
        x = tiles.index(t).load(TILE).to(gl.float32)
        lane_max = gl.maximum(lane_max, gl.where(inside(n, t, body, BLOCK_N, TILES), x, -float("inf")))
    row_max = gl.max(lane_max, axis=0)
    row_max = gl.maximum(row_max, gl.max(edge, axis=0))
    lane_sum = gl.zeros([BLOCK_N], gl.float32, TILE)
    for t in gl.static_range(TILES):
        x = tiles.index(t).load(TILE).to(gl.float32)
        x = gl.where(inside(n, t, body, BLOCK_N, TILES), x, -float("inf"))
        lane_sum += fast_expf(x - row_max)
    row_sum = gl.sum(lane_sum, axis=0)
    edge = fast_expf(edge - row_max)
    row_sum += gl.sum(edge, axis=0)
    inverse_sum = 1.0 / row_sum

    y_body = y_ptr + start_of_body(m * N, VEC)
    for t in gl.static_range(TILES):
        y = fast_expf(tiles.index(t).load(TILE).to(gl.float32) - row_max) * inverse_sum
        gl.store(y_body + t * BLOCK_N + n, y.to(T), mask=inside(n, t, body, BLOCK_N, TILES))
    gl.store(y_ptr + m * N + e, (edge * inverse_sum).to(T), mask=e < N)


def checked(x: torch.Tensor) -> torch.Tensor:
    """``x`` with contiguous rows; a copy if they are not."""
    check_same("softmax", 2, x=x)
    return contiguous_rows(x)


@implementation("softmax", "triton.online", level="tiled", algorithm="online softmax: the row is read twice")
def online(x: torch.Tensor) -> torch.Tensor:
    """A program reads its row twice: any row length."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    check_counts(N=N)
    BLOCK_N = min(8192, next_power_of_2(N))
    num_warps = 16 if BLOCK_N == 8192 else 4
    softmax_online_kernel[grid_1d(M)](x, y, N, x.stride(0), BLOCK_N=BLOCK_N, num_warps=num_warps)
    return y


ONEPASS_COLUMNS = 65536


@implementation(
    "softmax", "triton.onepass", level="tiled", algorithm="row in registers: maximum, sum, output"
)
def onepass(x: torch.Tensor) -> torch.Tensor:
    """The row stays in registers: up to 65536 columns, which already spill."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    if N > ONEPASS_COLUMNS:
        raise NotImplementedError(f"N={N}: registers hold rows of up to {ONEPASS_COLUMNS} columns")
    BLOCK_N = next_power_of_2(N)
    BLOCK_M = max(1, min(4, 2048 // BLOCK_N))  # several short rows per program
    num_warps = max(4, BLOCK_N // 2048)  # 64 elements of a long row per thread
    grid = grid_1d(cdiv(M, BLOCK_M))
    softmax_onepass_kernel[grid](
        x, y, M, N, x.stride(0), VEC=vec(x), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps
    )
    return y


NOTHING = {torch.float32: -0x00800000, torch.float16: -0x03FF0400, torch.bfloat16: -0x007F0080}
"""A word of -inf: 0xFF800000, 0xFC00FC00, 0xFF80FF80."""


@implementation("softmax", "triton.packed", level="tiled")
def packed(x: torch.Tensor) -> torch.Tensor:
    """The row stays in registers as loaded: up to 131072 columns of 16 bits, or 65536 of 32."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    of = rows_as_loaded(x)
    softmax_packed_kernel[grid_1d(M)](
        of.x, y, N, of.x.stride(0), DTYPE=TYPES[x.dtype], NOTHING=NOTHING[x.dtype], VEC=of.VEC, **of.tiles
    )
    return y


@implementation("softmax", "triton.split", level="tiled")
def split(x: torch.Tensor) -> torch.Tensor:
    """Several programs share a row: up to as long as all resident programs can hold."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    num_warps = 4
    PROGRAMS = 5 if x.element_size() == 4 else 4  # per multiprocessor
    BLOCK_N = columns_of_a_chunk(N, 8192 // x.element_size())
    chunks = cdiv(N, BLOCK_N)
    of_chunk = x.new_zeros(M * chunks, dtype=torch.int64)
    # At least one word per thread: two threads polling one word could see different values.
    BLOCK_C = max(32 * num_warps, next_power_of_2(chunks))
    arguments = (x, y, M, N, x.stride(0), chunks, of_chunk)
    options = {"BLOCK_N": BLOCK_N, "BLOCK_C": BLOCK_C}
    options |= {"num_warps": num_warps, "num_stages": 1, **COOPERATIVE}
    programs = resident_programs(softmax_split_kernel, arguments, options, PROGRAMS, chunks)
    softmax_split_kernel[(min(programs, M * chunks),)](*arguments, **options)
    return y


@implementation(
    "softmax",
    "triton.gluon",
    level="tiled",
    requires="sm_80",
    without_gpu=False,
    tunable={"BLOCK_M": (2, 4, 8), "PROGRAMS": (1, 2, 3)},
)
def in_gluon(x: torch.Tensor, *, BLOCK_M: int = 4, PROGRAMS: int = 2) -> torch.Tensor:
    """Several programs share a row and prefetch: up to as long as all resident programs can hold."""
    x = checked(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    row = staged_rows(x)
    if row is not None:
        softmax_gluon_row_kernel[grid_1d(x.size(0))](row.x, y, x.size(1), row.x.stride(0), **row.tiles)
        return y
    x = in_vectors(x)
    share_rows(softmax_gluon_kernel, x, (x, y), BLOCK_M=BLOCK_M, PROGRAMS=PROGRAMS)
    return y
