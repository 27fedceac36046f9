"""reduce_sum in CUDA: y = sum(x) in fp32, with the kernels of ``kernels/reduce_sum.cuh``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from compare.arguments import check_same
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, zeros
from cuda_impl.launch import CTYPES, Instance, Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.layouts import vector


def kernel(variant: str, *constants: int, is_relaunched: bool = False) -> Kernel:
    """A variant's, and its template arguments after the type of x; relaunched ones add fp32 sums too."""
    more = [CTYPES[torch.float32]] if is_relaunched else []
    template = f"reduce_sum_{variant}_kernel<{{ELEMENT}}, {{CONSTANTS}}>"
    return Kernel(template, ELEMENT=lambda T: [CTYPES[T], *more], CONSTANTS=[constants])


def sums(count: int, x: Tensor) -> Tensor:
    """A vector of ``count`` fp32 elements; for 1 a scalar."""
    return empty((count,) if count > 1 else (), torch.float32, x.device)


def by_elements(run: Kernel, x: Tensor) -> Plan:
    """One element per thread; relaunched on the blocks' sums until one is left."""
    check_same("reduce_sum", 1, x=x)
    THREADS = 256
    launches: list[Launch] = []
    while True:
        N = x.numel()
        blocks = max(1, ceil_div(N, THREADS))
        y = sums(blocks, x)
        instance = run(ELEMENT=CTYPES[x.dtype], CONSTANTS=THREADS)
        launches.append(Launch(instance, blocks, THREADS, (x, y, *int64(N, x.stride(0)))))
        if blocks == 1:
            return Plan(y, *launches)
        x = y


TREE, SHUFFLE = kernel("tree", 256, is_relaunched=True), kernel("shuffle", 256, is_relaunched=True)


@variant("reduce_sum", "tree", kernels=[TREE], level="naive")
def tree(x: Tensor) -> Plan:
    """Tree reduction in shared memory."""
    return by_elements(TREE, x)


@variant("reduce_sum", "shuffle", kernels=[SHUFFLE], level="tiled")
def shuffle(x: Tensor) -> Plan:
    """Warp shuffles reduce in registers."""
    return by_elements(SHUFFLE, x)


SIZES = {"VECTORS": (4, 8, 16), "THREADS": (128, 256, 512), "BLOCKS": (1, 2, 3, 4, 6, 8)}


class Chunks(NamedTuple):
    """The partition of a vector: the kernel, its grid, and its first arguments except the addresses."""

    run: Instance
    blocks: int
    sizes: tuple[np.generic, ...]


def chunks_of(run: Kernel, x: Tensor, VECTORS: int, THREADS: int, BLOCKS: int) -> Chunks:
    """Chunks of THREADS * VECTORS vectors, for BLOCKS blocks per multiprocessor, at most one per chunk."""
    N = x.numel()
    head = min(N, -x.data_ptr() % 16 // x.element_size())
    BLOCKS = min(BLOCKS, 2048 // THREADS)  # no more threads fit; 16 loads of 16 bytes take 64 registers each
    chunks = ceil_div((N - head) // vector(x), THREADS * VECTORS)
    blocks = max(1, min(chunks, BLOCKS * multiprocessors(x.device)))
    instance = run(ELEMENT=CTYPES[x.dtype], CONSTANTS=(VECTORS, THREADS, BLOCKS))
    return Chunks(instance, blocks, (*int64(N), *int32(head)))


def is_strided(x: Tensor) -> bool:
    return x.numel() > 1 and x.stride(0) != 1


VECTORIZED = kernel("vectorized", 16, 256, 3, is_relaunched=True)


@variant(
    "reduce_sum",
    "vectorized",
    kernels=[VECTORIZED, SHUFFLE],
    level="tiled",
    algorithm="partial sums, added by a second kernel",
    tunable=SIZES,
    matches="triton.vectorized",
)
def vectorized(x: Tensor, *, VECTORS: int = 16, THREADS: int = 256, BLOCKS: int = 3) -> Plan:
    """16 16-byte loads per thread in flight; relaunched on the blocks' sums until one is left.

    A strided x uses `shuffle`, here and below.
    """
    check_same("reduce_sum", 1, x=x)
    if is_strided(x):
        return shuffle.plan(x)
    launches: list[Launch] = []
    while True:
        of = chunks_of(VECTORIZED, x, VECTORS, THREADS, BLOCKS)
        y = sums(of.blocks, x)
        launches.append(Launch(of.run, of.blocks, THREADS, (x, y, *of.sizes)))
        if of.blocks == 1:
            return Plan(y, *launches)
        x = y


ATOMIC = kernel("atomic", 16, 256, 3)


@variant(
    "reduce_sum",
    "atomic",
    kernels=[ATOMIC, SHUFFLE],
    level="tiled",
    algorithm="partial sums, added by atomics",
    deterministic=False,
    tunable=SIZES,
    matches="triton.atomic",
)
def atomic(x: Tensor, *, VECTORS: int = 16, THREADS: int = 256, BLOCKS: int = 3) -> Plan:
    """Each block adds its sum to y, in the order of completion."""
    check_same("reduce_sum", 1, x=x)
    if is_strided(x):
        return shuffle.plan(x)
    y = zeros((), torch.float32, x.device)
    of = chunks_of(ATOMIC, x, VECTORS, THREADS, BLOCKS)
    return Plan(y, Launch(of.run, of.blocks, THREADS, (x, y, *of.sizes)))


LAST_BLOCK = kernel("last_block", 16, 256, 3)


@variant(
    "reduce_sum",
    "last_block",
    kernels=[LAST_BLOCK, SHUFFLE],
    level="tiled",
    algorithm="partial sums, added by the last block",
    tunable=SIZES,
    matches="triton.last_block",
)
def last_block(x: Tensor, *, VECTORS: int = 16, THREADS: int = 256, BLOCKS: int = 3) -> Plan:
    """The last block to finish adds all blocks' sums, in block order."""
    check_same("reduce_sum", 1, x=x)
    if is_strided(x):
        return shuffle.plan(x)
    of = chunks_of(LAST_BLOCK, x, VECTORS, THREADS, BLOCKS)
    y, block_sums = sums(1, x), empty((of.blocks,), torch.float32, x.device)
    blocks_done = zeros((1,), torch.int64, x.device)
    args = (x, y, *of.sizes, block_sums, blocks_done)
    return Plan(y, Launch(of.run, of.blocks, THREADS, args))
