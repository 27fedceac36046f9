"""fp8_block_matmul in CUDA: ``a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N]``, with the
kernels of ``kernels/fp8_block_matmul/``."""

from __future__ import annotations

from compare.arguments import check_block_product
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor
from cuda_impl.launch import Kernel, Plan, ceil_div, variant
from cuda_impl.launches.scaled_matmul import (
    BLOCK_K,
    BOOLS,
    PROMOTED_TILES,
    Product,
    Tile,
    by_tma,
    product,
    tile_for,
)


def checked(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Product:
    check_block_product("fp8_block_matmul", a, b, scale_a, scale_b)
    return product(a, b, scale_a, scale_b, ceil_div(a.shape[1], BLOCK_K))


SPECIALIZED = Kernel("fp8_block_matmul_specialized_kernel<{TILE}>", TILE=PROMOTED_TILES)


@variant(
    "fp8_block_matmul", "specialized", kernels=[SPECIALIZED], level="hopper", requires="sm_90a", emulated=True
)
def specialized(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """A producer and two consumer warpgroups; one block per tile."""
    p = checked(a, b, scale_a, scale_b)
    tile = tile_for(PROMOTED_TILES, p.M, p.N, multiprocessors(a.device))
    return by_tma(SPECIALIZED(TILE=tile), p, tile)


PERSISTENT = Kernel("fp8_block_matmul_persistent_kernel<{TILE}>", TILE=PROMOTED_TILES)


@variant(
    "fp8_block_matmul", "persistent", kernels=[PERSISTENT], level="hopper", requires="sm_90a", emulated=True
)
def persistent(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One block per multiprocessor; the producer prefetches the next tile."""
    p, processors = checked(a, b, scale_a, scale_b), multiprocessors(a.device)
    tile = tile_for(PROMOTED_TILES, p.M, p.N, processors)
    return by_tma(PERSISTENT(TILE=tile), p, tile, processors)


def chosen(p: Product, processors: int, BLOCK_N: int, WAVES: int) -> Tile:
    """The tile of these sizes: `tile_for`'s where one is 0."""
    if not (BLOCK_N and WAVES):
        return tile_for(PROMOTED_TILES, p.M, p.N, processors)
    return next((tile for tile in PROMOTED_TILES if tile[:2] == (BLOCK_N, WAVES)), Tile(BLOCK_N, WAVES, 4))


TUNABLE = {"BLOCK_N": (64, 128), "WAVES": (1, 2), "GROUP_M": (4, 8, 16)}
PREFETCHED = Kernel(
    "fp8_block_matmul_prefetched_kernel<{TILE}, {GROUP_M}, {ALIGNED}>",
    TILE=PROMOTED_TILES,
    GROUP_M=[8],
    ALIGNED=BOOLS,
)


@variant(
    "fp8_block_matmul",
    "prefetched",
    kernels=[PREFETCHED],
    level="hopper",
    requires="sm_90a",
    emulated=True,
    tunable=TUNABLE,
)
def prefetched(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    BLOCK_N: int = 0,
    WAVES: int = 0,
    GROUP_M: int = 8,
) -> Plan:
    """Scales are loaded four blocks of K ahead; TMA stores c."""
    p, processors = checked(a, b, scale_a, scale_b), multiprocessors(a.device)
    tile = chosen(p, processors, BLOCK_N, WAVES)
    run = PREFETCHED(TILE=tile, GROUP_M=GROUP_M, ALIGNED=p.aligned)
    return by_tma(run, p, tile, processors, stores=True)


MULTICAST = Kernel(
    "fp8_block_matmul_multicast_kernel<{TILE}, {GROUP_M}, {ALIGNED}>",
    TILE=PROMOTED_TILES,
    GROUP_M=[8],
    ALIGNED=BOOLS,
)


@variant(
    "fp8_block_matmul",
    "multicast",
    kernels=[MULTICAST],
    level="hopper",
    requires="sm_90a",
    tunable=TUNABLE,
)
def multicast(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    BLOCK_N: int = 0,
    WAVES: int = 0,
    GROUP_M: int = 8,
) -> Plan:
    """TMA multicast: the two blocks of a cluster share their loads of a."""
    p, processors = checked(a, b, scale_a, scale_b), multiprocessors(a.device)
    tile = chosen(p, processors, BLOCK_N, WAVES)
    run = MULTICAST(TILE=tile, GROUP_M=GROUP_M, ALIGNED=p.aligned)
    return by_tma(run, p, tile, processors // 2 * 2, stores=True, cluster=(1, 2))
