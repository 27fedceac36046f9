"""batched_matmul through cupy: ``a[B,N,N], b[B,N,N] -> c[B,N,N]``, with ``kernels/batched_matmul.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_batched_squares
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.loader import kernel
from cuda_impl.rawkernel.matmul import CTYPES, ceil_div, check_tensor_cores, cpp

LARGEST = 128
"""Rows of a matrix that a block holds whole."""


def checked(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int, torch.Tensor]:
    """B, N and an empty c."""
    check_batched_squares("batched_matmul", a, b)
    c = torch.empty_like(a, memory_format=torch.contiguous_format)
    return a.size(0), a.size(1), c


def check_size(N: int) -> None:
    if N > LARGEST:
        raise NotImplementedError(f"N={N}: a block holds whole matrices of up to {LARGEST} rows")


def is_dense(BLOCK_N: int, *operands: torch.Tensor) -> bool:
    """Whether all move in packs of 16 bytes: dense, aligned, and rows as long as a tile's."""
    return all(x.size(1) == BLOCK_N and x.is_contiguous() and x.data_ptr() % 16 == 0 for x in operands)


def strides(a: torch.Tensor, b: torch.Tensor) -> list[np.int64]:
    return [np.int64(value) for value in (*a.stride(), *b.stride())]


@implementation("batched_matmul", "cupy.naive", rung="naive")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A thread an element."""
    B, N, c = checked(a, b)
    if c.numel() == 0:
        return c
    THREADS = 256
    run = kernel("batched_matmul", f"batched_matmul_naive_kernel<{CTYPES[a.dtype]}, {THREADS}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (np.int64(B), np.int64(N))
    run((ceil_div(c.numel(), THREADS),), (THREADS,), (*pointers, *sizes, *strides(a, b)))
    return c


@implementation("batched_matmul", "cupy.tiled", rung="tiled")
def tiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whole matrices in shared memory, 4 x 4 elements a thread."""
    B, N, c = checked(a, b)
    if c.numel() == 0:
        return c
    check_size(N)
    BLOCK_N = ceil_div(N, 16) * 16
    MATRICES = 8 if BLOCK_N == 16 else 2 if BLOCK_N == 32 else 1  # 128 threads at least
    DENSE = is_dense(BLOCK_N, a, b)
    tile = f"{CTYPES[a.dtype]}, {BLOCK_N}, {MATRICES}, {cpp(DENSE)}"
    run = kernel("batched_matmul", f"batched_matmul_tiled_kernel<{tile}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (np.int64(B), np.int32(N))
    threads = MATRICES * BLOCK_N * BLOCK_N // 16
    shared_bytes = 2 * MATRICES * BLOCK_N * (BLOCK_N + 4) * 4
    run((ceil_div(B, MATRICES),), (threads,), (*pointers, *sizes, *strides(a, b)), shared_mem=shared_bytes)
    return c


def matrices_of(BLOCK_N: int) -> int:
    """MATRICES of a block: so many that it has 5 to 8 warps, each 16 rows."""
    return max(8 // (BLOCK_N // 16), 1)


def group_bytes(BLOCK_N: int) -> int:
    """Of a group's tiles of a and b, whose rows are a pack further apart."""
    return 2 * matrices_of(BLOCK_N) * BLOCK_N * (BLOCK_N + 8) * 2


@implementation("batched_matmul", "cupy.tensor_core", rung="tensor_core")
def tensor_core(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whole matrices in shared memory, 16 rows a warp."""
    B, N, c = checked(a, b)
    check_tensor_cores(a)
    if c.numel() == 0:
        return c
    check_size(N)
    BLOCK_N = ceil_div(N, 16) * 16
    MATRICES, DENSE = matrices_of(BLOCK_N), is_dense(BLOCK_N, a, b)
    tile = f"{CTYPES[a.dtype]}, {BLOCK_N}, {MATRICES}, {cpp(DENSE)}"
    run = kernel("batched_matmul", f"batched_matmul_tensor_core_kernel<{tile}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (np.int64(B), np.int32(N))
    threads, shared_bytes = MATRICES * BLOCK_N * 2, group_bytes(BLOCK_N)
    run((ceil_div(B, MATRICES),), (threads,), (*pointers, *sizes, *strides(a, b)), shared_mem=shared_bytes)
    return c


def blocks_of(BLOCK_N: int) -> int:
    """BLOCKS of a multiprocessor: what 227 KB and 1536 threads' registers have room for."""
    threads, shared_bytes = matrices_of(BLOCK_N) * BLOCK_N * 2, 2 * group_bytes(BLOCK_N)
    return min((227 << 10) // (shared_bytes + 1024), 1536 // threads)


@implementation("batched_matmul", "cupy.pipelined", rung="tensor_core")
def pipelined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Group after group, the next on its way meanwhile."""
    B, N, c = checked(a, b)
    check_tensor_cores(a)
    if c.numel() == 0:
        return c
    check_size(N)
    BLOCK_N = ceil_div(N, 16) * 16
    MATRICES, BLOCKS, DENSE = matrices_of(BLOCK_N), blocks_of(BLOCK_N), is_dense(BLOCK_N, a, b)
    tile = f"{CTYPES[a.dtype]}, {BLOCK_N}, {MATRICES}, {BLOCKS}, {cpp(DENSE)}"
    run = kernel("batched_matmul", f"batched_matmul_pipelined_kernel<{tile}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (np.int64(B), np.int32(N))
    threads, shared_bytes = MATRICES * BLOCK_N * 2, 2 * group_bytes(BLOCK_N)
    blocks = min(ceil_div(B, MATRICES), BLOCKS * multiprocessors(a.device))
    run((blocks,), (threads,), (*pointers, *sizes, *strides(a, b)), shared_mem=shared_bytes)
    return c
