"""all_reduce in Triton: ``x[N]`` on each of RANKS GPUs -> ``y[N]``, the sum over ranks, on each.

Variants, as in ``cuda_impl/kernels/all_reduce.cuh``:

* ``one_shot``: every rank reads all ranks' x, by addresses from a table, and adds them up
* ``two_shot``: a rank adds up its part of x and writes the sums to all ranks
* ``low_latency``: each rank writes its x into the others' memory, with a flag in every word

Sums are in fp32 and in the ranks' order.  No single thread waits for a flag here: what an atomic operation
returns goes to all threads of the program through shared memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.arguments import MESSAGES, RANK_BLOCKS, check_ranks
from compare.registry import implementation
from triton_impl.counts import cdiv
from triton_impl.shared_rows import COOPERATIVE

RANKS = (2, 4, 8)
WARPS = 16
ALIKE = {"do_not_specialize": ["rank"]}
"""Of kernels: all ranks run the same machine code, where Triton would make another for a rank of 1."""


@triton.jit
def address_of(table_ptr, rank, like_ptr):
    """A rank's pointer from a row of ``peers``, to elements as of ``like_ptr``."""
    address = tl.load(table_ptr + rank).to(tl.pointer_type(like_ptr.dtype.element_ty))
    return tl.multiple_of(address, 16)


@triton.jit
def wait_for_ranks(
    flags_ptr, epoch, epochs_ptr, rank, RANKS: tl.constexpr, STORE: tl.constexpr, LOAD: tl.constexpr
):
    """A barrier of program b of all ranks.

    With a release in STORE, whoever sees the flag sees the program's writes before it, on any GPU; with an
    acquire in LOAD, the program sees after it what the writer of the flag had released.
    """
    tl.debug_barrier()
    r = tl.arange(0, RANKS)
    row = tl.program_id(0) * RANKS
    theirs_ptr = tl.load(flags_ptr + r).to(tl.pointer_type(tl.int32)) + row + rank
    tl.atomic_xchg(theirs_ptr, epoch, sem=STORE, scope="sys")
    own_ptr = address_of(flags_ptr, rank, epochs_ptr) + row + r
    while tl.min(tl.atomic_add(own_ptr, 0, sem=LOAD, scope="sys") - epoch) < 0:
        pass  # a faster rank is ahead by one epoch at most
    tl.debug_barrier()


@triton.jit
def sum_over_ranks(xs_ptr, n, inside, like_ptr, RANKS: tl.constexpr):
    """The sums of elements ``n`` over all ranks, in fp32."""
    sums = tl.zeros(n.shape, tl.float32)
    for r in tl.static_range(RANKS):
        sums += tl.load(address_of(xs_ptr, r, like_ptr) + n, mask=inside, other=0.0).to(tl.float32)
    return sums


