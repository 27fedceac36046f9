"""compact in Triton: ``x[N] -> y[N]``, the x[n] > 0 in order, then NaN if there is room; the rest
unspecified.

An element's output index is the number of kept elements before it.  Variants, slow to fast, as in
``cuda_impl/kernels/compact.cuh``; they differ in how a program learns what the programs before it keep:

* ``twopass``: three launches: count each tile, scan the counts, read x again and scatter: x is read twice
* ``onepass``: single-pass scan with decoupled look-back: a tile reads the counts that earlier tiles have
  published: x is read once
* ``gluon``: as onepass in Gluon, Triton's lower-level language: an explicit layout of elements to lanes, so
  that a warp can use ballots

Within a tile ``tl.cumsum`` does with shuffles what CUDA does with ballots.
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from compare.arguments import check_same
from compare.registry import implementation
from triton_impl.counts import cdiv


@triton.jit
def load_tile(x_ptr, N, stride_xn, tile, BLOCK_SIZE: tl.constexpr):
    """A tile's elements, and which of them are kept; NaN > 0 is false."""
    n = tile * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + n * stride_xn, mask=n < N, other=0.0)  # 0 is not kept
    return x, (x.to(tl.float32) > 0.0).to(tl.int32)


@triton.jit
def store_kept(y_ptr, before, x, kept):
    place = before + tl.cumsum(kept, axis=0) - kept
    tl.store(y_ptr + place, x, mask=kept != 0)


@triton.jit
def store_end(y_ptr, count, N):
    """The NaN that ends y, if there is room."""
    tl.store(y_ptr + count, float("nan"), mask=count < N)


# ---- twopass ----------------------------------------------------------------------------------------------


