"""reduce_sum through cupy: y = sum(x) in fp32, with the kernels of ``kernels/reduce_sum.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from compare.arguments import check_same
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.loader import Kernel, kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def by_elements(variant: str, x: torch.Tensor) -> torch.Tensor:
    """One element per thread; relaunched on the blocks' sums until one is left."""
    check_same("reduce_sum", 1, x=x)
    THREADS = 256
    while True:
        N = x.numel()
        blocks = max(1, ceil_div(N, THREADS))
        y = x.new_empty((blocks,) if blocks > 1 else (), dtype=torch.float32)
        run = kernel("reduce_sum", f"reduce_sum_{variant}_kernel<{CTYPES[x.dtype]}, {THREADS}>", x.device)
        run((blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), np.int64(N), np.int64(x.stride(0))))
        if blocks == 1:
            return y
        x = y


@implementation("reduce_sum", "cupy.tree", level="naive")
def tree(x: torch.Tensor) -> torch.Tensor:
    """Tree reduction in shared memory."""
    return by_elements("tree", x)


@implementation("reduce_sum", "cupy.shuffle", level="tiled")
def shuffle(x: torch.Tensor) -> torch.Tensor:
    """Warp shuffles reduce in registers."""
    return by_elements("shuffle", x)


SIZES = {"PACKS": (4, 8, 16), "THREADS": (128, 256, 512), "BLOCKS": (1, 2, 3, 4, 6, 8)}


@dataclass(frozen=True)
class Chunks:
    """The partition of a vector: the kernel, its grid, and its first arguments except the addresses."""

    run: Kernel
    blocks: int
    N: np.int64
    head: np.int32


def chunks_of(variant: str, x: torch.Tensor, PACKS: int, THREADS: int, BLOCKS: int) -> Chunks:
    """Chunks of THREADS * PACKS vectors, for BLOCKS blocks per multiprocessor, at most one per chunk."""
    N = x.numel()
    VEC = 16 // x.element_size()
    head = min(N, -x.data_ptr() % 16 // x.element_size())
    BLOCKS = min(BLOCKS, 2048 // THREADS)  # no more threads fit; 16 loads of 16 bytes take 64 registers each
    chunks = ceil_div((N - head) // VEC, THREADS * PACKS)
    blocks = max(1, min(chunks, BLOCKS * multiprocessors(x.device)))
    name = f"reduce_sum_{variant}_kernel<{CTYPES[x.dtype]}, {PACKS}, {THREADS}, {BLOCKS}>"
    run = kernel("reduce_sum", name, x.device)
    return Chunks(run, blocks, np.int64(N), np.int32(head))


def is_strided(x: torch.Tensor) -> bool:
    return x.numel() > 1 and x.stride(0) != 1


@implementation(
    "reduce_sum",
    "cupy.vectorized",
    level="tiled",
    algorithm="partial sums, added by a second kernel",
    tunable=SIZES,
    matches="triton.vectorized",
)
def vectorized(x: torch.Tensor, *, PACKS: int = 16, THREADS: int = 256, BLOCKS: int = 3) -> torch.Tensor:
    """16 16-byte loads per thread in flight; relaunched on the blocks' sums until one is left.

    A strided x uses `shuffle`, here and below.
    """
    check_same("reduce_sum", 1, x=x)
    if is_strided(x):
        return shuffle(x)
    while True:
        of = chunks_of("vectorized", x, PACKS, THREADS, BLOCKS)
        y = x.new_empty((of.blocks,) if of.blocks > 1 else (), dtype=torch.float32)
        of.run((of.blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), of.N, of.head))
        if of.blocks == 1:
            return y
        x = y


@implementation(
    "reduce_sum",
    "cupy.atomic",
    level="tiled",
    algorithm="partial sums, added by atomics",
    deterministic=False,
    tunable=SIZES,
    matches="triton.atomic",
)
def atomic(x: torch.Tensor, *, PACKS: int = 16, THREADS: int = 256, BLOCKS: int = 3) -> torch.Tensor:
    """Each block adds its sum to y, in the order of completion."""
    check_same("reduce_sum", 1, x=x)
    if is_strided(x):
        return shuffle(x)
    y = x.new_zeros((), dtype=torch.float32)
    of = chunks_of("atomic", x, PACKS, THREADS, BLOCKS)
    of.run((of.blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), of.N, of.head))
    return y


@implementation(
    "reduce_sum",
    "cupy.last_block",
    level="tiled",
    algorithm="partial sums, added by the last block",
    tunable=SIZES,
    matches="triton.last_block",
)
def last_block(x: torch.Tensor, *, PACKS: int = 16, THREADS: int = 256, BLOCKS: int = 3) -> torch.Tensor:
    """The last block to finish adds all blocks' sums, in block order."""
    check_same("reduce_sum", 1, x=x)
    if is_strided(x):
        return shuffle(x)
    of = chunks_of("last_block", x, PACKS, THREADS, BLOCKS)
    y = x.new_empty((), dtype=torch.float32)
    of_block = x.new_empty((of.blocks,), dtype=torch.float32)
    blocks_done = x.new_zeros((1,), dtype=torch.int64)
    scratch = (of_block.data_ptr(), blocks_done.data_ptr())
    of.run((of.blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), of.N, of.head, *scratch))
    return y
