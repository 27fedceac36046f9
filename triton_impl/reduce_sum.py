"""reduce_sum in Triton: ``x[N] -> y[]``, in fp32.

The ladder; ``cuda_impl/kernels/reduce_sum.cuh`` has the same variants under the same names, and ``shuffle``:

* ``tree``: a program sums a block of elements; launched again on the programs' sums until one is left
* ``vectorized``: 16 packs of 16 bytes a thread are on their way at once; few programs, which go on and on
* ``atomic``: no second launch for the programs' sums: each adds its own to y, in no certain order
* ``last_block``: the last program to be done adds them, in a certain order

How the threads of a program meet is not said here: ``tl.sum`` becomes additions within a thread, shuffles
within a warp and shared memory between warps, which in CUDA are three things to write.
"""

import torch
import triton
import triton.language as tl

from compare.arguments import check_same
from compare.device import multiprocessors
from compare.registry import implementation


@triton.jit
def reduce_sum_tree_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: a program for BLOCK_SIZE elements."""
    block = tl.program_id(0)
    n = block.to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + n * stride_xn, mask=n < N, other=0.0)
    tl.store(y_ptr + block, tl.sum(x.to(tl.float32), axis=0))


@triton.jit
def sum_of_chunks(x_ptr, N, stride_xn, PACKS: tl.constexpr, LANES: tl.constexpr):
    """The sum of every num_programs-th chunk of PACKS x LANES elements.

    A row of a chunk is a pack of every thread: adding rows to each other stays within a thread, and no thread
    waits for another before the chunks are over.
    """
    CHUNK: tl.constexpr = PACKS * LANES
    whole = N // CHUNK
    place = tl.arange(0, PACKS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    sums = tl.zeros([LANES], tl.float32)
    for chunk in range(tl.program_id(0), whole, tl.num_programs(0)):
        n = tl.cast(chunk, tl.int64) * CHUNK + place
        sums += tl.sum(tl.load(x_ptr + n * stride_xn).to(tl.float32), axis=0)
    # The chunk that the end cuts short, apart: a mask on every load would cost an instruction an element.
    if tl.program_id(0) == whole % tl.num_programs(0):
        n = tl.cast(whole, tl.int64) * CHUNK + place
        sums += tl.sum(tl.load(x_ptr + n * stride_xn, mask=n < N, other=0.0).to(tl.float32), axis=0)
    return tl.sum(sums, axis=0)


@triton.jit
def reduce_sum_vectorized_kernel(x_ptr, y_ptr, N, stride_xn, PACKS: tl.constexpr, LANES: tl.constexpr):
    """Grid: a few programs a multiprocessor."""
    tl.store(y_ptr + tl.program_id(0), sum_of_chunks(x_ptr, N, stride_xn, PACKS, LANES))


@triton.jit
def reduce_sum_atomic_kernel(x_ptr, y_ptr, N, stride_xn, PACKS: tl.constexpr, LANES: tl.constexpr):
    """Grid: as vectorized.  y starts as 0; the order, and so the rounding, is never the same."""
    tl.atomic_add(y_ptr, sum_of_chunks(x_ptr, N, stride_xn, PACKS, LANES), sem="relaxed")


@triton.jit
def reduce_sum_last_block_kernel(
    x_ptr,
    y_ptr,
    N,
    stride_xn,
    of_block_ptr,
    blocks_done_ptr,
    PACKS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Grid: as vectorized, of BLOCK_B programs at most.

    Each writes its sum and counts itself in blocks_done, which starts as 0; who counts last adds them all.
    """
    block = tl.program_id(0)
    tl.store(of_block_ptr + block, sum_of_chunks(x_ptr, N, stride_xn, PACKS, LANES))
    # Release: whoever sees the count sees the sum.  Acquire: the last sees all.
    done = tl.atomic_add(blocks_done_ptr, 1, sem="acq_rel")
    if done == tl.num_programs(0) - 1:
        b = tl.arange(0, BLOCK_B)
        sums = tl.load(of_block_ptr + b, mask=b < tl.num_programs(0), other=0.0, volatile=True)
        tl.store(y_ptr, tl.sum(sums, axis=0))


