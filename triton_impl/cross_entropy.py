"""cross_entropy in Triton: ``logits[M,V], targets[M] -> loss[M]``.

Variants; ``cuda_impl/kernels/cross_entropy.cuh`` has the same under the same names:

* ``online``: a program reads a row once, tile by tile, with a running maximum and sum
* ``split``: several programs share a row; the last to finish combines the partial results: few long rows

A tile has VECTORS vectors of VEC elements, 16 bytes, per thread.  A row of one tile is reduced at once: first
its maximum, then the sum.  Longer rows keep a maximum and a sum per thread until their end: a reduction over
the whole tile would need shuffles and barriers in every iteration.  ``tl.reshape`` moves nothing there: it
gives the tile the shape in which the compiler has distributed it over the threads.

A row that is not 16-byte aligned has elements before its first vector or after its last.  Triton cannot
assign those to one thread (to 3.9), so they form a small tensor of their own.

``fast_expf`` is CUDA's ``__expf``: the GPU's own instruction, which flushes subnormal results to zero.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import fast_expf

from compare.arguments import check_targets
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, grid_1d, next_power_of_2
from triton_impl.parts import contiguous_rows
from triton_impl.softmax import finite_shift

IGNORED = tl.constexpr(-100)
"""PyTorch's ignore_index: the loss of such a row is 0."""


