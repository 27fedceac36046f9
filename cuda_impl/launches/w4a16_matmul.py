"""w4a16_matmul in CUDA: ``a[M,K], packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> y[M,N]``.

With the kernels of ``kernels/w4a16_matmul/``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from compare.arguments import check_quantized_linear
from compare.device import multiprocessors
from cuda_impl import buffers
from cuda_impl.buffers import Tensor, empty
from cuda_impl.launch import HALVES, HOPPER, Kernel, Launch, Plan, Variant, ceil_div, int32, int64, variant
from cuda_impl.layouts import check_products, padded
from cuda_impl.tensor_maps import SWIZZLE_ALIGNMENT, check_coordinates, matrix_map

OP = "w4a16_matmul"
GROUP, NIBBLES = 128, 8
MOST_UNITS = 1 << 31


def checked(a: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> tuple[int, int, int, Tensor]:
    """M, N, K and an uninitialised y; zeros if there is nothing to add."""
    check_quantized_linear(OP, a, packed, scales, zeros)
    (M, K), N = a.shape, packed.shape[0]
    return M, N, K, (empty if K else buffers.zeros)((M, N), a.dtype, a.device)


NAIVE = Kernel("w4a16_matmul_naive_kernel<{T}, 256>", HALVES)


@variant(OP, "naive", kernels=[NAIVE], level="naive")
def naive(a: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> Plan:
    """One element per thread."""
    M, N, K, y = checked(a, packed, scales, zeros)
    check_products(M, N, K)
    if K == 0:
        return Plan(y)
    inputs, THREADS = (a, packed, scales, zeros), 256
    args = (*inputs, y, *int64(M, N, K, *(step for x in inputs for step in x.stride())))
    return Plan(y, Launch(NAIVE(a.dtype), ceil_div(M, THREADS // 32) * ceil_div(N, 32), THREADS, args))


def block_m(M: int) -> int:
    """The least tile that has all rows, up to 64."""
    return 16 if M <= 16 else 32 if M <= 32 else 64


TENSOR_CORE = Kernel(
    "w4a16_matmul_tensor_core_kernel<{T}, {BLOCK_M}, 64, 4, 4>", HALVES, BLOCK_M=(16, 32, 64)
)


@variant(OP, "tensor_core", kernels=[TENSOR_CORE], level="tensor_core", requires="sm_80")
def tensor_core(a: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> Plan:
    """One tile per block, on tensor cores."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if K == 0:
        return Plan(y)
    a, packed = padded(a), padded(packed)
    BLOCK_M, BLOCK_N, WARPS, STAGES = block_m(M), 64, 4, 4
    strides = a.stride(0), packed.stride(0), *scales.stride(), *zeros.stride()
    args = (a, packed, scales, zeros, y, *int64(M, N, K, *strides))
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    shared_bytes = STAGES * (BLOCK_M * 2 * GROUP + BLOCK_N * GROUP // 2)
    return Plan(y, Launch(TENSOR_CORE(a.dtype, BLOCK_M=BLOCK_M), blocks, WARPS * 32, args, shared_bytes))


# --------------------------------------------------------------------------- weights prepared offline

Prepared = tuple[Tensor, ...]
REPACK = Kernel("w4a16_matmul_repack_kernel<256>")


def repacking(
    run: Kernel, vectors: int, weights: Sequence[Tensor], outputs: Sequence[Tensor], flags: int
) -> Plan:
    """A thread per vector of the outputs; behind these, flags for each multiprocessor."""
    packed, scales, zeros = weights
    N, words = scales.shape[0], packed.shape[1]
    ready = buffers.zeros((multiprocessors(packed.device) * flags,), torch.int32, packed.device)
    strides = (*packed.stride(), *scales.stride(), *zeros.stride())
    args = (*weights, *outputs, *int64(N, words * NIBBLES, *strides))
    return Plan((*outputs, ready), Launch(run(), ceil_div(vectors, 256), 256, args))


@functools.partial(Variant, OP, kernels=[REPACK])
def repack(packed: Tensor, scales: Tensor, zeros: Tensor) -> Plan:
    """What `streamk` takes as prepared: weights in the order of mma operands, scales and zero points of
    neighbouring columns side by side, and a flag for each block, 0 between calls.

    Calls with the same tensors must not overlap, as their blocks share the flags.
    """
    N, groups = scales.shape
    matrices = ceil_div(N, 8)
    weights = empty((matrices, groups, 32, 4), torch.int32, packed.device)
    scale_words = empty((groups, matrices * 8), torch.int32, packed.device)
    vectors = matrices * groups * 32
    return repacking(REPACK, vectors, (packed, scales, zeros), (weights, scale_words), flags=1)


def prepared_by(
    repack: Variant, weights: Sequence[Tensor], prepared: Prepared | None
) -> tuple[Prepared, tuple[Launch, ...]]:
    """What was prepared, else buffers for it; and the launches that fill them.

    Raises:
        ValueError: what was prepared is of another size.
    """
    plan = repack.plan(*weights)
    assert isinstance(plan.result, tuple)
    if prepared is None:
        return plan.result, plan.launches
    if (shape := tuple(prepared[0].shape)) != plan.result[0].shape:
        raise ValueError(f"{OP}: prepared has shape {shape}; it takes what {repack.plan.__name__} returns")
    return prepared, ()


def units_of(M: int, N: int, K: int, BLOCK_M: int, BLOCK_N: int) -> int:
    """The groups of all tiles.

    Raises:
        NotImplementedError: too many to count.
    """
    units = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N) * ceil_div(K, GROUP)
    if units >= MOST_UNITS:
        raise NotImplementedError(f"M={M}, N={N}, K={K}: {units} groups in all tiles, at most {MOST_UNITS}")
    return units


