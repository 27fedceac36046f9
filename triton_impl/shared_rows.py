"""Rows shared by several programs that wait for each other: common code of softmax and the norms.

In ``split`` and ``gluon`` a row is split into chunks.  A program reduces a chunk and publishes the partial
result as an 8-byte word that is never 0.  It writes its chunk of the output when all words of the row have
arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from compare.device import multiprocessors, shared_bytes_of_a_block
from triton_impl.counts import cdiv, check_counts, next_power_of_2

INTERPRETED = triton.knobs.runtime.interpret
COOPERATIVE = {"launch_cooperative_grid": True}
"""Option of a launch: all programs are resident before any starts.  Otherwise two launches on two streams
could each hold a part of the GPU, and wait for programs that find no room."""


def columns_of_a_chunk(N: int, BLOCK_N: int) -> int:
    """BLOCK_N on a GPU.  The interpreter runs programs serially, so there a row of N is one chunk."""
    return min(next_power_of_2(N), tl.TRITON_MAX_TENSOR_NUMEL) if INTERPRETED else BLOCK_N


_resident: dict[tuple[object, ...], int] = {}
"""Programs on a GPU, by kernel and arguments: to ask the driver takes longer than a launch."""


def resident_programs(
    kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any], PROGRAMS: int, chunks: int = 1
) -> int:
    """How many programs are resident on a GPU at a time, at most PROGRAMS per multiprocessor.

    Programs wait for each other, so all must be resident; registers per program are known after compilation.

    Args:
        kernel: what will be launched,
        arguments: with these, the first a tensor,
        options: and these.
        PROGRAMS: per multiprocessor.
        chunks: of a row, which as many programs have at a time.

    Raises:
        NotImplementedError: a row has more chunks than that.  If it has more than PROGRAMS allows, this is
            raised before compiling, which would take minutes.
    """
    device = arguments[0].device
    kinds = [(x.dtype, x.data_ptr() % 16) if isinstance(x, torch.Tensor) else x for x in arguments]
    key = kernel.fn, device, PROGRAMS, *kinds, *options.values()
    programs = _resident.get(key)
    if programs is None:
        programs = 1 if INTERPRETED else PROGRAMS * multiprocessors(device)  # interpreted: serial
        if not INTERPRETED and device.type == "cuda" and chunks <= programs:
            compiled = kernel.warmup(*arguments, **options, grid=(1,))
            blocks = min(PROGRAMS, _resident_blocks(compiled, options["num_warps"]))
            programs = _resident[key] = blocks * multiprocessors(device)
    if chunks > programs:
        raise NotImplementedError(f"a row's {chunks} chunks take as many programs at a time: {programs} fit")
    return programs


def _resident_blocks(compiled: Any, num_warps: int) -> int:
    """How many blocks of a compiled kernel a multiprocessor holds."""
    from cuda.bindings import driver

    compiled._init_handles()
    error, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        compiled.function, 32 * num_warps, compiled.metadata.shared
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuOccupancyMaxActiveBlocksPerMultiprocessor: {error.name}")
    return int(blocks)


def aligned(values: torch.Tensor, boundary: int) -> torch.Tensor:
    """``values`` if all rows are aligned to ``boundary`` bytes, else a contiguous copy."""
    pack = boundary // values.element_size()
    fits = values.data_ptr() % boundary == 0 and all(stride % pack == 0 for stride in values.stride()[:-1])
    return values if fits else values.clone(memory_format=torch.contiguous_format)


# --------------------------------------------------------------------------- Gluon

# Triton 3.9 renamed it.
async_load = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)


@gluon.jit
def fetch(ring, iteration, x_ptrs, inside, STAGES: gl.constexpr):
    """Start the asynchronous copies that fill an iteration's stage of the ring; zeros outside."""
    async_load(ring.index(iteration % STAGES), x_ptrs, mask=inside)
    async_copy.commit_group()


@gluon.jit
def published(of_chunk_ptr, m, c, M, chunks):
    """These chunks' words of these rows: 0 if not yet published, nonzero if there is no such chunk."""
    there = (m >= 0) & (m < M) & (c < chunks)
    return gl.load(of_chunk_ptr + m * chunks + c, mask=there, other=-1, volatile=True)


def in_vectors(x: torch.Tensor) -> torch.Tensor:
    """``x`` with 16-byte aligned rows; a copy if they are not.

    Raises:
        NotImplementedError: a row is not a whole number of 16-byte vectors.
    """
    pack = 16 // x.element_size()
    if x.size(1) % pack != 0:
        raise NotImplementedError(f"N={x.size(1)}: copies move 16 bytes, {pack} columns, at a time")
    return aligned(x, 16)


def share_rows(
    kernel: Any, x: torch.Tensor, tensors: tuple[torch.Tensor, ...], more: tuple[float, ...] = (),
    *, BLOCK_M: int, PROGRAMS: int,
) -> None:  # fmt: skip
    """Launch a Gluon kernel whose programs, at most PROGRAMS per multiprocessor, share rows of ``x[M,N]``.

    Arguments of the kernel: ``tensors``, how rows are split into chunks, ``more``.  BLOCK_M rows are a 32 KB
    tile.
    """
    pack = 16 // x.element_size()
    M, N = x.shape
    check_counts(M=M)
    BLOCK_N = 2048 // BLOCK_M * pack
    STAGES = 3 if shared_bytes_of_a_block(x.device) >= 128 << 10 else 2  # sm_86: 3 and weights do not fit
    chunks = cdiv(N, BLOCK_N)
    of_chunk = x.new_zeros(M * chunks, dtype=torch.int64)
    BLOCK_C = max(32, next_power_of_2(chunks))
    arguments = (*tensors, M, N // pack, x.stride(0) // pack, chunks, of_chunk, *more)
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_C": BLOCK_C, "STAGES": STAGES}
    launch = {**tile, "num_warps": BLOCK_M, **COOPERATIVE}
    programs = resident_programs(kernel, arguments, launch, PROGRAMS, chunks)
    tiles_at_a_time = min(programs // chunks, cdiv(M, BLOCK_M))
    kernel[(tiles_at_a_time * chunks,)](*arguments, **launch)
