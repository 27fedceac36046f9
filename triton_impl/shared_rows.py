"""Rows that many programs share, and wait for each other: what softmax and the norms have in common.

In ``split`` and ``gluon`` a row is cut into chunks.  A program that has reduced one publishes what the row
needs of it in a word of 8 bytes, never 0, and writes its chunk of the output when all of the row's have come.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from compare.device import multiprocessors, shared_bytes_of_a_block
from triton_impl.counts import check_counts

INTERPRETED = triton.knobs.runtime.interpret


def columns_of_a_chunk(N: int, BLOCK_N: int) -> int:
    """BLOCK_N on a GPU.  Interpreted, a program cannot wait for others: it takes a row of N as one chunk."""
    return min(triton.next_power_of_2(N), tl.TRITON_MAX_TENSOR_NUMEL) if INTERPRETED else BLOCK_N


def resident_programs(
    launch: functools.partial[object], device: torch.device, threads: int, PROGRAMS: int, chunks: int = 1
) -> int:
    """How many programs a GPU holds at a time, at most PROGRAMS a multiprocessor.

    They wait for each other, so all must be there; how many registers each takes only the compiler knows.
    NotImplementedError where a row has more ``chunks`` than that; where it has more than PROGRAMS allow, the
    compiler is not asked, which would take it minutes.
    """
    programs = 1 if INTERPRETED else PROGRAMS * multiprocessors(device)  # interpreted, one after another
    if not INTERPRETED and device.type == "cuda" and chunks <= programs:
        from cuda.bindings import driver

        compiled = launch(grid=(1,))
        compiled._init_handles()
        error, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            compiled.function, threads, compiled.metadata.shared
        )
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuOccupancyMaxActiveBlocksPerMultiprocessor: {error.name}")
        programs = min(blocks, PROGRAMS) * multiprocessors(device)
    if chunks > programs:
        raise NotImplementedError(f"a row's {chunks} chunks take as many programs at a time: {programs} fit")
    return programs


def aligned(values: torch.Tensor, boundary: int) -> torch.Tensor:
    """``values`` if all rows start on such a boundary, a number of bytes, else a dense copy."""
    pack = boundary // values.element_size()
    fits = values.data_ptr() % boundary == 0 and all(stride % pack == 0 for stride in values.stride()[:-1])
    return values if fits else values.clone(memory_format=torch.contiguous_format)


# --------------------------------------------------------------------------- Gluon

# Triton 3.9 has a new name for it.
async_load = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)


@gluon.jit
def fetch(ring, turn, x_ptrs, inside, STAGES: gl.constexpr):
    """Start the copies that fill a turn's place in the ring; zeros where nothing is inside."""
    async_load(ring.index(turn % STAGES), x_ptrs, mask=inside)
    async_copy.commit_group()


@gluon.jit
def published(of_chunk_ptr, m, c, M, chunks):
    """The words of these chunks of these rows: 0 of what has not come yet, and not 0 where there is none."""
    there = (m >= 0) & (m < M) & (c < chunks)
    return gl.load(of_chunk_ptr + m * chunks + c, mask=there, other=-1, volatile=True)


def in_packs(x: torch.Tensor) -> torch.Tensor:
    """``x`` with rows on 16-byte boundaries; a copy where they are not.

    Raises:
        NotImplementedError: a row is not a whole number of packs.
    """
    pack = 16 // x.element_size()
    if x.size(1) % pack != 0:
        raise NotImplementedError(f"N={x.size(1)}: copies move 16 bytes, {pack} columns, at a time")
    return aligned(x, 16)


def share_rows(
    kernel: Any, x: torch.Tensor, tensors: tuple[torch.Tensor, ...], more: tuple[int, ...] = (),
    *, BLOCK_M: int, PROGRAMS: int, **constants: bool,
) -> None:  # fmt: skip
    """Launch a kernel in Gluon whose programs, PROGRAMS a multiprocessor at most, share rows of ``x[M,N]``.

    It is given ``tensors``, how rows are cut into chunks, and ``more``.  A tile of BLOCK_M rows is 32 KB.
    """
    pack = 16 // x.element_size()
    M, N = x.shape
    check_counts(M=M)
    BLOCK_N = 2048 // BLOCK_M * pack
    STAGES = 3 if shared_bytes_of_a_block(x.device) >= 128 << 10 else 2  # sm_86 has no room for 3 and weights
    chunks = triton.cdiv(N, BLOCK_N)
    of_chunk = torch.zeros(M * chunks, dtype=torch.int64, device=x.device)
    BLOCK_C = max(32, triton.next_power_of_2(chunks))
    arguments = (*tensors, M, N // pack, x.stride(0) // pack, chunks, of_chunk, *more)
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_C": BLOCK_C, "STAGES": STAGES}
    launch = {**constants, **tile, "num_warps": BLOCK_M}
    compiling = functools.partial(kernel.warmup, *arguments, **launch)
    programs = resident_programs(compiling, x.device, 32 * BLOCK_M, PROGRAMS, chunks)
    tiles_at_a_time = min(programs // chunks, triton.cdiv(M, BLOCK_M))
    kernel[(tiles_at_a_time * chunks,)](*arguments, **launch)