def streamk_tile(BLOCK_M: int) -> tuple[int, int, int, int]:
    """BLOCK_M, BLOCK_N, WARPS and STAGES."""
    return BLOCK_M, 256, 8, 4 if BLOCK_M == 16 else 3


STREAMK = Kernel(
    "w4a16_matmul_streamk_kernel<{T}, {TILE}>",
    HALVES,
    TILE=[streamk_tile(BLOCK_M) for BLOCK_M in (16, 32, 64)],
)


@variant(OP, "streamk", kernels=[REPACK, STREAMK], level="tensor_core", requires="sm_80", prepare=repack)
def streamk(
    a: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, *, prepared: Prepared | None = None
) -> Plan:
    """Repacked weights; each block has an equal share of all tiles' groups."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if K == 0:
        return Plan(y)
    (weights, scale_words, ready), before = prepared_by(repack, (packed, scales, zeros), prepared)
    a = padded(a)
    BLOCK_M, BLOCK_N, WARPS, STAGES = TILE = streamk_tile(block_m(M))
    blocks = min(ready.numel(), units_of(M, N, K, BLOCK_M, BLOCK_N))
    parts = empty((blocks, BLOCK_M, BLOCK_N), torch.float32, a.device)
    args = (a, weights, scale_words, y, parts, ready, *int64(M, N, K, a.stride(0)))
    shared_bytes = STAGES * (BLOCK_M * 2 * GROUP + BLOCK_N * GROUP // 2 + BLOCK_N * 4)
    return Plan(y, *before, Launch(STREAMK(a.dtype, TILE=TILE), blocks, WARPS * 32, args, shared_bytes))


# --------------------------------------------------------------------------- Hopper's own units

PIECE_N = 64
PIECE_BYTES = PIECE_N * GROUP // 2 + PIECE_N * 4
"""Of 64 rows of a group's weights, and their scales and zero points."""
SHARED_BYTES = 226 * 1024
"""Of a multiprocessor, for the rings of its blocks."""
READY_FLAGS = 32
"""For each multiprocessor: of all warps of its blocks."""
REPACK_PIECES = Kernel("w4a16_matmul_repack_pieces_kernel<256>")


