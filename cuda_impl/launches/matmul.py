"""matmul in CUDA: ``a[M,K], b[K,N] -> c[M,N]``, with the kernels of ``kernels/matmul/``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from compare.arguments import check_product
from compare.device import arch, capability, multiprocessors
from compare.tiles import Machine, Tile, fastest
from cuda_impl.buffers import Tensor, empty, zeros_like
from cuda_impl.launch import HALVES, HOPPER, Argument, Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.layouts import BOOLS, aligned, check_products, check_tensor_cores, padded
from cuda_impl.tensor_maps import SWIZZLE_ALIGNMENT, check_coordinates, matrix_map


class Product(NamedTuple):
    M: int
    N: int
    K: int
    c: Tensor


def product(a: Tensor, b: Tensor) -> Product:
    """The sizes, and an uninitialised c."""
    (M, K), N = a.shape, b.shape[1]
    return Product(M, N, K, empty((M, N), a.dtype, a.device))


def checked(a: Tensor, b: Tensor) -> Product:
    check_product("matmul", a, b)
    return product(a, b)


# --------------------------------------------------------------------------- any strides, element by element


def by_elements(run: Kernel, a: Tensor, b: Tensor, BLOCK_M: int, BLOCK_N: int, THREADS: int) -> Plan:
    """Tiles of BLOCK_M x BLOCK_N elements, for any strides."""
    M, N, K, c = checked(a, b)
    if THREADS >= BLOCK_M * BLOCK_N:  # an element per thread
        check_products(M, N, K)
    args = (a, b, c, *int64(M, N, K, *a.stride(), *b.stride()))
    return Plan(c, Launch(run(a.dtype), ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N), THREADS, args))


NAIVE = Kernel("matmul_naive_kernel<{T}, 256>")


@variant("matmul", "naive", kernels=[NAIVE], level="naive", algorithm="a dot product per element")
def naive(a: Tensor, b: Tensor) -> Plan:
    """One element per thread; a warp's threads on consecutive rows: uncoalesced."""
    return by_elements(NAIVE, a, b, 32, 8, 256)


COALESCED = Kernel("matmul_coalesced_kernel<{T}, 256>")


@variant("matmul", "coalesced", kernels=[COALESCED], level="naive")
def coalesced(a: Tensor, b: Tensor) -> Plan:
    """One element per thread; a warp's threads on consecutive columns: coalesced."""
    return by_elements(COALESCED, a, b, 8, 32, 256)


SHARED = Kernel("matmul_shared_kernel<{T}, 32>")


@variant("matmul", "shared", kernels=[SHARED], level="tiled")
def shared(a: Tensor, b: Tensor) -> Plan:
    """One tile per block, from tiles in shared memory."""
    return by_elements(SHARED, a, b, 32, 32, 1024)


BLOCKTILE = Kernel("matmul_blocktile_kernel<{T}, 128, 128, 16, 8, 8>")


