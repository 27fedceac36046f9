"""scan in Triton: ``x[M,N] -> y[M,N]``, y[m, n] = x[m, 0] + ... + x[m, n], with sums in fp32.

Variants, slow to fast, as in ``cuda_impl/kernels/scan.cuh``.  Within a tile all are the same; they differ in
how a tile learns the sum of those before it:

* ``row``: a program has a row and scans its tiles one after another: rows are all the parallelism
* ``twopass``: three launches: sum each tile, scan the sums, read x again and scan: x is read twice
* ``lookback``: single-pass scan with decoupled look-back: a tile reads the sums that earlier tiles have
  published, which add up in a fixed tree: x is read once

Within a tile ``tl.cumsum`` compiles to what CUDA writes: additions within a thread, shuffles within a warp
and shared memory between warps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.arguments import check_same
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, grid_1d, next_power_of_2
from triton_impl.parts import columns_of_body, contiguous_rows, edges, start_of_body, vec_of_narrow


@triton.jit
def load_tile(x_row, n, N, whole):
    """A tile's columns ``n`` in fp32, 0 outside of the row.

    Args:
        whole: whether all are inside: a mask that ends between 16-byte boundaries would split vectors.
    """
    x = tl.load(x_row + n) if whole else tl.load(x_row + n, mask=n < N, other=0.0)
    return x.to(tl.float32)


@triton.jit
def store_tile(y_row, n, N, whole, y):
    if whole:
        tl.store(y_row + n, y)
    else:
        tl.store(y_row + n, y, mask=n < N)


# ---- row --------------------------------------------------------------------------------------------------


@triton.jit
def scan_row_kernel(
    x_ptr, y_ptr, M, N, stride_xm, VEC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Grid: one program per BLOCK_M rows: short rows share a program."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = columns_of_body(N, VEC)
    carry = tl.zeros([BLOCK_M, 1], tl.float32)
    if VEC > 1:
        head = start_of_body(m * N, VEC) - m * N
        column = edges(head, N, VEC)
        at_edge = (m < M) & (column < N)
        edge = tl.load(x_ptr + m * stride_xm + column, mask=at_edge, other=0.0).to(tl.float32)
        carry += tl.sum(tl.where(column < head, edge, 0.0), axis=1, keep_dims=True)
    for begin in range(0, columns, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)[None, :]
        inside = (m < M) & (n < columns)
        x = tl.load(x_ptr + start_of_body(m * stride_xm, VEC) + n, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + start_of_body(m * N, VEC) + n, carry + tl.cumsum(x, axis=1), mask=inside)
        carry += tl.sum(x, axis=1, keep_dims=True)
    if VEC > 1:
        tail = carry + tl.cumsum(tl.where(column < head, 0.0, edge), axis=1)
        y = tl.where(column < head, tl.cumsum(edge, axis=1), tail)
        tl.store(y_ptr + m * N + column, y, mask=at_edge)


# ---- twopass ----------------------------------------------------------------------------------------------
# Between the two, scan_row_kernel scans each row's sums.


@triton.jit
def scan_reduce_kernel(x_ptr, N, stride_xm, tiles, sums_ptr, VEC: tl.constexpr, BLOCK_N: tl.constexpr):
    """Grid: one program per tile.  Rows start at multiples of VEC elements."""
    tile = tl.program_id(0)
    m, c = (tile // tiles).to(tl.int64), (tile % tiles).to(tl.int64)
    n = c * BLOCK_N + tl.arange(0, BLOCK_N)
    x = load_tile(x_ptr + tl.multiple_of(m * stride_xm, VEC), n, N, (c + 1) * BLOCK_N <= N)
    tl.store(sums_ptr + tile, tl.sum(x, axis=0))


@triton.jit
def scan_add_kernel(x_ptr, y_ptr, N, stride_xm, tiles, scanned_ptr, VEC: tl.constexpr, BLOCK_N: tl.constexpr):
    """Grid: as scan_reduce_kernel."""
    tile = tl.program_id(0)
    m, c = (tile // tiles).to(tl.int64), (tile % tiles).to(tl.int64)
    n = c * BLOCK_N + tl.arange(0, BLOCK_N)
    whole = (c + 1) * BLOCK_N <= N
    x = load_tile(x_ptr + tl.multiple_of(m * stride_xm, VEC), n, N, whole)
    carry = tl.load(scanned_ptr + tile - 1, mask=c > 0, other=0.0)
    store_tile(y_ptr + tl.multiple_of(m * N, VEC), n, N, whole, carry + tl.cumsum(x, axis=0))


# ---- lookback ---------------------------------------------------------------------------------------------
# Source: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016.  The CUDA
# file explains the tree of sums, and why tiles are taken by ticket.

GROUP = tl.constexpr(32)
KNOWN = tl.constexpr(1 << 32)  # the sum's bits are below


@triton.jit
def publish(word_ptr, total):
    """An atomic: executed by one thread, as one instruction, in the L2 and not in the L1."""
    bits = total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.atomic_xchg(word_ptr, bits | KNOWN, sem="relaxed")


@triton.jit
def wait_for(word_ptr, needed):
    """The published sum of each word, 0 if it is not needed.  Waits until all that are needed are known."""
    word = tl.load(word_ptr, mask=needed, other=KNOWN, volatile=True)
    while tl.sum((word == 0).to(tl.int32), axis=0) > 0:
        word = tl.load(word_ptr, mask=needed, other=KNOWN, volatile=True)
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def look_back(tile_words, tiles, c, tile_sum, LANES: tl.constexpr):
    """The sum of all tiles of a row before the c-th.  Publishes what later tiles need of groups that it ends.

    One word per thread, of which the first 32 count: with fewer words than threads several would read the
    same one, and leave the loop after different iterations.
    """
    group_words = tile_words + tiles
    prefix_words = group_words + tiles // GROUP
    lane = tl.arange(0, LANES)
    group = c // GROUP
    prefix = group // GROUP
    ends_group = c % GROUP == GROUP - 1
    ends_prefix = ends_group & (group % GROUP == GROUP - 1)

    total = wait_for(tile_words + group * GROUP + lane, lane < c % GROUP)
    if ends_group:
        publish(group_words + group, tl.sum(tl.where(lane == GROUP - 1, tile_sum, total), axis=0))
    # At most 31 groups come before, so the last lane is free to read the prefix.
    reads_prefix = (lane == GROUP - 1) & (prefix > 0)
    word_ptr = tl.where(reads_prefix, prefix_words + prefix - 1, group_words + prefix * GROUP + lane)
    total += wait_for(word_ptr, reads_prefix | (lane < group % GROUP))
    before = tl.sum(total, axis=0)
    if ends_prefix:
        publish(prefix_words + prefix, before + tile_sum)
    return before


@triton.jit
def scan_lookback_kernel(
    x_ptr, y_ptr, N, stride_xm, tiles, words_ptr,
    VEC: tl.constexpr, BLOCK_N: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile.  words[0] counts tickets; behind it are the words of each row."""
    ticket = tl.atomic_add(words_ptr, 1, sem="relaxed")
    m, c = ticket // tiles, ticket % tiles

    n = c * BLOCK_N + tl.arange(0, BLOCK_N)
    whole = (c + 1) * BLOCK_N <= N
    x = load_tile(x_ptr + tl.multiple_of(m * stride_xm, VEC), n, N, whole)
    row_words = tiles + tiles // GROUP + tiles // (GROUP * GROUP)
    tile_words = words_ptr + 1 + m * row_words
    tile_sum = tl.sum(x, axis=0)
    publish(tile_words + c, tile_sum)
    before = look_back(tile_words, tiles, c, tile_sum, LANES)
    store_tile(y_ptr + tl.multiple_of(m * N, VEC), n, N, whole, before + tl.cumsum(x, axis=0))