@functools.partial(Variant, OP, kernels=[REPACK_PIECES])
def repack_pieces(packed: Tensor, scales: Tensor, zeros: Tensor) -> Plan:
    """What `transposed` takes as prepared: pieces of a group of 64 rows in the order of wgmma operands, and a
    flag for each warp, 0 between calls.

    Calls with the same tensors must not overlap, as their blocks share the flags.
    """
    N, groups = scales.shape
    tiles = ceil_div(N, PIECE_N)
    pieces = empty((tiles, groups, PIECE_BYTES // 4), torch.int32, packed.device)
    vectors = tiles * groups * 256
    return repacking(REPACK_PIECES, vectors, (packed, scales, zeros), (pieces,), flags=READY_FLAGS)


def stage_bytes(BLOCK_M: int, BLOCK_N: int) -> int:
    return BLOCK_M * 2 * GROUP + BLOCK_N // PIECE_N * PIECE_BYTES


def most_stages(BLOCK_M: int, BLOCK_N: int, BLOCKS: int = 1) -> int:
    """As many as a multiprocessor with so many blocks has shared memory for."""
    return (SHARED_BYTES // BLOCKS - SWIZZLE_ALIGNMENT) // stage_bytes(BLOCK_M, BLOCK_N)


def ring_bytes(STAGES: int, BLOCK_M: int, BLOCK_N: int, BLOCKS: int = 1) -> int:
    """Shared memory of a block.

    Raises:
        NotImplementedError: a multiprocessor does not hold so many blocks of it.
    """
    ring, most = STAGES * stage_bytes(BLOCK_M, BLOCK_N) + SWIZZLE_ALIGNMENT, SHARED_BYTES // BLOCKS
    if ring > most:
        raise NotImplementedError(f"STAGES={STAGES}: {ring} bytes of shared memory, at most {most}")
    return ring


def transposed_tile(
    BLOCK_M: int, WARPGROUPS: int = 0, STAGES: int = 0, BLOCKS: int = 0
) -> tuple[int, int, int, int]:
    """BLOCK_M, WARPGROUPS, STAGES and BLOCKS; those of 0 are chosen."""
    WARPGROUPS = WARPGROUPS or 2
    BLOCKS = BLOCKS or (2 if BLOCK_M < 64 and WARPGROUPS <= 2 else 1)
    most = most_stages(BLOCK_M, WARPGROUPS * PIECE_N, BLOCKS)
    return BLOCK_M, WARPGROUPS, STAGES or min(6 if BLOCKS == 2 else 10, most), BLOCKS


ROWS = (8, 16, 32, 64, 128)
TRANSPOSED = Kernel(
    "w4a16_matmul_transposed_kernel<{T}, {TILE}>", HALVES, TILE=[transposed_tile(BLOCK_M) for BLOCK_M in ROWS]
)


@variant(
    OP,
    "transposed",
    kernels=[REPACK_PIECES, TRANSPOSED],
    prepare=repack_pieces,
    **HOPPER,
    tunable={
        "BLOCK_M": ROWS,
        "WARPGROUPS": (1, 2, 3, 4),
        "STAGES": (3, 4, 5, 6, 8, 9, 10),
        "BLOCKS": (1, 2),
        "EVICT_FIRST": (0, 1),
    },
)
def transposed(
    a: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor,
    *,
    prepared: Prepared | None = None,
    BLOCK_M: int = 0,
    WARPGROUPS: int = 0,
    STAGES: int = 0,
    BLOCKS: int = 0,
    EVICT_FIRST: int = 1,
) -> Plan:
    """wgmma with dequantized weights in registers; TMA fetches, each block an equal share of the groups."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if K == 0:
        return Plan(y)
    check_coordinates(M=M, K=K)
    (pieces, ready), before = prepared_by(repack_pieces, (packed, scales, zeros), prepared)
    BLOCK_M = BLOCK_M or next((rows for rows in ROWS if rows >= M), ROWS[-1])  # the least with all rows
    BLOCK_M, WARPGROUPS, STAGES, BLOCKS = TILE = transposed_tile(BLOCK_M, WARPGROUPS, STAGES, BLOCKS)
    BLOCK_N = WARPGROUPS * PIECE_N
    blocks = min(BLOCKS * (ready.numel() // READY_FLAGS), units_of(M, N, K, BLOCK_M, BLOCK_N))
    parts, once = empty((blocks, BLOCK_M, BLOCK_N), torch.float32, a.device), EVICT_FIRST and M <= BLOCK_M
    args = (matrix_map(padded(a), BLOCK_M), pieces, y, parts, ready, *int64(M, N, K), *int32(once))
    run, shared_bytes = TRANSPOSED(a.dtype, TILE=TILE), ring_bytes(STAGES, BLOCK_M, BLOCK_N, BLOCKS)
    return Plan(y, *before, Launch(run, blocks, (WARPGROUPS + 1) * 128, args, shared_bytes))


def even_blocks(processors: int, units: int, groups: int) -> int:
    """Blocks of a grid, one per multiprocessor: of a multiple of the tiles if few stay idle, as then fewer
    blocks share a tile."""
    tiles = max(1, units // groups)
    even = processors // tiles * tiles
    return min(even if even >= 0.95 * processors else processors, units)


def wide_tile(BLOCK_M: int, WARPGROUPS: int = 2, STAGES: int = 0) -> tuple[int, int, int]:
    """BLOCK_M, WARPGROUPS and STAGES, which are chosen if 0."""
    return BLOCK_M, WARPGROUPS, STAGES or min(6, most_stages(BLOCK_M, WARPGROUPS * 2 * PIECE_N))


WIDE = Kernel("w4a16_matmul_wide_kernel<{T}, {TILE}>", HALVES, TILE=[wide_tile(64), wide_tile(128)])


@variant(
    OP,
    "wide",
    kernels=[REPACK_PIECES, WIDE],
    prepare=repack_pieces,
    **HOPPER,
    tunable={"BLOCK_M": (64, 128), "WARPGROUPS": (1, 2), "STAGES": (2, 3, 4, 5, 6), "EVICT_FIRST": (0, 1)},
)
def wide(
    a: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor,
    *,
    prepared: Prepared | None = None,
    BLOCK_M: int = 0,
    WARPGROUPS: int = 2,
    STAGES: int = 0,
    EVICT_FIRST: int = 1,
) -> Plan:
    """Scaled weights in registers: one set of sums for all groups, tiles of 256 columns."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if K == 0:
        return Plan(y)
    check_coordinates(M=M, K=K)
    (pieces, ready), before = prepared_by(repack_pieces, (packed, scales, zeros), prepared)
    BLOCK_M, WARPGROUPS, STAGES = TILE = wide_tile(BLOCK_M or (64 if M <= 64 else 128), WARPGROUPS, STAGES)
    BLOCK_N = WARPGROUPS * 2 * PIECE_N
    units = units_of(M, N, K, BLOCK_M, BLOCK_N)
    blocks = even_blocks(ready.numel() // READY_FLAGS, units, scales.shape[1])
    parts, once = empty((blocks, BLOCK_M, BLOCK_N), torch.float32, a.device), EVICT_FIRST and M <= BLOCK_M
    args = (matrix_map(padded(a), BLOCK_M), pieces, y, parts, ready, *int64(M, N, K), *int32(once))
    run, shared_bytes = WIDE(a.dtype, TILE=TILE), ring_bytes(STAGES, BLOCK_M, BLOCK_N)
    return Plan(y, *before, Launch(run, blocks, (WARPGROUPS + 1) * 128, args, shared_bytes))
