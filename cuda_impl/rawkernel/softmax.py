"""softmax through cupy: ``x[M,N] -> y[M,N]`` over rows, with the kernels of ``kernels/softmax.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_same
from compare.device import multiprocessors, shared_bytes_of_a_block
from compare.registry import implementation
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def checked(x: torch.Tensor) -> torch.Tensor:
    """``x`` with contiguous rows; a copy if they are not."""
    check_same("softmax", 2, x=x)
    return x if x.stride(1) == 1 or x.size(1) <= 1 else x.contiguous()


def vec(x: torch.Tensor) -> int:
    """Elements per access: 16 bytes' worth if all rows of x and y are 16-byte aligned, else 1."""
    pack = 16 // x.element_size()
    aligned = x.data_ptr() % 16 == 0 and x.stride(0) % pack == 0 and x.size(1) % pack == 0
    return pack if aligned else 1


@implementation("softmax", "cupy.online", level="tiled", algorithm="online softmax: the row is read twice")
def online(x: torch.Tensor) -> torch.Tensor:
    """A block reads its row twice: any row length."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    THREADS = 1024
    run = kernel("softmax", f"softmax_online_kernel<{CTYPES[x.dtype]}, {vec(x)}, {THREADS}>", x.device)
    run((M,), (THREADS,), (x.data_ptr(), y.data_ptr(), np.int64(N), np.int64(x.stride(0))))
    return y


ONEPASS_COLUMNS = 32768


MANY_ROWS = 1024  # enough to fill a GPU with one warp per row


def onepass_shape(M: int, packs: int, VEC: int) -> tuple[int, int, int]:
    """The smallest PACKS and THREADS, and BLOCK_M, for M rows of ``packs`` vectors."""
    if packs <= 32 * 4:  # one row per warp
        return (1 if packs <= 32 else 4), 128, 4
    if packs <= 32 * 8 and VEC <= 4 and M >= MANY_ROWS:
        return 8, 128, 4
    PACKS = 4 if VEC > 1 else 16  # single elements need more loads in flight
    if packs > 1024 * PACKS:
        PACKS *= 2
    return PACKS, max(64, 1 << (ceil_div(packs, PACKS) - 1).bit_length()), 1


@implementation("softmax", "cupy.onepass", level="tiled", algorithm="row in registers: maximum, sum, output")
def onepass(x: torch.Tensor) -> torch.Tensor:
    """The row stays in registers: up to 32768 columns."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    if N > ONEPASS_COLUMNS:
        raise NotImplementedError(f"N={N}: registers hold rows of up to {ONEPASS_COLUMNS} columns")
    VEC = vec(x)
    PACKS, THREADS, BLOCK_M = onepass_shape(M, ceil_div(N, VEC), VEC)
    name = f"softmax_onepass_kernel<{CTYPES[x.dtype]}, {VEC}, {PACKS}, {THREADS}, {BLOCK_M}>"
    run = kernel("softmax", name, x.device)
    sizes = (np.int64(M), np.int64(N), np.int64(x.stride(0)))
    run((ceil_div(M, BLOCK_M),), (THREADS,), (x.data_ptr(), y.data_ptr(), *sizes))
    return y


@implementation("softmax", "cupy.split", level="tiled")
def split(x: torch.Tensor) -> torch.Tensor:
    """Several blocks share a row: up to as long as all resident blocks can hold."""
    x = checked(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    VEC, THREADS = vec(x), 128
    PACKS = 4 if VEC > 1 else 16
    BLOCKS = 4  # per multiprocessor, by __launch_bounds__: all must be resident, as they wait for each other
    chunks = ceil_div(N, THREADS * PACKS * VEC)
    blocks = BLOCKS * multiprocessors(x.device)
    if chunks > blocks:
        raise NotImplementedError(f"N={N}: {blocks} blocks hold rows of {N * blocks // chunks} columns")
    blocks = min(blocks, M * chunks)
    of_chunk = torch.zeros(M * chunks, dtype=torch.int64, device=x.device)
    name = f"softmax_split_kernel<{CTYPES[x.dtype]}, {VEC}, {PACKS}, {THREADS}, {BLOCKS}>"
    run = kernel("softmax", name, x.device)
    sizes = (np.int64(M), np.int64(N), np.int64(x.stride(0)), np.int32(chunks))
    run((blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), *sizes, of_chunk.data_ptr()))
    return y


