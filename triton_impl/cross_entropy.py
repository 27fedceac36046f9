"""cross_entropy in Triton: ``logits[M,V], targets[M] -> loss[M]``.

The ladder; ``cuda_impl/kernels/cross_entropy.cuh`` has the same variants under the same names:

* ``online``: a program reads a row once, tile by tile, with a running maximum and sum
* ``split``: many programs share a row; the last one to finish puts their parts together: few long rows

A tile is PACKS x THREADS x VEC elements: VEC neighbours, 16 bytes, in each of PACKS places are one thread's.
So maximum and sum along PACKS and VEC stay within a thread; those of a whole tile would take an exchange
between threads at every turn.  The compiler finds that layout by itself, as loads are fastest with it.
A row that begins or ends between two boundaries has elements before its first pack or behind its last.
No thread can be told to take one of them; they are a small tensor of their own.

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

IGNORED = tl.constexpr(-100)
"""As PyTorch's ignore_index: the loss of such a row is 0."""


@triton.jit
def finite_shift(maximum):
    """What to subtract before exp.  Where all is -inf so far, exp(-inf - -inf) would be NaN; it must be 0."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def reduce(
    logits_ptr, first, count,
    WHOLE: tl.constexpr, PACKS: tl.constexpr, THREADS: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Maximum and sum of exponentials of ``count`` elements from the ``first`` on.

    They are read by packs of VEC, from where these begin.  Unless WHOLE, some may lie before the first pack
    and behind the last, fewer than VEC at either end.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    AT_A_TIME: tl.constexpr = PACKS * THREADS
    pack = tl.arange(0, PACKS)[:, None, None] * THREADS + tl.arange(0, THREADS)[None, :, None]
    n = pack * VEC + tl.arange(0, VEC)[None, None, :]
    first_pack, end_pack = tl.cdiv(first, VEC), (first + count) // VEC
    own_max = tl.full([THREADS], -float("inf"), tl.float32)
    own_sum = tl.zeros([THREADS], tl.float32)
    if not WHOLE:
        e = tl.arange(0, THREADS)  # VEC places for those before, and as many for those behind
        behind = tl.maximum(first_pack, end_pack) * VEC
        at = tl.where(e < VEC, first + e, behind + e - VEC)
        mine = ((e >= VEC) | (at < first_pack * VEC)) & (at < first + count)
        own_max = tl.load(logits_ptr + at, mask=mine, other=-float("inf")).to(tl.float32)
        own_sum = fast_expf(own_max - finite_shift(own_max))
    for begin in range(first_pack, end_pack, AT_A_TIME):
        packs = tl.minimum(end_pack - begin, AT_A_TIME).to(tl.int32)
        x = tl.load(logits_ptr + begin * VEC + n, mask=pack < packs, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(own_max, tl.max(tl.max(x, axis=2), axis=0))
        shift = finite_shift(new_max)
        new_sum = tl.sum(tl.sum(fast_expf(x - shift[None, :, None]), axis=2), axis=0)
        own_sum = own_sum * fast_expf(own_max - shift) + new_sum
        own_max = new_max
    return combined(own_max, own_sum)


@triton.jit
def combined(maximum, total):
    """One maximum and sum of many."""
    of_all = tl.max(maximum, axis=0)
    return of_all, tl.sum(total * fast_expf(maximum - finite_shift(of_all)), axis=0)


@triton.jit
def loss_of(row_ptr, V, target, row_max, row_sum):
    """log(sum(exp(x))) - x[target]; NaN where the target is none of the row's columns."""
    inside = (target >= 0) & (target < V)
    picked = tl.load(row_ptr + target, mask=inside, other=float("nan")).to(tl.float32)
    # In an order that loses nothing of the logarithm where maximum and picked are large.
    return tl.where(target == IGNORED, 0.0, tl.log(row_sum) - (picked - row_max))


