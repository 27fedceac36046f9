"""w4a16_matmul through cupy: ``a[M,K], packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> y[M,N]``, with the
kernels of ``kernels/w4a16_matmul/``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_quantized_linear
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.loader import kernel
from cuda_impl.matrix_map import has_aligned_rows, matrix_map
from cuda_impl.rawkernel.matmul import CTYPES, ceil_div

OP = "w4a16_matmul"
GROUP, NIBBLES = 128, 8
MOST_PRODUCTS = 1 << 37
MOST_UNITS = 1 << 31
Prepared = tuple[torch.Tensor, ...]


def checked(
    a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> tuple[int, int, int, torch.Tensor]:
    """M, N, K and an uninitialised y; zeros if there is nothing to add."""
    check_quantized_linear(OP, a, packed, scales, zeros)
    (M, K), N = a.shape, packed.shape[0]
    y = torch.empty((M, N), dtype=a.dtype, device=a.device)
    return M, N, K, y if K else y.zero_()


@implementation(OP, "cupy.naive", level="naive")
def naive(a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """One element per thread."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if M * N * K > MOST_PRODUCTS:
        raise NotImplementedError(f"M*N*K={M * N * K}: it would take seconds, at most {MOST_PRODUCTS}")
    if y.numel() == 0 or K == 0:
        return y
    THREADS = 256
    run = kernel(OP, f"w4a16_matmul_naive_kernel<{CTYPES[a.dtype]}, {THREADS}>", a.device)
    blocks = ceil_div(M, THREADS // 32) * ceil_div(N, 32)
    inputs = a, packed, scales, zeros
    sizes = [np.int64(value) for value in (M, N, K, *(step for x in inputs for step in x.stride()))]
    run((blocks,), (THREADS,), (*(x.data_ptr() for x in inputs), y.data_ptr(), *sizes))
    return y


def operand(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows are contiguous and 16-byte aligned, else such a copy."""
    if has_aligned_rows(x):
        return x
    rows, columns = x.shape
    vector = 16 // x.element_size()
    return x.new_empty((rows, ceil_div(columns, vector) * vector))[:, :columns].copy_(x)


def block_m(M: int) -> int:
    """The least tile that has all rows, up to 64."""
    return 16 if M <= 16 else 32 if M <= 32 else 64


@implementation(OP, "cupy.tensor_core", level="tensor_core", requires="sm_80")
def tensor_core(
    a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """One tile per block, on tensor cores."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if y.numel() == 0 or K == 0:
        return y
    a, packed = operand(a), operand(packed)
    BLOCK_M, BLOCK_N, WARPS, STAGES = block_m(M), 64, 4, 4
    tile = f"{CTYPES[a.dtype]}, {BLOCK_M}, {BLOCK_N}, {WARPS}, {STAGES}"
    run = kernel(OP, f"w4a16_matmul_tensor_core_kernel<{tile}>", a.device)
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    strides = a.stride(0), packed.stride(0), *scales.stride(), *zeros.stride()
    sizes = [np.int64(value) for value in (M, N, K, *strides)]
    pointers = [x.data_ptr() for x in (a, packed, scales, zeros, y)]
    shared_bytes = STAGES * (BLOCK_M * 2 * GROUP + BLOCK_N * GROUP // 2)
    run((blocks,), (WARPS * 32,), (*pointers, *sizes), shared_mem=shared_bytes)
    return y


def repack(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> Prepared:
    """What `streamk` takes as prepared: weights in the order of mma operands, scales and zero points of
    neighbouring columns side by side, and a flag for each block, 0 between calls.

    Calls with the same tensors must not overlap, as their blocks share the flags.
    """
    N, groups = scales.shape
    matrices, words = ceil_div(N, 8), packed.shape[1]
    weights = packed.new_empty((matrices, groups, 32, 4))
    scale_words = packed.new_empty((groups, matrices * 8))
    ready = packed.new_zeros(multiprocessors(packed.device))
    if weights.numel():
        THREADS = 256
        run = kernel(OP, f"w4a16_matmul_repack_kernel<{THREADS}>", packed.device)
        strides = (*packed.stride(), *scales.stride(), *zeros.stride())
        sizes = [np.int64(value) for value in (N, words * NIBBLES, *strides)]
        pointers = [x.data_ptr() for x in (packed, scales, zeros, weights, scale_words)]
        run((ceil_div(matrices * groups * 32, THREADS),), (THREADS,), (*pointers, *sizes))
    return weights, scale_words, ready


def units_of(M: int, N: int, K: int, BLOCK_M: int, BLOCK_N: int) -> int:
    """The groups of all tiles.

    Raises:
        NotImplementedError: too many to count.
    """
    units = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N) * ceil_div(K, GROUP)
    if units >= MOST_UNITS:
        raise NotImplementedError(f"M={M}, N={N}, K={K}: {units} groups in all tiles, at most {MOST_UNITS}")
    return units


@implementation(OP, "cupy.streamk", level="tensor_core", requires="sm_80", prepare=repack)
def streamk(
    a: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    prepared: Prepared | None = None,
) -> torch.Tensor:
    """Repacked weights; each block has an equal share of all tiles' groups."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if y.numel() == 0 or K == 0:
        return y
    weights, scale_words, ready = repack(packed, scales, zeros) if prepared is None else prepared
    if weights.shape != (ceil_div(N, 8), scales.shape[1], 32, 4):
        raise ValueError(f"{OP}: prepared has shape {tuple(weights.shape)}; it takes what repack returns")
    a = operand(a)
    BLOCK_M, BLOCK_N, WARPS = block_m(M), 256, 8
    STAGES = 4 if BLOCK_M == 16 else 3
    units = units_of(M, N, K, BLOCK_M, BLOCK_N)
    blocks = min(ready.numel(), units)
    parts = torch.empty((blocks, BLOCK_M, BLOCK_N), dtype=torch.float32, device=a.device)
    tile = f"{CTYPES[a.dtype]}, {BLOCK_M}, {BLOCK_N}, {WARPS}, {STAGES}"
    run = kernel(OP, f"w4a16_matmul_streamk_kernel<{tile}>", a.device)
    pointers = [x.data_ptr() for x in (a, weights, scale_words, y, parts, ready)]
    sizes = [np.int64(value) for value in (M, N, K, a.stride(0))]
    shared_bytes = STAGES * (BLOCK_M * 2 * GROUP + BLOCK_N * GROUP // 2 + BLOCK_N * 4)
    run((blocks,), (WARPS * 32,), (*pointers, *sizes), shared_mem=shared_bytes)
    return y


PIECE_N = 64
PIECE_BYTES = PIECE_N * GROUP // 2 + PIECE_N * 4
"""Of 64 rows of a group's weights, and their scales and zero points."""
ALIGNMENT = 1024
"""Of swizzled tiles; dynamic shared memory may lack it."""
MOST = (1 << 31) - 512
"""Maximum M and K: coordinates of TMA are 32-bit."""
SHARED_BYTES = 226 * 1024
"""Of a multiprocessor, for the rings of its blocks."""
READY_FLAGS = 32
"""For each multiprocessor: of all warps of its blocks."""


def repack_pieces(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> Prepared:
    """What `transposed` takes as prepared: pieces of a group of 64 rows in the order of wgmma operands, and a
    flag for each warp, 0 between calls.

    Calls with the same tensors must not overlap, as their blocks share the flags.
    """
    N, groups = scales.shape
    tiles, words = ceil_div(N, PIECE_N), packed.shape[1]
    pieces = packed.new_empty((tiles, groups, PIECE_BYTES // 4))
    ready = packed.new_zeros(multiprocessors(packed.device) * READY_FLAGS)
    if pieces.numel():
        THREADS = 256
        run = kernel(OP, f"w4a16_matmul_repack_pieces_kernel<{THREADS}>", packed.device)
        strides = (*packed.stride(), *scales.stride(), *zeros.stride())
        sizes = [np.int64(value) for value in (N, words * NIBBLES, *strides)]
        pointers = [x.data_ptr() for x in (packed, scales, zeros, pieces)]
        run((ceil_div(tiles * groups * THREADS, THREADS),), (THREADS,), (*pointers, *sizes))
    return pieces, ready


def pieces_for(
    M: int, K: int, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, prepared: Prepared | None
) -> Prepared:
    """Pieces and flags: those prepared, if they are of this size, else new ones.

    Raises:
        NotImplementedError: M or K is too large for TMA.
        ValueError: what was prepared is of another size.
    """
    if max(M, K) > MOST:
        raise NotImplementedError(f"M={M}, K={K}: at most {MOST} of each")
    pieces, ready = repack_pieces(packed, scales, zeros) if prepared is None else prepared
    if pieces.shape != (ceil_div(scales.shape[0], PIECE_N), scales.shape[1], PIECE_BYTES // 4):
        found = tuple(pieces.shape)
        raise ValueError(f"{OP}: prepared has shape {found}; it takes what repack_pieces returns")
    return pieces, ready


def ring_bytes(STAGES: int, stage_bytes: int, BLOCKS: int) -> int:
    """Shared memory of a block.

    Raises:
        NotImplementedError: a multiprocessor does not hold so many blocks of it.
    """
    ring, most = STAGES * stage_bytes + ALIGNMENT, SHARED_BYTES // BLOCKS
    if ring > most:
        raise NotImplementedError(f"STAGES={STAGES}: {ring} bytes of shared memory, at most {most}")
    return ring


def rows_of(M: int) -> int:
    """The least tile that has all rows, up to 128."""
    return next((rows for rows in (8, 16, 32, 64) if rows >= M), 128)


@implementation(
    OP,
    "cupy.transposed",
    level="hopper",
    requires="sm_90a",
    emulated=True,
    prepare=repack_pieces,
    tunable={
        "BLOCK_M": (8, 16, 32, 64, 128),
        "WARPGROUPS": (1, 2, 3, 4),
        "STAGES": (3, 4, 5, 6, 8, 9, 10),
        "BLOCKS": (1, 2),
        "EVICT_FIRST": (0, 1),
    },
)
def transposed(
    a: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    prepared: Prepared | None = None,
    BLOCK_M: int = 0,
    WARPGROUPS: int = 0,
    STAGES: int = 0,
    BLOCKS: int = 0,
    EVICT_FIRST: int = 1,
) -> torch.Tensor:
    """wgmma with dequantized weights in registers; TMA fetches, each block an equal share of the groups."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if y.numel() == 0 or K == 0:
        return y
    pieces, ready = pieces_for(M, K, packed, scales, zeros, prepared)
    a = operand(a)
    BLOCK_M = BLOCK_M or rows_of(M)
    WARPGROUPS = WARPGROUPS or 2
    BLOCKS = BLOCKS or (2 if BLOCK_M < 64 and WARPGROUPS <= 2 else 1)
    stage_bytes = BLOCK_M * 2 * GROUP + WARPGROUPS * PIECE_BYTES
    STAGES = STAGES or min(6 if BLOCKS == 2 else 10, (SHARED_BYTES // BLOCKS - ALIGNMENT) // stage_bytes)
    units = units_of(M, N, K, BLOCK_M, WARPGROUPS * PIECE_N)
    blocks = min(BLOCKS * (ready.numel() // READY_FLAGS), units)
    parts = torch.empty((blocks, BLOCK_M, WARPGROUPS * PIECE_N), dtype=torch.float32, device=a.device)
    tile = f"{CTYPES[a.dtype]}, {BLOCK_M}, {WARPGROUPS}, {STAGES}, {BLOCKS}"
    run = kernel(OP, f"w4a16_matmul_transposed_kernel<{tile}>", a.device)
    pointers = [x.data_ptr() for x in (pieces, y, parts, ready)]
    sizes = [np.int64(value) for value in (M, N, K)]
    once = np.int32(EVICT_FIRST and M <= BLOCK_M)
    shared_bytes = ring_bytes(STAGES, stage_bytes, BLOCKS)
    a_map = matrix_map(a, BLOCK_M)
    run((blocks,), ((WARPGROUPS + 1) * 128,), (a_map, *pointers, *sizes, once), shared_mem=shared_bytes)
    return y


def even_blocks(processors: int, units: int, groups: int) -> int:
    """Blocks of a grid, one per multiprocessor: of a multiple of the tiles if few stay idle, as then fewer
    blocks share a tile."""
    even = processors // (units // groups) * (units // groups)
    return min(even if even >= 0.95 * processors else processors, units)


@implementation(
    OP,
    "cupy.wide",
    level="hopper",
    requires="sm_90a",
    emulated=True,
    prepare=repack_pieces,
    tunable={
        "BLOCK_M": (64, 128),
        "WARPGROUPS": (1, 2),
        "STAGES": (2, 3, 4, 5, 6),
        "EVICT_FIRST": (0, 1),
    },
)
def wide(
    a: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    prepared: Prepared | None = None,
    BLOCK_M: int = 0,
    WARPGROUPS: int = 2,
    STAGES: int = 0,
    EVICT_FIRST: int = 1,
) -> torch.Tensor:
    """Scaled weights in registers: one set of sums for all groups, tiles of 256 columns."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if y.numel() == 0 or K == 0:
        return y
    pieces, ready = pieces_for(M, K, packed, scales, zeros, prepared)
    a = operand(a)
    BLOCK_M = BLOCK_M or (64 if M <= 64 else 128)
    BLOCK_N = WARPGROUPS * 2 * PIECE_N
    stage_bytes = BLOCK_M * 2 * GROUP + WARPGROUPS * 2 * PIECE_BYTES
    STAGES = STAGES or min(6, (SHARED_BYTES - ALIGNMENT) // stage_bytes)
    units, groups = units_of(M, N, K, BLOCK_M, BLOCK_N), scales.shape[1]
    blocks = even_blocks(ready.numel() // READY_FLAGS, units, groups)
    parts = torch.empty((blocks, BLOCK_M, BLOCK_N), dtype=torch.float32, device=a.device)
    tile = f"{CTYPES[a.dtype]}, {BLOCK_M}, {WARPGROUPS}, {STAGES}"
    run = kernel(OP, f"w4a16_matmul_wide_kernel<{tile}>", a.device)
    pointers = [x.data_ptr() for x in (pieces, y, parts, ready)]
    sizes = [np.int64(value) for value in (M, N, K)]
    once = np.int32(EVICT_FIRST and M <= BLOCK_M)
    shared_bytes = ring_bytes(STAGES, stage_bytes, 1)
    a_map = matrix_map(a, BLOCK_M)
    run((blocks,), ((WARPGROUPS + 1) * 128,), (a_map, *pointers, *sizes, once), shared_mem=shared_bytes)
    return y