@triton.jit(**ALIKE)
def all_reduce_one_shot_kernel(
    x_ptr, y_ptr, peers_ptr, epochs_ptr, rank, N, RANKS: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Grid: at most as many programs as are resident; blocks of y are assigned round-robin."""
    flags_ptr = peers_ptr + 2 * RANKS
    epoch = tl.load(epochs_ptr + tl.program_id(0))
    # Every rank's x is complete: the kernels before this one wrote it.
    wait_for_ranks(flags_ptr, epoch + 1, epochs_ptr, rank, RANKS, "relaxed", "acquire")
    for block in range(tl.program_id(0), tl.cdiv(N, BLOCK_SIZE), tl.num_programs(0)):
        n = block.to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        tl.store(y_ptr + n, sum_over_ranks(peers_ptr, n, n < N, x_ptr, RANKS), mask=n < N)
    # No rank changes its x before all have read it.
    wait_for_ranks(flags_ptr, epoch + 2, epochs_ptr, rank, RANKS, "relaxed", "relaxed")
    tl.store(epochs_ptr + tl.program_id(0), epoch + 2)


@triton.jit(**ALIKE)
def all_reduce_two_shot_kernel(
    x_ptr, peers_ptr, epochs_ptr, rank, N, RANKS: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Grid: as one_shot.  In place: a rank's part of x is read and written by that rank alone."""
    flags_ptr = peers_ptr + 2 * RANKS
    epoch = tl.load(epochs_ptr + tl.program_id(0))
    blocks = tl.cdiv(N, BLOCK_SIZE)
    begin, end = blocks * rank // RANKS, blocks * (rank + 1) // RANKS
    # Every rank's x is complete.
    wait_for_ranks(flags_ptr, epoch + 1, epochs_ptr, rank, RANKS, "relaxed", "acquire")
    for block in range(begin + tl.program_id(0), end, tl.num_programs(0)):
        n = block.to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        sums = sum_over_ranks(peers_ptr, n, n < N, x_ptr, RANKS)
        for r in tl.static_range(RANKS):
            tl.store(address_of(peers_ptr, r, x_ptr) + n, sums, mask=n < N)
    # Every rank's part has arrived.
    wait_for_ranks(flags_ptr, epoch + 2, epochs_ptr, rank, RANKS, "release", "relaxed")
    tl.store(epochs_ptr + tl.program_id(0), epoch + 2)


@triton.jit
def words_of(x):
    """Elements as 4-byte words, of one or two."""
    if x.dtype == tl.float32:
        words = x.to(tl.int32, bitcast=True)
    else:
        low, high = tl.split(tl.reshape(x.to(tl.int16, bitcast=True), [x.shape[0] // 2, 2]))
        words = (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    return words


@triton.jit
def elements_of(words, like_ptr):
    """The inverse of `words_of`."""
    if like_ptr.dtype.element_ty == tl.float32:
        elements = words
    else:
        elements = tl.interleave(words.to(tl.int16), (words >> 16).to(tl.int16))
    return elements.to(like_ptr.dtype.element_ty, bitcast=True)


@triton.jit(**ALIKE)
def all_reduce_low_latency_kernel(
    x_ptr,
    y_ptr,
    peers_ptr,
    epochs_ptr,
    rank,
    N,
    RANKS: tl.constexpr,
    MESSAGES: tl.constexpr,
    PER_WORD: tl.constexpr,
    MESSAGE_EPOCHS: tl.constexpr,
):
    """Grid: as one_shot.

    A message is a 4-byte word of x and, above it, the epoch: 8 bytes that one store writes, so a reader that
    sees the epoch has the word, and no fence is needed (NCCL's LL protocol).  The CUDA kernel says why two
    receive buffers in turn are enough.
    """
    BLOCK_SIZE: tl.constexpr = MESSAGES * PER_WORD
    epoch = tl.load(epochs_ptr + MESSAGE_EPOCHS + tl.program_id(0))
    tl.debug_barrier()  # all threads have read it before it grows
    place = tl.program_id(0).to(tl.int64) * 2 * RANKS * MESSAGES + tl.arange(0, MESSAGES)
    own_ptr = tl.load(peers_ptr + RANKS + rank).to(tl.pointer_type(tl.int64)) + place
    for block in range(tl.program_id(0), tl.cdiv(N, BLOCK_SIZE), tl.num_programs(0)):
        epoch += 1
        half = epoch % 2 * RANKS
        n = block.to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        inside = block.to(tl.int64) * MESSAGES + tl.arange(0, MESSAGES) < tl.cdiv(N, PER_WORD)
        words = words_of(tl.load(x_ptr + n, mask=n < N, other=0.0))
        messages = (epoch.to(tl.int64) << 32) | (words.to(tl.int64) & 0xFFFFFFFF)
        for r in tl.static_range(RANKS):
            theirs_ptr = tl.load(peers_ptr + RANKS + r).to(tl.pointer_type(tl.int64)) + place
            tl.store(theirs_ptr + (half + rank) * MESSAGES, messages, mask=inside)
        sums = tl.zeros([BLOCK_SIZE], tl.float32)
        for r in tl.static_range(RANKS):
            from_ptr = own_ptr + (half + r) * MESSAGES
            messages = tl.load(from_ptr, mask=inside, other=0, volatile=True)
            while tl.max((inside & ((messages >> 32) != epoch)).to(tl.int32)) > 0:
                messages = tl.load(from_ptr, mask=inside, other=0, volatile=True)
            sums += elements_of(messages.to(tl.int32), x_ptr).to(tl.float32)
        tl.store(y_ptr + n, sums, mask=n < N)
    tl.store(epochs_ptr + MESSAGE_EPOCHS + tl.program_id(0), epoch)


def programs(count: int, per_program: int) -> tuple[int]:
    """At most `RANK_BLOCKS`, and at least one: ranks wait for each other even for nothing."""
    return (max(1, min(cdiv(count, per_program), RANK_BLOCKS)),)


@implementation("all_reduce", "triton.one_shot", level="naive", without_gpu=False)
def one_shot(x: torch.Tensor, peers: torch.Tensor, epochs: torch.Tensor, *, rank: int) -> torch.Tensor:
    check_ranks("all_reduce", x, peers, epochs, RANKS)
    y, N, BLOCK_SIZE = torch.empty_like(x), x.numel(), 8192 // x.element_size()
    sizes = {"RANKS": peers.shape[1], "BLOCK_SIZE": BLOCK_SIZE}
    if N > 0:
        grid = programs(N, BLOCK_SIZE)
        options = {"num_warps": WARPS, **COOPERATIVE}
        all_reduce_one_shot_kernel[grid](x, y, peers, epochs, rank, N, **sizes, **options)
    return y


@implementation("all_reduce", "triton.two_shot", level="tiled", without_gpu=False)
def two_shot(x: torch.Tensor, peers: torch.Tensor, epochs: torch.Tensor, *, rank: int) -> torch.Tensor:
    """In place: x is returned."""
    check_ranks("all_reduce", x, peers, epochs, RANKS)
    N, BLOCK_SIZE = x.numel(), 32768 // x.element_size()
    sizes = {"RANKS": peers.shape[1], "BLOCK_SIZE": BLOCK_SIZE}
    if N > 0:
        grid = programs(N, BLOCK_SIZE * peers.shape[1])
        all_reduce_two_shot_kernel[grid](x, peers, epochs, rank, N, **sizes, num_warps=WARPS, **COOPERATIVE)
    return x


@implementation("all_reduce", "triton.low_latency", level="tiled", without_gpu=False)
def low_latency(x: torch.Tensor, peers: torch.Tensor, epochs: torch.Tensor, *, rank: int) -> torch.Tensor:
    check_ranks("all_reduce", x, peers, epochs, RANKS)
    y, N, PER_WORD = torch.empty_like(x), x.numel(), 4 // x.element_size()
    sizes = {"RANKS": peers.shape[1], "MESSAGES": MESSAGES, "PER_WORD": PER_WORD}
    sizes["MESSAGE_EPOCHS"] = RANK_BLOCKS  # behind those of flags
    if N > 0:
        grid = programs(N, MESSAGES * PER_WORD)
        options = {"num_warps": WARPS, **COOPERATIVE}
        all_reduce_low_latency_kernel[grid](x, y, peers, epochs, rank, N, **sizes, **options)
    return y