# ---- launches ---------------------------------------------------------------------------------------------


def checked(x: torch.Tensor) -> torch.Tensor:
    check_same("scan", 2, x=x)
    return contiguous_rows(x)


def common_multiple(x: torch.Tensor) -> int:
    """VEC if all rows of x, and of a contiguous output, start on 16-byte boundaries, else 1."""
    (M, N), VEC = x.shape, 16 // x.element_size()
    multiples = M == 1 or (x.stride(0) % VEC == 0 and N % VEC == 0)
    return VEC if multiples and x.data_ptr() % 16 == 0 else 1


def scan_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    M, N = x.shape
    if y.numel() == 0:
        return y
    check_counts(N=N)
    BLOCK_N = min(4096, next_power_of_2(N))
    BLOCK_M = max(1, min(64, 2048 // BLOCK_N))
    num_warps = max(4, BLOCK_N // 512)
    grid = grid_1d(cdiv(M, BLOCK_M))
    scan_row_kernel[grid](
        x, y, M, N, x.stride(0), VEC=vec_of_narrow(x), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps
    )
    return y


@implementation("scan", "triton.row", level="tiled", algorithm="tiles of a row one after another")
def row(x: torch.Tensor) -> torch.Tensor:
    """A program scans a row tile by tile."""
    x = checked(x)
    return scan_rows(x, torch.empty_like(x, memory_format=torch.contiguous_format))


SIZES = {"BLOCK_N": (1024, 2048, 4096, 8192), "WARPS": (2, 4, 8)}


@implementation(
    "scan",
    "triton.twopass",
    level="tiled",
    algorithm="sum of each tile, scan of the sums, scan of each tile",
    tunable=SIZES,
)
def twopass(x: torch.Tensor, *, BLOCK_N: int = 4096, WARPS: int = 4) -> torch.Tensor:
    """Sum each tile, scan the sums, read x again and scan.  Rows of one tile use `row`, here and below."""
    x = checked(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    M, N = x.shape
    tiles = cdiv(N, BLOCK_N)
    if tiles <= 1 or M == 0:
        return scan_rows(x, y)
    tile_sums = x.new_empty((M, tiles), dtype=torch.float32)
    grid = grid_1d(M * tiles)
    options = {"VEC": common_multiple(x), "BLOCK_N": BLOCK_N, "num_warps": WARPS}
    scan_reduce_kernel[grid](x, N, x.stride(0), tiles, tile_sums, **options)
    scanned_sums = scan_rows(tile_sums, torch.empty_like(tile_sums))
    scan_add_kernel[grid](x, y, N, x.stride(0), tiles, scanned_sums, **options)
    return y


@implementation(
    "scan",
    "triton.lookback",
    level="tiled",
    algorithm="decoupled look-back over a fixed tree",
    tunable=SIZES,
)
def lookback(x: torch.Tensor, *, BLOCK_N: int = 4096, WARPS: int = 4) -> torch.Tensor:
    """Single-pass scan: tiles read the sums that earlier tiles have published."""
    x = checked(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    M, N = x.shape
    tiles = cdiv(N, BLOCK_N)
    if tiles <= 1 or M == 0:
        return scan_rows(x, y)
    row_words = tiles + tiles // 32 + tiles // 32**2
    words = torch.zeros(1 + M * row_words, dtype=torch.int64, device=x.device)
    scan_lookback_kernel[grid_1d(M * tiles)](
        x, y, N, x.stride(0), tiles, words,
        VEC=common_multiple(x), BLOCK_N=BLOCK_N, LANES=32 * WARPS, num_warps=WARPS,
    )  # fmt: skip
    return y