@triton.jit
def cross_entropy_online_kernel(
    logits_ptr, targets_ptr, loss_ptr, V, stride_lm, stride_tm,
    WHOLE: tl.constexpr, PACKS: tl.constexpr, THREADS: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Grid: a program a row."""
    m = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + m * stride_lm
    target = tl.load(targets_ptr + m * stride_tm)
    row_max, row_sum = reduce(logits_ptr, m * stride_lm, V, WHOLE, PACKS, THREADS, VEC)
    tl.store(loss_ptr + m, loss_of(row_ptr, V, target, row_max, row_sum))


@triton.jit
def cross_entropy_split_kernel(
    logits_ptr, targets_ptr, loss_ptr, V, stride_lm, stride_tm, slice_columns, splits,
    max_ptr, sum_ptr, arrived_ptr,
    WHOLE: tl.constexpr, PACKS: tl.constexpr, THREADS: tl.constexpr, VEC: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Grid: ``splits`` programs for a row, each with ``slice_columns`` columns of it; splits <= BLOCK_S.

    A program leaves its part in max[M,splits] and sum[M,splits] and counts itself in arrived[M], which starts
    as 0; the one that finds all others counted combines the parts, in the order of the columns, whichever
    program it is.  No program waits for another.
    """
    program = tl.program_id(0)
    m = (program // splits).to(tl.int64)
    begin = (program % splits).to(tl.int64) * slice_columns
    row_ptr = logits_ptr + m * stride_lm
    first, count = m * stride_lm + begin, tl.minimum(slice_columns, V - begin)
    part_max, part_sum = reduce(logits_ptr, first, count, WHOLE, PACKS, THREADS, VEC)

    tl.store(max_ptr + program, part_max)
    tl.store(sum_ptr + program, part_sum)
    tl.debug_barrier()  # whoever sees the count sees the part
    if tl.atomic_add(arrived_ptr + m, 1, sem="acq_rel") == splits - 1:
        s = tl.arange(0, BLOCK_S)
        at = m * splits + s
        # Past the L1, which may be older.
        of_max = tl.load(max_ptr + at, mask=s < splits, other=-float("inf"), cache_modifier=".cg")
        of_sum = tl.load(sum_ptr + at, mask=s < splits, other=0.0, cache_modifier=".cg")
        row_max, row_sum = combined(of_max, of_sum)
        target = tl.load(targets_ptr + m * stride_tm)
        tl.store(loss_ptr + m, loss_of(row_ptr, V, target, row_max, row_sum))


def checked(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """``logits`` with neighbouring columns next to each other; a copy where they are not."""
    check_targets("cross_entropy", logits, targets)
    return logits if logits.stride(1) == 1 or logits.size(1) <= 1 else logits.contiguous()


def tile(logits: torch.Tensor) -> dict[str, int]:
    """WHOLE, PACKS, THREADS and VEC: 32 bytes a thread, but no more than a row.

    16 bytes move at a time if the first row starts on such a boundary; WHOLE if all rows do, and end on one.

    So little on its way in one program leaves registers for many: what waits in all of them keeps the memory
    busy, and while one program puts its parts together the others go on loading.
    """
    VEC = 16 // logits.element_size() if logits.data_ptr() % 16 == 0 and logits.size(1) > 0 else 1
    packs = max(1, triton.cdiv(logits.size(1), VEC))
    THREADS = 128 if packs <= 128 * 8 else 256
    PACKS = min(32 // (VEC * logits.element_size()), triton.next_power_of_2(triton.cdiv(packs, THREADS)))
    WHOLE = logits.stride(0) % VEC == 0 and logits.size(1) % VEC == 0
    return {"WHOLE": WHOLE, "PACKS": PACKS, "THREADS": THREADS, "VEC": VEC}


@implementation("cross_entropy", "triton.online", rung="tiled")
def online(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A program reads a row once, tile by tile: any row length."""
    logits = checked(logits, targets)
    M, V = logits.shape
    loss = torch.empty(M, dtype=torch.float32, device=logits.device)
    if M == 0:
        return loss
    constants = tile(logits)
    cross_entropy_online_kernel[(M,)](
        logits, targets, loss, V, logits.stride(0), targets.stride(0),
        **constants, num_warps=constants["THREADS"] // 32,
    )  # fmt: skip
    return loss


@implementation("cross_entropy", "triton.split", rung="tiled")
def split(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Many programs share a row: few rows, of any length."""
    logits = checked(logits, targets)
    M, V = logits.shape
    loss = torch.empty(M, dtype=torch.float32, device=logits.device)
    if M == 0:
        return loss
    constants = tile(logits)
    TILE = constants["PACKS"] * constants["THREADS"] * constants["VEC"]
    # As many tiles a slice as leave 16 programs for every multiprocessor.
    slice_tiles = max(1, triton.cdiv(V, TILE) * M // (16 * multiprocessors(logits.device)))
    splits = max(1, triton.cdiv(V, slice_tiles * TILE))
    part_max = torch.empty(M * splits, dtype=torch.float32, device=logits.device)
    part_sum = torch.empty_like(part_max)
    arrived = torch.zeros(M, dtype=torch.int32, device=logits.device)
    cross_entropy_split_kernel[(M * splits,)](
        logits, targets, loss, V, logits.stride(0), targets.stride(0),
        slice_tiles * TILE, splits, part_max, part_sum, arrived,
        **constants, BLOCK_S=max(32, triton.next_power_of_2(splits)), num_warps=constants["THREADS"] // 32,
    )  # fmt: skip
    return loss