def checked_for_tma(x: torch.Tensor) -> torch.Tensor:
    """``x`` with 16-byte aligned rows; a copy if they are not."""
    x = checked(x)
    pack = 16 // x.element_size()
    if x.size(1) % pack != 0:
        raise NotImplementedError(f"N={x.size(1)}: TMA copies 16 bytes, {pack} columns, at a time")
    return x if vec(x) == pack else x.clone(memory_format=torch.contiguous_format)


@implementation("softmax", "cupy.cluster", level="hopper", requires="sm_90")
def cluster(x: torch.Tensor) -> torch.Tensor:
    """The blocks of a cluster share a row: up to 16 x 208 KB."""
    x = checked_for_tma(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    PACKS, THREADS = 8, 64
    VEC = 16 // x.element_size()
    BLOCK_N = THREADS * PACKS * VEC  # 8 KB
    tiles = ceil_div(N, BLOCK_N)
    # At most two tiles per block, so that many small blocks share a multiprocessor; more only beyond 16
    # blocks.
    CLUSTER = 2 if tiles <= 2 * 2 else 4 if tiles <= 4 * 2 else 8 if tiles <= 8 * 2 else 16
    slice_tiles = ceil_div(tiles, CLUSTER)
    if slice_tiles > 26:
        raise NotImplementedError(f"N={N}: the shared memory of 16 blocks holds {16 * 26 * BLOCK_N} columns")
    name = f"softmax_cluster_kernel<{CTYPES[x.dtype]}, {PACKS}, {THREADS}, {CLUSTER}>"
    run = kernel("softmax", name, x.device, cluster=CLUSTER)
    sizes = (np.int64(N), np.int64(x.stride(0)), np.int64(slice_tiles * BLOCK_N))
    shared_bytes = slice_tiles * BLOCK_N * x.element_size()
    run((M * CLUSTER,), (THREADS,), (x.data_ptr(), y.data_ptr(), *sizes), shared_mem=shared_bytes)
    return y


@implementation("softmax", "cupy.ring", level="hopper", requires="sm_90")
def ring(x: torch.Tensor) -> torch.Tensor:
    """As `split`, with TMA prefetch into a ring in shared memory."""
    x = checked_for_tma(x)
    M, N = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    PACKS, THREADS, SLOTS, LAG = 8, 256, 3, 2
    BLOCKS = 2  # per multiprocessor, at most, with 96 KB of shared memory each: all must be resident
    BLOCK_N = THREADS * PACKS * 16 // x.element_size()
    chunks = ceil_div(N, BLOCK_N)
    shared_bytes = SLOTS * BLOCK_N * x.element_size()
    resident = min(BLOCKS, shared_bytes_of_a_block(x.device) // shared_bytes)
    blocks = min(resident * multiprocessors(x.device), M * chunks)
    if chunks > (LAG - 1) * blocks:
        raise NotImplementedError(
            f"N={N}: {blocks} blocks hold rows of {(LAG - 1) * blocks * BLOCK_N} columns"
        )
    of_chunk = torch.zeros(M * chunks, dtype=torch.int64, device=x.device)
    name = f"softmax_ring_kernel<{CTYPES[x.dtype]}, {PACKS}, {THREADS}, {SLOTS}, {LAG}, {BLOCKS}>"
    run = kernel("softmax", name, x.device)
    sizes = (np.int64(M), np.int64(N), np.int64(x.stride(0)), np.int32(chunks))
    pointers = (x.data_ptr(), y.data_ptr())
    run((blocks,), (THREADS,), (*pointers, *sizes, of_chunk.data_ptr()), shared_mem=shared_bytes)
    return y