@variant("matmul", "blocktile", kernels=[BLOCKTILE], level="tiled")
def blocktile(a: Tensor, b: Tensor) -> Plan:
    """A tile per thread, in registers."""
    return by_elements(BLOCKTILE, a, b, 128, 128, 128 * 128 // (8 * 8))


# --------------------------------------------------------------------------- 16-byte vectorized access


class Operands(NamedTuple):
    """Two matrices as `aligned` gives them."""

    a: Tensor
    A_BY_ROWS: bool
    lda: int
    b: Tensor
    B_BY_ROWS: bool
    ldb: int

    @property
    def layouts(self) -> dict[str, Any]:
        """Template arguments."""
        return {"A_BY_ROWS": self.A_BY_ROWS, "B_BY_ROWS": self.B_BY_ROWS}


def operands(a: Tensor, b: Tensor) -> Operands:
    return Operands(*aligned(a), *aligned(b))


LAYOUTS: dict[str, Any] = {"A_BY_ROWS": BOOLS, "B_BY_ROWS": BOOLS}
VECTORIZED = Kernel("matmul_vectorized_kernel<{T}, {A_BY_ROWS}, {B_BY_ROWS}, 128, 128, 16, 8, 8>", **LAYOUTS)


@variant("matmul", "vectorized", kernels=[VECTORIZED], level="tiled")
def vectorized(a: Tensor, b: Tensor) -> Plan:
    """A tile per thread, by accesses of 16 bytes."""
    M, N, K, c = checked(a, b)
    of = operands(a, b)
    args = (of.a, of.b, c, *int64(M, N, K, of.lda, of.ldb))
    run = VECTORIZED(a.dtype, **of.layouts)
    return Plan(c, Launch(run, ceil_div(M, 128) * ceil_div(N, 128), 128 * 128 // (8 * 8), args))


MOST_TERMS = (1 << 31) - 1


def check_terms(K: int) -> None:
    """Raise NotImplementedError where the terms left for a block's copies take more than 32 bits."""
    if K > MOST_TERMS:
        raise NotImplementedError(f"K={K}: at most {MOST_TERMS}, counted in 32 bits; torch.eager takes any")


def cp_async_kernel(variant: str, tile: str) -> Kernel:
    template = "<{A_BY_ROWS}, {B_BY_ROWS}, 128, " + tile + ", {STAGES}>"
    return Kernel(f"matmul_{variant}_kernel{template}", [torch.float32], **LAYOUTS, STAGES=(2, 3))


def with_cp_async(run: Kernel, a: Tensor, b: Tensor, BLOCK_N: int, THREAD_N: int) -> Plan:
    """Tiles prefetched by cp.async, BLOCK_N columns of c wide."""
    M, N, K, c = checked(a, b)
    if a.dtype is not torch.float32:
        raise NotImplementedError("16-bit elements: cp.async cannot transpose less than 4 bytes")
    check_terms(K)
    of = operands(a, b)
    BLOCK_M, BLOCK_K, THREAD_M = 128, 16, 8
    name = arch(a.device)
    STAGES = 2 if name is not None and capability(name) < 80 else 3  # sm_75: shared memory holds two
    args = (of.a, of.b, c, *int64(M, N, K, of.lda, of.ldb))
    blocks, threads = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N), BLOCK_M * BLOCK_N // (THREAD_M * THREAD_N)
    shared_bytes = STAGES * BLOCK_K * (BLOCK_M + 4 + BLOCK_N + 4) * 4
    return Plan(c, Launch(run(**of.layouts, STAGES=STAGES), blocks, threads, args, shared_bytes))


CP_ASYNC = cp_async_kernel("cp_async", "128, 16, 8, 8")


@variant("matmul", "cp_async", kernels=[CP_ASYNC], level="tiled")
def cp_async(a: Tensor, b: Tensor) -> Plan:
    """cp.async prefetches the next tiles."""
    return with_cp_async(CP_ASYNC, a, b, BLOCK_N=128, THREAD_N=8)


PIPELINED = cp_async_kernel("pipelined", "256, 16, 8, 16")


@variant("matmul", "pipelined", kernels=[PIPELINED], level="tiled")
def pipelined(a: Tensor, b: Tensor) -> Plan:
    """Shared memory is read one step ahead as well, by a thread with twice the columns."""
    return with_cp_async(PIPELINED, a, b, BLOCK_N=256, THREAD_N=16)


def warps_across(BLOCK_M: int, BLOCK_N: int, WARPS: int) -> int:
    """How many of a block's warps are side by side, so that a warp's share is about as high as wide."""
    across = (1 << i for i in range(WARPS.bit_length()))
    return min(across, key=lambda WARPS_N: abs(BLOCK_M * WARPS_N * WARPS_N - BLOCK_N * WARPS))


class WarpTiles(NamedTuple):
    """Of `by_tensor_cores`: template arguments."""

    BLOCK_M: int = 128
    BLOCK_N: int = 128
    BLOCK_K: int = 32
    WARPS_M: int = 2
    WARPS_N: int = 2
    STAGES: int = 4
    BLOCKS: int = 2
    """Per multiprocessor, by registers."""


def by_tensor_cores(run: Kernel, a: Tensor, b: Tensor, c: Tensor, TILE: WarpTiles, *more: Tensor) -> Plan:
    """One tile per warp, prefetched by cp.async; ``more``: arguments before c."""
    (M, K), N, of = a.shape, b.shape[1], operands(a, b)
    args = (of.a, of.b, *more, c, *int64(M, N, K, of.lda, of.ldb))
    blocks = ceil_div(M, TILE.BLOCK_M) * ceil_div(N, TILE.BLOCK_N)
    shared_bytes = TILE.STAGES * (TILE.BLOCK_M + TILE.BLOCK_N) * TILE.BLOCK_K * 2
    instance = run(a.dtype, **of.layouts, TILE=TILE)
    return Plan(c, Launch(instance, blocks, TILE.WARPS_M * TILE.WARPS_N * 32, args, shared_bytes))


TENSOR_CORE = Kernel(
    "matmul_tensor_core_kernel<{T}, {A_BY_ROWS}, {B_BY_ROWS}, {TILE}>", HALVES, **LAYOUTS, TILE=[WarpTiles()]
)


@variant(
    "matmul",
    "tensor_core",
    kernels=[TENSOR_CORE],
    level="tensor_core",
    tunable={
        "BLOCK_M": (64, 128, 256),
        "BLOCK_N": (32, 64, 128, 256),
        "BLOCK_K": (32, 64),
        "GROUP_M": (8,),
        "WARPS": (4, 8),
        "STAGES": (2, 3, 4, 5),
    },
    matches="triton.autotuned",
)
def tensor_core(
    a: Tensor,
    b: Tensor,
    *,
    BLOCK_M: int = 128,
    BLOCK_N: int = 128,
    BLOCK_K: int = 32,
    WARPS: int = 4,
    STAGES: int = 4,
) -> Plan:
    """One tile per warp, on tensor cores."""
    *_, K, c = checked(a, b)
    check_tensor_cores(a)
    check_terms(K)
    WARPS_N = warps_across(BLOCK_M, BLOCK_N, WARPS)
    BLOCKS = 2 if BLOCK_M * BLOCK_N <= 128 * 128 and WARPS == 4 else 1
    TILE = WarpTiles(BLOCK_M, BLOCK_N, BLOCK_K, WARPS // WARPS_N, WARPS_N, STAGES, BLOCKS)
    return by_tensor_cores(TENSOR_CORE, a, b, c, TILE)


# --------------------------------------------------------------------------- Hopper's own units

PIECE = 64
"""Tiles consist of pieces of 64 x 64 elements, whose rows of 128 bytes TMA swizzles."""
WARPGROUP = 128
CONSUMERS = 2
THREADS = (1 + CONSUMERS) * WARPGROUP


def checked_for_tma(a: Tensor, b: Tensor) -> Product:
    """As `checked`; c is 0 if there is nothing to add.

    Raises:
        NotImplementedError: tensor cores or TMA do not support these.
    """
    p = checked(a, b)
    check_tensor_cores(a)
    check_coordinates(M=p.M, N=p.N, K=p.K)
    return p if p.K else p._replace(c=zeros_like(p.c))


def maps_of(of: Operands, BLOCK_M: int, BLOCK_N: int, columns_of_b: int = 0) -> tuple[Argument, Argument]:
    """Tensor maps of operands with tiles of BLOCK_M and BLOCK_N by 64 along K.

    If b is by rows, boxes of it have 64 columns, or ``columns_of_b``.
    """
    columns = columns_of_b if of.B_BY_ROWS else 0
    rows_of_b = PIECE if of.B_BY_ROWS else BLOCK_N
    return (
        matrix_map(of.a, BLOCK_M if of.A_BY_ROWS else PIECE, by_rows=of.A_BY_ROWS, ld=of.lda),
        matrix_map(of.b, rows_of_b, box_columns=columns, by_rows=of.B_BY_ROWS, ld=of.ldb),
    )


def tile_ring_bytes(BLOCK_M: int, BLOCK_N: int, STAGES: int) -> int:
    return STAGES * (BLOCK_M + BLOCK_N) * PIECE * 2 + SWIZZLE_ALIGNMENT


def tma_kernel(name: str, source: str = "matmul", **tile: Any) -> Kernel:
    """Of operands by TMA; ``tile``: the choices of its further template arguments."""
    fields = ", ".join(f"{{{field}}}" for field in ("T", "A_BY_ROWS", "B_BY_ROWS", *tile))
    return Kernel(f"{name}<{fields}>", HALVES, source, **LAYOUTS, **tile)


WGMMA = tma_kernel("matmul_wgmma_kernel", STAGES=[3])


@variant("matmul", "wgmma", kernels=[WGMMA], **HOPPER)
def wgmma(a: Tensor, b: Tensor) -> Plan:
    """One tile per warpgroup, fetched by TMA."""
    M, N, K, c = checked_for_tma(a, b)
    if K == 0:
        return Plan(c)
    of = operands(a, b)
    BLOCK_M, BLOCK_N, STAGES = 128, 128, 3
    args = (*maps_of(of, BLOCK_M, BLOCK_N), c, *int32(M, N, K))
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES)
    run = WGMMA(a.dtype, **of.layouts, STAGES=STAGES)
    return Plan(c, Launch(run, blocks, WARPGROUP, args, shared_bytes))


def by_producer(
    run: Kernel,
    a: Tensor,
    b: Tensor,
    *,
    persistent: bool,
    CLUSTER: int = 1,
    BLOCK_N: int = 256,
    STAGES: int = 4,
) -> Plan:
    """One producer and two consumer warpgroups per block; a block has one tile, or several if ``persistent``.

    Args:
        run: the kernel.
        a: the left operand.
        b: the right operand.
        persistent: one block per multiprocessor, else one per tile.
        CLUSTER: blocks in one column of tiles, which share a tile of b.
        BLOCK_N: columns of a tile.
        STAGES: pipeline stages, each with a tile of a and of b.
    """
    M, N, K, c = checked_for_tma(a, b)
    if K == 0:
        return Plan(c)
    of = operands(a, b)
    BLOCK_M = CONSUMERS * PIECE
    args = (*maps_of(of, BLOCK_M, BLOCK_N // CLUSTER), c, *int32(M, N, K))
    blocks = CLUSTER * ceil_div(M, CLUSTER * BLOCK_M) * ceil_div(N, BLOCK_N)
    if persistent:
        blocks = min(blocks, multiprocessors(a.device) // CLUSTER * CLUSTER)
    instance = run(a.dtype, **of.layouts, BLOCK_N=BLOCK_N, STAGES=STAGES)
    shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES)
    return Plan(c, Launch(instance, blocks, THREADS, args, shared_bytes, CLUSTER))


SPECIALIZED = tma_kernel("matmul_specialized_kernel", BLOCK_N=[256], STAGES=[4])


SIZES = {
    "BLOCK_M": (128,),
    "BLOCK_N": (64, 128, 192, 256),
    "BLOCK_K": (64,),
    "WARPS": (8,),
    "STAGES": (2, 3, 4),
}


@variant("matmul", "specialized", kernels=[SPECIALIZED], tunable=SIZES, matches="triton.autotuned", **HOPPER)
def specialized(a: Tensor, b: Tensor, *, BLOCK_N: int = 256, STAGES: int = 4) -> Plan:
    """One producer warp, eight consumer warps."""
    return by_producer(SPECIALIZED, a, b, persistent=False, BLOCK_N=BLOCK_N, STAGES=STAGES)


PERSISTENT = tma_kernel("matmul_persistent_kernel", BLOCK_N=[256], STAGES=[4])


@variant("matmul", "persistent", kernels=[PERSISTENT], algorithm="tiles by persistent blocks", **HOPPER)
def persistent(a: Tensor, b: Tensor) -> Plan:
    """Persistent: one block per multiprocessor, round-robin tile scheduling."""
    return by_producer(PERSISTENT, a, b, persistent=True)


MULTICAST = tma_kernel("matmul_multicast_kernel", BLOCK_N=[256], STAGES=[4])


@variant("matmul", "multicast", kernels=[MULTICAST], **HOPPER)
def multicast(a: Tensor, b: Tensor) -> Plan:
    """TMA multicast: two blocks share their loads of b."""
    return by_producer(MULTICAST, a, b, persistent=True, CLUSTER=2)


TILES = ((256, 4), (192, 4), (64, 8))
"""The choices of BLOCK_N and STAGES."""


def cluster_shape(BLOCK_N: int) -> tuple[int, int]:
    """A cluster's blocks along M and N: they share b if half a tile of it is whole pieces, else a."""
    return (2, 1) if BLOCK_N % (2 * PIECE) == 0 else (1, 2)


def tile_for(M: int, N: int, processors: int) -> tuple[int, int]:
    """BLOCK_N and STAGES of the tile with which the last multiprocessor finishes first.

    A tile costs its width plus about 96 columns for prologue and epilogue, times the number of tiles that a
    cluster processes in sequence.
    """
    clusters = max(processors // 2, 1)

    def columns(BLOCK_N: int) -> int:
        CLUSTER_M, CLUSTER_N = cluster_shape(BLOCK_N)
        tiles = ceil_div(M, CLUSTER_M * 128) * ceil_div(N, CLUSTER_N * BLOCK_N)
        return ceil_div(tiles, clusters) * (BLOCK_N + 96)

    return min(TILES, key=lambda tile: columns(tile[0]))


def by_tma_store(run: Kernel, a: Tensor, b: Tensor, c: Tensor, more: tuple[Argument, ...] = ()) -> Plan:
    """A kernel that works as ``tma_store``: clusters of two blocks, persistent, TMA stores.

    Args:
        run: the kernel.
        a: the left operand; K is not 0.
        b: the right operand.
        c: the output. Its rows are 16-byte aligned.
        more: arguments that the kernel takes after the maps.
    """
    (M, K), N = a.shape, b.shape[1]
    of = operands(a, b)
    BLOCK_M, CLUSTER = 128, 2
    processors = multiprocessors(a.device)
    BLOCK_N, STAGES = tile = tile_for(M, N, processors)
    CLUSTER_M, CLUSTER_N = cluster_shape(BLOCK_N)
    maps = (*maps_of(of, BLOCK_M // CLUSTER_N, BLOCK_N // CLUSTER_M), matrix_map(c, 16))
    tiles = ceil_div(M, CLUSTER_M * BLOCK_M) * ceil_div(N, CLUSTER_N * BLOCK_N)
    blocks = CLUSTER * min(tiles, max(processors // CLUSTER, 1))
    pieces = BLOCK_N // PIECE
    places = 2 if pieces % 2 == 0 else pieces  # buffers of 16 x 64 elements of c per consumer warp
    shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES) + 4 * CONSUMERS * places * 16 * PIECE * 2
    instance = run(a.dtype, **of.layouts, TILE=tile)
    args = (*maps, *more, *int32(M, N, K))
    return Plan(c, Launch(instance, blocks, THREADS, args, shared_bytes, CLUSTER, overlap=True))


TMA_STORE = tma_kernel("matmul_tma_store_kernel", TILE=TILES)


@variant("matmul", "tma_store", kernels=[TMA_STORE, MULTICAST], **HOPPER)
def tma_store(a: Tensor, b: Tensor) -> Plan:
    """TMA stores c.  Falls back to multicast if rows of c are not 16-byte aligned."""
    *_, N, K, c = checked_for_tma(a, b)
    if K == 0:
        return Plan(c)
    if N * a.element_size() % 16 != 0:
        return multicast.plan(a, b)
    return by_tma_store(TMA_STORE, a, b, c)


SPLIT_K_TILES = (
    Tile(16, 64, 13, 1, 1, step_us=0.089, tile_us=0.93),
    Tile(16, 64, 13, 1, 2, step_us=0.165, tile_us=0.78),
    Tile(16, 64, 13, 1, 4, step_us=0.141, tile_us=0.63),
    Tile(32, 64, 13, 1, 1, step_us=0.147, tile_us=0.43),
    Tile(32, 64, 13, 1, 2, step_us=0.138, tile_us=1.32),
    Tile(48, 64, 13, 1, 1, step_us=0.104, tile_us=0.26),
    Tile(64, 64, 13, 1, 4, step_us=0.148, tile_us=1.44),
    Tile(64, 64, 13, 4, 1, step_us=0.141, tile_us=0.86),
    Tile(64, 128, 8, 4, 2, step_us=0.193, tile_us=1.60),
    Tile(64, 128, 9, 1, 1, step_us=0.207, tile_us=0.23),
    Tile(64, 192, 5, 1, 2, step_us=0.327, tile_us=0.93),
    Tile(64, 192, 6, 1, 1, step_us=0.330, tile_us=0.44),
    Tile(64, 256, 5, 2, 1, step_us=0.336, tile_us=1.16),
    Tile(80, 64, 7, 1, 2, step_us=0.194, tile_us=1.73),
    Tile(96, 64, 8, 1, 1, step_us=0.137, tile_us=0.37),
    Tile(96, 64, 8, 1, 3, step_us=0.103, tile_us=2.33),
    Tile(112, 64, 8, 1, 1, step_us=0.147, tile_us=0.44),
    Tile(128, 64, 8, 1, 2, step_us=0.243, tile_us=0.96),
    Tile(128, 64, 8, 1, 4, step_us=0.109, tile_us=2.32),
    Tile(128, 64, 8, 2, 1, step_us=0.242, tile_us=0.62),
    Tile(128, 64, 8, 4, 1, step_us=0.210, tile_us=1.10),
    Tile(128, 96, 7, 1, 1, step_us=0.292, tile_us=0.60),
    Tile(128, 96, 7, 2, 1, step_us=0.301, tile_us=0.65),
    Tile(128, 128, 6, 1, 1, step_us=0.302, tile_us=0.66),
    Tile(128, 160, 5, 2, 1, step_us=0.423, tile_us=0.92),
    Tile(128, 192, 5, 1, 1, step_us=0.512, tile_us=1.03),
    Tile(128, 224, 4, 1, 1, step_us=0.562, tile_us=1.20),
    Tile(160, 64, 5, 2, 2, step_us=0.288, tile_us=1.34),
    Tile(160, 64, 6, 2, 1, step_us=0.255, tile_us=0.66),
    Tile(176, 128, 4, 2, 1, step_us=0.483, tile_us=0.74),
    Tile(192, 96, 5, 1, 1, step_us=0.296, tile_us=1.11),
    Tile(208, 128, 4, 1, 1, step_us=0.495, tile_us=1.46),
    Tile(224, 128, 4, 2, 1, step_us=0.574, tile_us=1.23),
    Tile(240, 128, 4, 2, 1, step_us=0.657, tile_us=1.41),
    Tile(256, 128, 4, 1, 1, step_us=0.597, tile_us=1.72),
    Tile(256, 128, 4, 2, 1, step_us=0.644, tile_us=1.76),
)
"""With their times on an H200, as those of `H200`: `tools/docs/tiles.py` fits them."""
H200 = Machine(LAUNCH_US=4.49, START_US=4.26, DRAM=4.46e6, L2=13.2e6, UNALIGNED=1.90, OVERLAP=4.64)


def template_arguments(tile: Tile) -> tuple[int, ...]:
    """A tile's template arguments: its shape, EXCHANGED, and how many of SPLIT blocks add shares of sums.

    A share is a multiple of 16 rows, or of 32 columns.
    """
    units = tile.BLOCK_M // 16 if tile.exchanged else tile.BLOCK_N // 32
    adders = next(blocks for blocks in range(tile.SPLIT, 0, -1) if units % blocks == 0)
    return (*tile[:5], tile.exchanged, adders)


def by_split_k(
    run: Kernel, a: Tensor, b: Tensor, c: Tensor, TILE: int = 0, more: tuple[Argument, ...] = ()
) -> Plan:
    """A kernel that works as ``split_k``.

    Args:
        run: the kernel.
        a: the left operand; K is not 0.
        b: the right operand.
        c: the output. Its rows are 16-byte aligned.
        TILE: number of the tile, from 1; 0: of the least predicted time.
        more: arguments that the kernel takes after the maps.
    """
    (M, K), N = a.shape, b.shape[1]
    of, processors = operands(a, b), multiprocessors(a.device)
    tile = SPLIT_K_TILES[TILE - 1]
    if TILE == 0:
        tile = fastest(H200, SPLIT_K_TILES, M, N, K, (of.lda, of.ldb), processors)
    BLOCK_M, BLOCK_N, STAGES, SHARING, SPLIT, EXCHANGED, ADDERS = constants = template_arguments(tile)
    if ceil_div(K, PIECE) < SPLIT:
        raise NotImplementedError(f"K={K}: SPLIT={SPLIT} needs at least {PIECE * (SPLIT - 1) + 1}")
    if EXCHANGED:
        left, right = BLOCK_N, BLOCK_M
        maps = (*maps_of(of, BLOCK_M // SHARING, BLOCK_N), matrix_map(c, 16))
        lines = right if of.A_BY_ROWS else ceil_div(right, PIECE) * PIECE
        buffers = left * min(right, 2 * PIECE)
    else:
        left, right = BLOCK_M, BLOCK_N
        narrow = 0 if right % PIECE == 0 else 32  # boxes of b by rows
        maps = (*maps_of(of, BLOCK_M, BLOCK_N // SHARING, narrow), matrix_map(c, 16, box_columns=32))
        lines, buffers = right, left * 64
    cluster, clusters = SHARING * SPLIT, tile.clusters(M, N)
    shared_bytes = tile_ring_bytes(left, lines, STAGES)
    if SPLIT == 1:  # persistent, with buffers for c
        clusters = min(clusters, max(processors // cluster, 1))
        shared_bytes += buffers * 2
    else:  # a share of the sums from each block
        shared_bytes += SPLIT * left * (right // ADDERS) * 4
    instance = run(a.dtype, **of.layouts, TILE=constants)
    threads = (1 + left // PIECE) * WARPGROUP
    args = (*maps, *more, *int32(M, N, K))
    return Plan(c, Launch(instance, clusters * cluster, threads, args, shared_bytes, cluster, overlap=True))


SPLIT_K = tma_kernel("matmul_split_k_kernel", TILE=[*map(template_arguments, SPLIT_K_TILES)])


@variant(
    "matmul",
    "split_k",
    kernels=[SPLIT_K, MULTICAST],
    algorithm="a tile chosen by predicted time, its terms split where tiles are few",
    **HOPPER,
    tunable={"TILE": range(len(SPLIT_K_TILES) + 1)},
)
def split_k(a: Tensor, b: Tensor, *, TILE: int = 0) -> Plan:
    """The tile of the least predicted time; a cluster may split K.  Falls back to multicast as tma_store."""
    *_, N, K, c = checked_for_tma(a, b)
    if K == 0:
        return Plan(c)
    if N * a.element_size() % 16 != 0:
        return multicast.plan(a, b)
    return by_split_k(SPLIT_K, a, b, c, TILE)


# --------------------------------------------------------------------------- few rows of a

SPLITS = (1, 2, 3, 4, 6, 8)
SMALL = 4, 1, 1
"""WARPS, STAGES and SPLIT: 40 KB of shared memory a block, which any GPU has; a large one holds several."""
SKINNY = Kernel(
    "matmul_skinny_kernel<{T}, {B_BY_ROWS}, {TILE}>",
    HALVES,
    B_BY_ROWS=BOOLS,
    TILE=[*((8, 2, split) for split in SPLITS), SMALL],
)


def split_of(tiles: int, most: int, device: torch.device) -> int:
    """How many blocks split K of skinny's ``tiles``: up to ``most``, as long as each has a multiprocessor.

    A cluster is within a group of 16 or 18 multiprocessors (GPC): clusters of three and more fill fewer.
    """
    processors = multiprocessors(device)
    room = {split: processors if split <= 2 else 3 * processors // 4 for split in SPLITS}
    return max(split for split in SPLITS if split == 1 or (split <= most and split * tiles <= room[split]))


@variant("matmul", "skinny", kernels=[SKINNY], level="tensor_core", tunable={"SPLIT": SPLITS})
def skinny(a: Tensor, b: Tensor, *, SPLIT: int = 0) -> Plan:
    """For few rows of a: b is read once per 16 of them, by warps with stages of their own."""
    M, N, K, c = checked(a, b)
    check_tensor_cores(a)
    rows = padded(a)
    of_b, B_BY_ROWS, ldb = aligned(b)
    tiles, name = ceil_div(M, 16) * ceil_div(N, 64), arch(a.device)
    if name is None or capability(name) == 90:
        tile = 8, 2, SPLIT or split_of(tiles, K // (8 * 64), a.device)  # at least a step for each warp
    elif SPLIT > 1:
        raise NotImplementedError(f"SPLIT={SPLIT}: clusters of blocks need sm_90; SPLIT=1 needs none")
    else:
        tile = SMALL
    WARPS, STAGES, cluster = tile
    args = (rows, of_b, c, *int64(M, N, K, rows.stride(0), ldb))
    run, blocks = SKINNY(a.dtype, B_BY_ROWS=B_BY_ROWS, TILE=tile), tiles * cluster
    shared_bytes = WARPS * STAGES * (16 + 64) * 64 * 2  # tiles of a and b
    return Plan(c, Launch(run, blocks, WARPS * 32, args, shared_bytes, cluster=cluster, overlap=True))