@triton.jit
def compact_count_kernel(x_ptr, N, stride_xn, of_tile_ptr, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per tile of BLOCK_SIZE elements."""
    tile = tl.program_id(0).to(tl.int64)
    _, kept = load_tile(x_ptr, N, stride_xn, tile, BLOCK_SIZE)
    tl.store(of_tile_ptr + tile, tl.sum(kept, axis=0).to(tl.int64))


@triton.jit
def compact_scan_kernel(of_tile_ptr, tiles, BLOCK_TILES: tl.constexpr):
    """Grid: one program.  Exclusive scan of the tiles' counts, in place; of_tile[tiles] gets the total."""
    before = tl.zeros((), tl.int64)
    for begin in range(0, tiles, BLOCK_TILES):
        tile = begin + tl.arange(0, BLOCK_TILES)
        count = tl.load(of_tile_ptr + tile, mask=tile < tiles, other=0)
        tl.store(of_tile_ptr + tile, before + tl.cumsum(count, axis=0) - count, mask=tile < tiles)
        before += tl.sum(count, axis=0)
    tl.store(of_tile_ptr + tiles, before)


@triton.jit
def compact_scatter_kernel(x_ptr, y_ptr, N, stride_xn, of_tile_ptr, BLOCK_SIZE: tl.constexpr):
    """Grid: as compact_count_kernel."""
    tile = tl.program_id(0).to(tl.int64)
    x, kept = load_tile(x_ptr, N, stride_xn, tile, BLOCK_SIZE)
    store_kept(y_ptr, tl.load(of_tile_ptr + tile), x, kept)
    if tile == 0:
        store_end(y_ptr, tl.load(of_tile_ptr + tl.num_programs(0)), N)


SIZES = {"BLOCK_SIZE": (1024, 2048, 4096, 8192), "WARPS": (2, 4, 8, 16)}


@implementation("compact", "triton.twopass", level="tiled", tunable=SIZES)
def twopass(x: torch.Tensor, *, BLOCK_SIZE: int = 4096, WARPS: int = 8) -> torch.Tensor:
    """Count each tile, scan the counts, read x again and scatter."""
    check_same("compact", 1, x=x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    N = x.numel()
    if N == 0:
        return y
    tiles = cdiv(N, BLOCK_SIZE)
    of_tile = torch.empty(tiles + 1, dtype=torch.int64, device=x.device)
    sizes = (N, x.stride(0))
    compact_count_kernel[(tiles,)](x, *sizes, of_tile, BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    compact_scan_kernel[(1,)](of_tile, tiles, BLOCK_TILES=1024, num_warps=8)
    compact_scatter_kernel[(tiles,)](x, y, *sizes, of_tile, BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y


# ---- onepass ----------------------------------------------------------------------------------------------
# Source: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016.  The CUDA
# file explains how tiles publish their counts, and why tiles are taken by ticket.

UNKNOWN, OWN, ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # the lowest two bits of a word


@triton.jit
def publish(of_tile_ptr, tile, state, count):
    """An atomic: executed by one thread, as one instruction, in the L2 and not in the L1."""
    tl.atomic_xchg(of_tile_ptr + tile, (count << 2) | state, sem="relaxed")


@triton.jit
def look_back(of_tile_ptr, tile, lane, LANES: tl.constexpr):
    """How many elements all tiles before this one keep.

    LANES tiles per iteration, one per thread.  With fewer LANES than threads, several threads would read the
    same word, could see different values, and would diverge.

    Args:
        lane: 0 to LANES - 1.
    """
    before = tl.cast(0, tl.int64)
    nearest = tile - 1
    looking = tile > 0
    while looking:
        other = nearest - lane
        # Tiles before the first count as ALL (2) with 0 kept.
        word = tl.load(of_tile_ptr + other, mask=other >= 0, other=2, volatile=True)
        state = word & 3
        knows_all = tl.min(tl.where(state == ALL, lane, LANES), axis=0)  # the nearest such tile, if any
        needed = lane <= knows_all
        unknown = tl.sum((needed & (state == UNKNOWN)).to(tl.int32), axis=0)
        if unknown == 0:
            before += tl.sum(tl.where(needed, word >> 2, 0), axis=0)
            nearest -= LANES
            looking = knows_all == LANES
    return before


@triton.jit
def find_place(of_tile_ptr, tile, count, lane, LANES: tl.constexpr):
    """How many elements all tiles before this one keep; publishes this tile's count, then the inclusive sum.

    Args:
        lane: as for `look_back`.
    """
    # Published first, because later tiles wait for it.
    publish(of_tile_ptr, tile, OWN, count)
    before = look_back(of_tile_ptr, tile, lane, LANES)
    publish(of_tile_ptr, tile, ALL, before + count)
    return before


@triton.jit
def compact_onepass_kernel(
    x_ptr, y_ptr, N, stride_xn, words_ptr, BLOCK_SIZE: tl.constexpr, LANES: tl.constexpr
):
    """Grid: one program per tile.  words[0] counts tickets, words[1 + tile] is the tile's; all start as 0."""
    tile = tl.atomic_add(words_ptr, 1, sem="relaxed")
    of_tile_ptr = words_ptr + 1
    x, kept = load_tile(x_ptr, N, stride_xn, tile, BLOCK_SIZE)
    count = tl.sum(kept, axis=0).to(tl.int64)
    before = find_place(of_tile_ptr, tile, count, tl.arange(0, LANES), LANES)
    store_kept(y_ptr, before, x, kept)
    if tile == tl.num_programs(0) - 1:
        store_end(y_ptr, before + count, N)


@implementation("compact", "triton.onepass", level="tiled", tunable=SIZES)
def onepass(x: torch.Tensor, *, BLOCK_SIZE: int = 4096, WARPS: int = 8) -> torch.Tensor:
    """Single-pass scan: tiles look back at the counts that earlier tiles have published."""
    check_same("compact", 1, x=x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    N = x.numel()
    if N == 0:
        return y
    tiles = cdiv(N, BLOCK_SIZE)
    words = torch.zeros(1 + tiles, dtype=torch.int64, device=x.device)
    compact_onepass_kernel[(tiles,)](
        x, y, N, x.stride(0), words, BLOCK_SIZE=BLOCK_SIZE, LANES=32 * WARPS, num_warps=WARPS
    )
    return y


# ---- gluon ------------------------------------------------------------------------------------------------
# A tile is ROWS x 32 elements: one element per lane, and a warp's rows are consecutive, as CUDA's steps are.


@gluon.jit
def vote(kept):
    """How many lanes before this one keep their element of the row, and how many lanes do in all.

    Each register of ``kept`` is a row of 32: the instruction relies on it, but no Triton layout states it.
    """
    return gl.inline_asm_elementwise(
        """{
        .reg .pred keep;
        .reg .b32 kept, before;
        setp.ne.s32 keep, $2, 0;
        vote.sync.ballot.b32 kept, keep, 0xffffffff;
        mov.u32 before, %lanemask_lt;
        and.b32 before, before, kept;
        popc.b32 $0, before;
        popc.b32 $1, kept;
        }""",
        "=r,=r,r",
        [kept],
        dtype=(gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def compact_gluon_kernel(x_ptr, y_ptr, N, stride_xn, words_ptr, ROWS: gl.constexpr):
    """Grid: as onepass."""
    WARPS: gl.constexpr = gl.num_warps()
    STEPS: gl.constexpr = gl.BlockedLayout([ROWS // WARPS, 1], [1, 32], [WARPS, 1], [1, 0])
    WORD_A_THREAD: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    tile = gl.atomic_add(words_ptr, 1, sem="relaxed")
    of_tile_ptr = words_ptr + 1
    row = gl.arange(0, ROWS, gl.SliceLayout(1, STEPS))
    lane = gl.arange(0, 32, gl.SliceLayout(0, STEPS))
    n = tile * (ROWS * 32) + (row[:, None] * 32 + lane[None, :])
    x = gl.load(x_ptr + n * stride_xn, mask=n < N, other=0.0)  # 0 is not kept
    kept = (x.to(gl.float32) > 0.0).to(gl.int32)
    before_lane, of_row = vote(kept)
    up_to_row = gl.associative_scan(of_row, 0, add)
    count = gl.max(gl.sum(of_row, axis=0), axis=0).to(gl.int64)  # equal in all lanes
    before = find_place(of_tile_ptr, tile, count, gl.arange(0, 32 * WARPS, WORD_A_THREAD), 32 * WARPS)
    gl.store(y_ptr + before + (up_to_row - of_row + before_lane), x, mask=kept != 0)
    if tile == gl.num_programs(0) - 1:
        store_end(y_ptr, before + count, N)


@implementation(
    "compact",
    "triton.gluon",
    level="tiled",
    requires="sm_80",
    without_gpu=False,
    tunable={"ROWS": (64, 128, 256), "WARPS": (2, 4, 8)},
)
def in_gluon(x: torch.Tensor, *, ROWS: int = 128, WARPS: int = 4) -> torch.Tensor:
    """Single-pass scan with look-back; warps use ballots."""
    check_same("compact", 1, x=x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    N = x.numel()
    if N == 0:
        return y
    tiles = cdiv(N, 32 * ROWS)
    words = torch.zeros(1 + tiles, dtype=torch.int64, device=x.device)
    compact_gluon_kernel[(tiles,)](x, y, N, x.stride(0), words, ROWS=ROWS, num_warps=WARPS)
    return y