@implementation("reduce_sum", "triton.tree", rung="naive")
def tree(x: torch.Tensor) -> torch.Tensor:
    """A program sums a block, and once more on the programs' sums until one is left."""
    check_same("reduce_sum", 1, x=x)
    BLOCK_SIZE = 1024
    while True:
        N = x.numel()
        blocks = max(1, triton.cdiv(N, BLOCK_SIZE))
        y = x.new_empty((blocks,) if blocks > 1 else (), dtype=torch.float32)
        reduce_sum_tree_kernel[(blocks,)](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE)
        if blocks == 1:
            return y
        x = y


# As many programs as a multiprocessor holds, or a multiple: what is left over would run nearly alone. How many
# that is the compiler decides, which keeps some 5 of fp32's 16 packs on their way and needs 40 registers a
# thread: 6 programs. For 16-bit elements it needs 88: 2.
SIZES = {"PACKS": (4, 8, 16), "WARPS": (4, 8, 16), "PROGRAMS": (1, 2, 3, 4, 6, 8)}


def chunks_of(x: torch.Tensor, PACKS: int, WARPS: int, PROGRAMS: int) -> tuple[int, int]:
    """How many programs share a vector, at most PROGRAMS a multiprocessor, and LANES."""
    LANES = 16 // x.element_size() * 32 * WARPS
    chunks = triton.cdiv(x.numel(), PACKS * LANES)
    return max(1, min(chunks, PROGRAMS * multiprocessors(x.device))), LANES


@implementation("reduce_sum", "triton.vectorized", rung="tiled", tunable=SIZES)
def vectorized(x: torch.Tensor, *, PACKS: int = 16, WARPS: int = 8, PROGRAMS: int = 6) -> torch.Tensor:
    """16 packs of 16 bytes a thread at a time, then once more on the programs' sums."""
    check_same("reduce_sum", 1, x=x)
    while True:
        blocks, LANES = chunks_of(x, PACKS, WARPS, PROGRAMS)
        y = x.new_empty((blocks,) if blocks > 1 else (), dtype=torch.float32)
        reduce_sum_vectorized_kernel[(blocks,)](
            x, y, x.numel(), x.stride(0), PACKS=PACKS, LANES=LANES, num_warps=WARPS
        )
        if blocks == 1:
            return y
        x = y


@implementation("reduce_sum", "triton.atomic", rung="tiled", deterministic=False, tunable=SIZES)
def atomic(x: torch.Tensor, *, PACKS: int = 16, WARPS: int = 8, PROGRAMS: int = 6) -> torch.Tensor:
    """Each program adds its sum to y, in the order in which they are done."""
    check_same("reduce_sum", 1, x=x)
    blocks, LANES = chunks_of(x, PACKS, WARPS, PROGRAMS)
    y = x.new_zeros((), dtype=torch.float32)
    reduce_sum_atomic_kernel[(blocks,)](
        x, y, x.numel(), x.stride(0), PACKS=PACKS, LANES=LANES, num_warps=WARPS
    )
    return y


@implementation("reduce_sum", "triton.last_block", rung="tiled", tunable=SIZES)
def last_block(x: torch.Tensor, *, PACKS: int = 16, WARPS: int = 8, PROGRAMS: int = 6) -> torch.Tensor:
    """The last program to be done adds all programs' sums, in their order."""
    check_same("reduce_sum", 1, x=x)
    blocks, LANES = chunks_of(x, PACKS, WARPS, PROGRAMS)
    y = x.new_empty((), dtype=torch.float32)
    of_block = x.new_empty((blocks,), dtype=torch.float32)
    blocks_done = x.new_zeros((1,), dtype=torch.int32)
    reduce_sum_last_block_kernel[(blocks,)](
        x,
        y,
        x.numel(),
        x.stride(0),
        of_block,
        blocks_done,
        PACKS=PACKS,
        LANES=LANES,
        BLOCK_B=triton.next_power_of_2(blocks),
        num_warps=WARPS,
    )
    return y
