"""batched_matmul through cupy: ``a[B,N,N], b[B,N,N] -> c[B,N,N]``, with ``kernels/batched_matmul.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_batched_squares
from compare.device import multiprocessors, shared_bytes_of_a_block
from compare.registry import implementation
from cuda_impl.loader import kernel
from cuda_impl.rawkernel.matmul import CTYPES, ceil_div, check_tensor_cores, cpp

LARGEST = 128
"""Maximum N: a block holds whole matrices."""


def checked(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int, torch.Tensor]:
    """B, N and an uninitialised c."""
    check_batched_squares("batched_matmul", a, b)
    c = torch.empty_like(a, memory_format=torch.contiguous_format)
    return a.size(0), a.size(1), c


def check_size(N: int) -> None:
    if N > LARGEST:
        raise NotImplementedError(
            f"N={N}: a block holds whole matrices of up to {LARGEST} rows; torch.eager takes any"
        )


MOST_THREADS = 1024


def threads_of(MATRICES: int, BLOCK_N: int) -> int:
    """Threads per block, one warp per 16 rows; raises NotImplementedError above the maximum."""
    threads = MATRICES * BLOCK_N * 2
    if threads > MOST_THREADS:
        raise NotImplementedError(
            f"MATRICES={MATRICES}: with tiles of {BLOCK_N} rows that is {threads} threads a block, which has "
            f"at most {MOST_THREADS}; take MATRICES={MOST_THREADS // (BLOCK_N * 2)} or fewer"
        )
    return threads


def check_shared(a: torch.Tensor, shared_bytes: int) -> int:
    """``shared_bytes``; raises NotImplementedError if a block needs more than this GPU allows."""
    most = shared_bytes_of_a_block(a.device)
    if shared_bytes > most:
        raise NotImplementedError(
            f"N={a.size(1)}: {shared_bytes} bytes of shared memory a block, and this GPU has {most}; fewer "
            "or smaller matrices a block take less, and torch.eager takes any"
        )
    return shared_bytes


def is_packed(x: torch.Tensor, by_rows: bool = True) -> bool:
    """Whether rows (or columns) are whole 16-byte vectors, aligned."""
    VEC, along = 16 // x.element_size(), 2 if by_rows else 1
    return (
        x.stride(along) == 1
        and x.size(1) % VEC == x.stride(3 - along) % VEC == x.stride(0) % VEC == 0
        and x.data_ptr() % 16 == 0
    )


def lie(a: torch.Tensor, b: torch.Tensor) -> tuple[bool, bool, bool]:
    """PACKED, A_BY_ROWS and B_BY_ROWS."""
    A_BY_ROWS, B_BY_ROWS = a.stride(2) == 1, b.stride(2) == 1
    return is_packed(a, A_BY_ROWS) and is_packed(b, B_BY_ROWS), A_BY_ROWS, B_BY_ROWS


def strides(a: torch.Tensor, b: torch.Tensor) -> list[np.int64]:
    return [np.int64(value) for value in (*a.stride(), *b.stride())]


@implementation("batched_matmul", "cupy.naive", level="naive", algorithm="a dot product per element")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One element per thread."""
    B, N, c = checked(a, b)
    if c.numel() == 0:
        return c
    THREADS = 256
    run = kernel("batched_matmul", f"batched_matmul_naive_kernel<{CTYPES[a.dtype]}, {THREADS}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (np.int64(B), np.int64(N))
    run((ceil_div(c.numel(), THREADS),), (THREADS,), (*pointers, *sizes, *strides(a, b)))
    return c


@implementation("batched_matmul", "cupy.tiled", level="tiled", tunable={"ROWS": (4, 8)})
def tiled(a: torch.Tensor, b: torch.Tensor, *, ROWS: int = 4) -> torch.Tensor:
    """Whole matrices in shared memory, ROWS x 4 elements per thread."""
    B, N, c = checked(a, b)
    if c.numel() == 0:
        return c
    check_size(N)
    side = ceil_div(N, ROWS) * ROWS
    each = side // ROWS * side // 4  # threads per matrix
    matrices = max(128 // each, 1)  # 128 threads, at least one matrix
    shared_bytes = check_shared(a, 2 * matrices * side * (side + 4) * 4)
    PACKED = is_packed(a) and is_packed(b)
    arguments = f"{CTYPES[a.dtype]}, {cpp(PACKED)}, {ROWS}"
    run = kernel("batched_matmul", f"batched_matmul_tiled_kernel<{arguments}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (np.int64(B), np.int32(N), np.int32(matrices))
    blocks, threads = ceil_div(B, matrices), matrices * each
    run((blocks,), (threads,), (*pointers, *sizes, *strides(a, b)), shared_mem=shared_bytes)
    return c


def matrices_of(BLOCK_N: int) -> int:
    """MATRICES per block: 4 to 8 warps, with 16 rows each."""
    return ceil_div(64, BLOCK_N)


def group_bytes(MATRICES: int, BLOCK_N: int) -> int:
    """Bytes of a group's tiles of a and b."""
    return 2 * MATRICES * BLOCK_N * BLOCK_N * 2


@implementation("batched_matmul", "cupy.tensor_core", level="tensor_core", tunable={"MATRICES": (1, 2, 4, 8)})
def tensor_core(a: torch.Tensor, b: torch.Tensor, *, MATRICES: int = 0) -> torch.Tensor:
    """Whole matrices in shared memory, 16 rows per warp; MATRICES of 0 are chosen by N."""
    B, N, c = checked(a, b)
    check_tensor_cores(a)
    if c.numel() == 0:
        return c
    check_size(N)
    BLOCK_N = ceil_div(N, 16) * 16
    MATRICES = MATRICES or matrices_of(BLOCK_N)
    PACKED, A_BY_ROWS, B_BY_ROWS = lie(a, b)
    threads = threads_of(MATRICES, BLOCK_N)
    shared_bytes = check_shared(a, group_bytes(MATRICES, BLOCK_N))
    layouts, tile = f"{cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}, ", f"{BLOCK_N}, {MATRICES}"
    name = f"tensor_core_kernel<{CTYPES[a.dtype]}, {layouts}{tile}>"
    if not PACKED:
        name = f"any_layout_kernel<{CTYPES[a.dtype]}, {tile}>"
    run = kernel("batched_matmul", f"batched_matmul_{name}", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (np.int64(B), np.int32(N))
    blocks = ceil_div(B, MATRICES)
    run((blocks,), (threads,), (*pointers, *sizes, *strides(a, b)), shared_mem=shared_bytes)
    return c


def blocks_of(MATRICES: int, BLOCK_N: int, STAGES: int) -> int:
    """BLOCKS per multiprocessor, limited by 227 KB of shared memory and by the registers of 1536 threads."""
    shared_bytes = STAGES * group_bytes(MATRICES, BLOCK_N)
    return max(min((227 << 10) // (shared_bytes + 1024), 1536 // threads_of(MATRICES, BLOCK_N)), 1)


@implementation(
    "batched_matmul",
    "cupy.pipelined",
    level="tensor_core",
    tunable={"MATRICES": (1, 2, 4, 8), "STAGES": (2, 3, 4)},
)
def pipelined(a: torch.Tensor, b: torch.Tensor, *, MATRICES: int = 0, STAGES: int = 3) -> torch.Tensor:
    """Persistent: the next groups are prefetched while one is multiplied; MATRICES of 0 are chosen by N."""
    B, N, c = checked(a, b)
    check_tensor_cores(a)
    if c.numel() == 0:
        return c
    check_size(N)
    PACKED, A_BY_ROWS, B_BY_ROWS = lie(a, b)
    if not PACKED:
        return tensor_core(a, b, MATRICES=MATRICES)
    BLOCK_N = ceil_div(N, 16) * 16
    MATRICES = MATRICES or matrices_of(BLOCK_N)
    threads = threads_of(MATRICES, BLOCK_N)
    BLOCKS = blocks_of(MATRICES, BLOCK_N, STAGES)
    shared_bytes = check_shared(a, STAGES * group_bytes(MATRICES, BLOCK_N))
    layouts = f"{CTYPES[a.dtype]}, {cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}"
    tile = f"{layouts}, {BLOCK_N}, {MATRICES}, {STAGES}, {BLOCKS}"
    run = kernel("batched_matmul", f"batched_matmul_pipelined_kernel<{tile}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (np.int64(B), np.int32(N))
    blocks = min(ceil_div(B, MATRICES), BLOCKS * multiprocessors(a.device))
    run((blocks,), (threads,), (*pointers, *sizes, *strides(a, b)), shared_mem=shared_bytes)
    return c
