"""reduce_sum in Triton: ``x[N] -> y[]``, in fp32.

Variants; ``cuda_impl/kernels/reduce_sum.cuh`` has the same under the same names, and ``shuffle``:

* ``tree``: a program sums a block of elements; launched again on the partial sums until one is left
* ``vectorized``: 16 vectorized 16-byte loads per thread in flight; persistent programs, chunks round-robin
* ``atomic``: no second launch: each program adds its sum to y atomically, in no fixed order
* ``last_block``: the last program to finish adds the programs' sums in a fixed order

Reduction within a program is one call: ``tl.sum`` compiles to additions within a thread, shuffles within a
warp and shared memory between warps.  CUDA writes all three.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from compare.arguments import check_same
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv
from triton_impl.shared_rows import resident_programs


@triton.jit
def reduce_sum_tree_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per BLOCK_SIZE elements."""
    block = tl.program_id(0)
    n = block.to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + n * stride_xn, mask=n < N, other=0.0)
    tl.store(y_ptr + block, tl.sum(x.to(tl.float32), axis=0))


@triton.jit
def sum_of_chunks(x_ptr, N, stride_xn, VECTORS: tl.constexpr, LANES: tl.constexpr):
    """The sum of every num_programs-th chunk of VECTORS x LANES elements.

    A row of a chunk is one 16-byte vector per thread.  Adding rows stays within a thread, so threads
    synchronise only after the last chunk.
    """
    CHUNK: tl.constexpr = VECTORS * LANES
    whole = N // CHUNK
    place = tl.arange(0, VECTORS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    sums = tl.zeros([LANES], tl.float32)
    for chunk in range(tl.program_id(0), whole, tl.num_programs(0)):
        n = tl.cast(chunk, tl.int64) * CHUNK + place
        sums += tl.sum(tl.load(x_ptr + n * stride_xn).to(tl.float32), axis=0)
    # The partial last chunk, apart: a mask on every load would cost an instruction per element.
    if tl.program_id(0) == whole % tl.num_programs(0):
        n = tl.cast(whole, tl.int64) * CHUNK + place
        sums += tl.sum(tl.load(x_ptr + n * stride_xn, mask=n < N, other=0.0).to(tl.float32), axis=0)
    return tl.sum(sums, axis=0)


@triton.jit
def reduce_sum_vectorized_kernel(x_ptr, y_ptr, N, stride_xn, VECTORS: tl.constexpr, LANES: tl.constexpr):
    """Grid: persistent, a few programs per multiprocessor."""
    tl.store(y_ptr + tl.program_id(0), sum_of_chunks(x_ptr, N, stride_xn, VECTORS, LANES))


@triton.jit
def reduce_sum_atomic_kernel(x_ptr, y_ptr, N, stride_xn, VECTORS: tl.constexpr, LANES: tl.constexpr):
    """Grid: as vectorized.  y starts as 0; the order, and so the rounding, varies from run to run."""
    tl.atomic_add(y_ptr, sum_of_chunks(x_ptr, N, stride_xn, VECTORS, LANES), sem="relaxed")


@triton.jit
def reduce_sum_last_block_kernel(
    x_ptr, y_ptr, N, stride_xn, of_block_ptr, blocks_done_ptr, VECTORS: tl.constexpr, LANES: tl.constexpr
):
    """Grid: as vectorized.

    Each program writes its sum, then increments blocks_done, which starts as 0.  The last one adds all sums.
    """
    block = tl.program_id(0)
    tl.store(of_block_ptr + block, sum_of_chunks(x_ptr, N, stride_xn, VECTORS, LANES))
    tl.debug_barrier()  # a program that sees the count must see the sum
    done = tl.atomic_add(blocks_done_ptr, 1, sem="acq_rel")
    if done == tl.num_programs(0) - 1:
        sums = tl.zeros([LANES], tl.float32)
        for begin in range(0, tl.num_programs(0), LANES):
            b = begin + tl.arange(0, LANES)
            sums += tl.load(of_block_ptr + b, mask=b < tl.num_programs(0), other=0.0, volatile=True)
        tl.store(y_ptr, tl.sum(sums, axis=0))


@implementation("reduce_sum", "triton.tree", level="naive")
def tree(x: torch.Tensor) -> torch.Tensor:
    """A program sums a block; relaunched on the partial sums until one is left."""
    check_same("reduce_sum", 1, x=x)
    BLOCK_SIZE = 1024
    while True:
        N = x.numel()
        blocks = max(1, cdiv(N, BLOCK_SIZE))
        y = x.new_empty((blocks,) if blocks > 1 else (), dtype=torch.float32)
        reduce_sum_tree_kernel[(blocks,)](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
        if blocks == 1:
            return y
        x = y


SIZES = {"VECTORS": (4, 8, 16), "WARPS": (4, 8, 16), "PROGRAMS": (1, 2, 3, 4, 6, 8)}

_resident: dict[tuple[object, ...], int] = {}


def grid_of(
    kernel: Any, x: torch.Tensor, VECTORS: int, WARPS: int, PROGRAMS: int, *scratch: torch.Tensor
) -> tuple[int, int]:
    """The number of programs that share a vector, and their LANES.

    No more than are resident at a time, at most PROGRAMS per multiprocessor: a partial second wave would run
    nearly alone.  Residency depends on the compiled kernel's registers, so the compiler is asked once.
    """
    LANES = 16 // x.element_size() * 32 * WARPS
    N = x.numel()
    chunks = max(1, cdiv(N, VECTORS * LANES))
    if chunks <= multiprocessors(x.device) or x.device.type != "cuda":
        return min(chunks, PROGRAMS * multiprocessors(x.device)), LANES
    # Everything for which Triton compiles a specialised version.
    layout = (N % 16 == 0, N < 2**31, x.stride(0) == 1, x.stride(0) % 16 == 0, x.data_ptr() % 16 == 0)
    key = (kernel, x.device, x.dtype, VECTORS, WARPS, PROGRAMS, *layout)
    if key not in _resident:
        y = x.new_empty((1,), dtype=torch.float32)
        options = {"VECTORS": VECTORS, "LANES": LANES, "num_warps": WARPS}
        _resident[key] = resident_programs(kernel, (x, y, N, x.stride(0), *scratch), options, PROGRAMS)
    return min(chunks, _resident[key]), LANES


@implementation(
    "reduce_sum",
    "triton.vectorized",
    level="tiled",
    algorithm="partial sums, added by a second kernel",
    tunable=SIZES,
)
def vectorized(x: torch.Tensor, *, VECTORS: int = 16, WARPS: int = 8, PROGRAMS: int = 6) -> torch.Tensor:
    """16 16-byte loads per thread in flight; relaunched on the partial sums until one is left."""
    check_same("reduce_sum", 1, x=x)
    while True:
        programs, LANES = grid_of(reduce_sum_vectorized_kernel, x, VECTORS, WARPS, PROGRAMS)
        y = x.new_empty((programs,) if programs > 1 else (), dtype=torch.float32)
        reduce_sum_vectorized_kernel[(programs,)](
            x, y, x.numel(), x.stride(0), VECTORS=VECTORS, LANES=LANES, num_warps=WARPS
        )
        if programs == 1:
            return y
        x = y


@implementation(
    "reduce_sum",
    "triton.atomic",
    level="tiled",
    algorithm="partial sums, added by atomics",
    deterministic=False,
    tunable=SIZES,
)
def atomic(x: torch.Tensor, *, VECTORS: int = 16, WARPS: int = 8, PROGRAMS: int = 6) -> torch.Tensor:
    """Each program adds its sum to y, in the order of completion."""
    check_same("reduce_sum", 1, x=x)
    programs, LANES = grid_of(reduce_sum_atomic_kernel, x, VECTORS, WARPS, PROGRAMS)
    y = x.new_zeros((), dtype=torch.float32)
    reduce_sum_atomic_kernel[(programs,)](
        x, y, x.numel(), x.stride(0), VECTORS=VECTORS, LANES=LANES, num_warps=WARPS
    )
    return y


@implementation(
    "reduce_sum",
    "triton.last_block",
    level="tiled",
    algorithm="partial sums, added by the last block",
    tunable=SIZES,
)
def last_block(x: torch.Tensor, *, VECTORS: int = 16, WARPS: int = 8, PROGRAMS: int = 6) -> torch.Tensor:
    """The last program to finish adds all programs' sums, in program order."""
    check_same("reduce_sum", 1, x=x)
    y = x.new_empty((), dtype=torch.float32)
    of_block = x.new_empty((PROGRAMS * multiprocessors(x.device),), dtype=torch.float32)
    blocks_done = x.new_zeros((1,), dtype=torch.int32)
    scratch = (of_block, blocks_done)
    programs, LANES = grid_of(reduce_sum_last_block_kernel, x, VECTORS, WARPS, PROGRAMS, *scratch)
    reduce_sum_last_block_kernel[(programs,)](
        x, y, x.numel(), x.stride(0), *scratch, VECTORS=VECTORS, LANES=LANES, num_warps=WARPS
    )
    return y