@triton.jit
def reduce(
    logits_ptr, first, count,
    WHOLE: tl.constexpr, ONE_TILE: tl.constexpr,
    VECTORS: tl.constexpr, THREADS: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Maximum and sum of exponentials of ``count`` elements of each row, starting at ``first[ROWS]``.

    Vectorized loads of VEC elements, from the first aligned element.  Unless WHOLE, fewer than VEC elements
    may lie before the first vector, and fewer than VEC after the last.  ONE_TILE, of rows that are WHOLE:
    the elements are at most one tile.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    ROWS: tl.constexpr = first.shape[0]
    AT_A_TIME: tl.constexpr = VECTORS * THREADS
    first_vec, end_vec = tl.cdiv(first, VEC), (first + count) // VEC
    all_vectors = (end_vec - first_vec).to(tl.int32)
    n = tl.arange(0, AT_A_TIME * VEC)[None, :]
    tile_ptr = logits_ptr + first_vec[:, None] * VEC + n
    if ONE_TILE:
        x = tl.load(tile_ptr, mask=n // VEC < all_vectors[:, None], other=-float("inf")).to(tl.float32)
        row_max = tl.max(x, axis=1)
        row_sum = tl.sum(fast_expf(x - finite_shift(row_max)[:, None]), axis=1)
    else:
        own_max = tl.full([ROWS, THREADS], -float("inf"), tl.float32)
        own_sum = tl.zeros([ROWS, THREADS], tl.float32)
        if not WHOLE:
            e = tl.arange(0, THREADS)[None, :]  # VEC slots for the elements before, and VEC for those after
            behind = tl.maximum(first_vec, end_vec)[:, None] * VEC
            at = tl.where(e < VEC, first[:, None] + e, behind + e - VEC)
            mine = ((e >= VEC) | (at < first_vec[:, None] * VEC)) & (at < first[:, None] + count)
            own_max = tl.load(logits_ptr + at, mask=mine, other=-float("inf")).to(tl.float32)
            own_sum = fast_expf(own_max - finite_shift(own_max))
        for begin in range(0, tl.cdiv(count, VEC), AT_A_TIME):
            vectors = tl.minimum(all_vectors - begin, AT_A_TIME).to(tl.int32)[:, None]
            x = tl.load(tile_ptr + begin * VEC, mask=n // VEC < vectors, other=-float("inf")).to(tl.float32)
            x = tl.reshape(x, [ROWS, VECTORS, THREADS, VEC])
            new_max = tl.maximum(own_max, tl.max(tl.max(x, axis=3), axis=1))
            shift = finite_shift(new_max)
            new_sum = tl.sum(tl.sum(fast_expf(x - shift[:, None, :, None]), axis=3), axis=1)
            own_sum = own_sum * fast_expf(own_max - shift) + new_sum
            own_max = new_max
        row_max, row_sum = combined(own_max, own_sum)
    return row_max, row_sum


@triton.jit
def combined(maximum, total):
    """Combine maxima and sums of the parts of each row into one."""
    of_all = tl.max(maximum, axis=1)
    return of_all, tl.sum(total * fast_expf(maximum - finite_shift(of_all)[:, None]), axis=1)


@triton.jit
def loss_of(row_ptr, V, target, row_max, row_sum):
    """log(sum(exp(x))) - x[target]; NaN for an out-of-range target."""
    inside = (target >= 0) & (target < V)
    picked = tl.load(row_ptr + target, mask=inside, other=float("nan")).to(tl.float32)
    # This order keeps the logarithm's precision where maximum and picked are large.
    return tl.where(target == IGNORED, 0.0, tl.log(row_sum) - (picked - row_max))


@triton.jit
def cross_entropy_online_kernel(
    logits_ptr, targets_ptr, loss_ptr, M, V, stride_lm, stride_tm,
    WHOLE: tl.constexpr, ONE_TILE: tl.constexpr, ROWS: tl.constexpr,
    VECTORS: tl.constexpr, THREADS: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Grid: one program per ROWS rows."""
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = m < M
    row = tl.where(there, m, 0)  # for rows that do not exist, the first
    target = tl.load(targets_ptr + row * stride_tm)
    row_max, row_sum = reduce(logits_ptr, row * stride_lm, V, WHOLE, ONE_TILE, VECTORS, THREADS, VEC)
    tl.store(loss_ptr + m, loss_of(logits_ptr + row * stride_lm, V, target, row_max, row_sum), mask=there)


@triton.jit
def cross_entropy_split_kernel(
    logits_ptr, targets_ptr, loss_ptr, V, stride_lm, stride_tm, slice_columns, splits,
    max_ptr, sum_ptr, arrived_ptr,
    WHOLE: tl.constexpr, VECTORS: tl.constexpr, THREADS: tl.constexpr, VEC: tl.constexpr,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Grid: ``splits`` programs per row, each with ``slice_columns`` columns of it; splits <= BLOCK_S.

    A program writes its partial result to max[M,splits] and sum[M,splits], then increments arrived[M], which
    starts as 0.  The program that finds all others counted combines the partial results, in column order
    whichever program it is.  No program waits for another.
    """
    program = tl.program_id(0)
    m = (program // splits).to(tl.int64)
    begin = (program % splits).to(tl.int64) * slice_columns
    one = tl.arange(0, 1)  # a tensor of one row
    first, count = m * stride_lm + begin + one, tl.minimum(slice_columns, V - begin)
    part_max, part_sum = reduce(logits_ptr, first, count, WHOLE, False, VECTORS, THREADS, VEC)

    tl.store(max_ptr + program + one, part_max)
    tl.store(sum_ptr + program + one, part_sum)
    tl.debug_barrier()  # a program that sees the count must see the partial result
    if tl.atomic_add(arrived_ptr + m, 1, sem="acq_rel") == splits - 1:
        s = tl.arange(0, BLOCK_S)[None, :]
        at = m * splits + s
        # .cg bypasses the L1, whose lines may be stale.
        of_max = tl.load(max_ptr + at, mask=s < splits, other=-float("inf"), cache_modifier=".cg")
        of_sum = tl.load(sum_ptr + at, mask=s < splits, other=0.0, cache_modifier=".cg")
        row_max, row_sum = combined(of_max, of_sum)
        target = tl.load(targets_ptr + m * stride_tm)
        tl.store(loss_ptr + m + one, loss_of(logits_ptr + m * stride_lm, V, target, row_max, row_sum))


def checked(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """``logits`` with contiguous rows; a copy if they are not."""
    check_targets("cross_entropy", logits, targets)
    return contiguous_rows(logits)


def tile(logits: torch.Tensor) -> dict[str, int]:
    """WHOLE, VECTORS, THREADS and VEC: 32 bytes per thread, but no more than a row.

    16-byte vectorized loads if the first row is 16-byte aligned; WHOLE if all rows start and end aligned.

    Few loads in flight per program leave registers for many programs.  Together these keep the memory busy,
    and while one program reduces, others load.
    """
    VEC = 16 // logits.element_size() if logits.data_ptr() % 16 == 0 and logits.size(1) > 0 else 1
    vectors = max(1, cdiv(logits.size(1), VEC))
    if vectors >= 1 << 31:
        raise NotImplementedError(f"V={logits.size(1)}: at most {(1 << 31) - 1} vectors of {VEC} elements")
    THREADS = 128 if vectors <= 128 * 8 else 256
    VECTORS = min(32 // (VEC * logits.element_size()), next_power_of_2(cdiv(vectors, THREADS)))
    WHOLE = logits.stride(0) % VEC == 0 and logits.size(1) % VEC == 0
    return {"WHOLE": WHOLE, "VECTORS": VECTORS, "THREADS": THREADS, "VEC": VEC}


def online_tile(logits: torch.Tensor) -> dict[str, int]:
    """As `tile`, with ONE_TILE and ROWS.  Rows of 16 KB or less have one warp, or up to 8 vectors per thread.

    A multiprocessor starts a program per row of 2 KB too slowly: there a program has several rows.
    """
    constants = {**tile(logits), "ONE_TILE": False, "ROWS": 1}
    vectors = max(1, cdiv(logits.size(1), constants["VEC"]))
    if vectors > 1024:
        return constants
    VECTORS, THREADS = 32 // constants["VEC"], 32
    size = next_power_of_2(vectors)
    ONE_TILE = constants["WHOLE"] and size <= 512 and 4 * vectors >= 3 * size  # at most a quarter is empty
    if ONE_TILE:
        THREADS = max(32, size // 8)
        VECTORS = max(1, size // THREADS)
    ROWS = max(2, 8 // VECTORS) if vectors <= 128 else 1
    return constants | {"ONE_TILE": ONE_TILE, "ROWS": ROWS, "VECTORS": VECTORS, "THREADS": THREADS}


@implementation("cross_entropy", "triton.online", level="tiled")
def online(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A program reads a row once, tile by tile: any row length."""
    logits = checked(logits, targets)
    M, V = logits.shape
    loss = torch.empty(M, dtype=torch.float32, device=logits.device)
    if M == 0:
        return loss
    check_counts(V=V)
    constants = online_tile(logits)
    cross_entropy_online_kernel[grid_1d(cdiv(M, constants["ROWS"]))](
        logits, targets, loss, M, V, logits.stride(0), targets.stride(0),
        **constants, num_warps=constants["THREADS"] // 32,
    )  # fmt: skip
    return loss


@implementation("cross_entropy", "triton.split", level="tiled")
def split(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Several programs share a row: few rows, of any length."""
    logits = checked(logits, targets)
    M, V = logits.shape
    loss = torch.empty(M, dtype=torch.float32, device=logits.device)
    if M == 0:
        return loss
    constants = tile(logits)
    TILE = constants["VECTORS"] * constants["THREADS"] * constants["VEC"]
    # Slices of so many tiles that every multiprocessor has 16 programs.
    slice_tiles = max(1, cdiv(V, TILE) * M // (16 * multiprocessors(logits.device)))
    splits = max(1, cdiv(V, slice_tiles * TILE))
    part_max = torch.empty(M * splits, dtype=torch.float32, device=logits.device)
    part_sum = torch.empty_like(part_max)
    arrived = torch.zeros(M, dtype=torch.int32, device=logits.device)
    cross_entropy_split_kernel[grid_1d(M * splits)](
        logits, targets, loss, V, logits.stride(0), targets.stride(0),
        slice_tiles * TILE, splits, part_max, part_sum, arrived,
        **constants, BLOCK_S=max(32, next_power_of_2(splits)), num_warps=constants["THREADS"] // 32,
    )  # fmt: skip
    return loss
