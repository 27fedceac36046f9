"""fp8_block_matmul in CUDA: ``a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N]``, with the
kernels of ``kernels/fp8_block_matmul/``."""

from __future__ import annotations

from compare.arguments import check_block_product
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor
from cuda_impl.launch import HOPPER, Kernel, Plan, ceil_div, variant
from cuda_impl.launches.scaled_matmul import BLOCK_K, TILES, Product, by_tma, product, tile_for
from cuda_impl.layouts import BOOLS

OP = "fp8_block_matmul"


def checked(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Product:
    check_block_product(OP, a, b, scale_a, scale_b)
    return product(a, b, scale_a, scale_b, ceil_div(a.shape[1], BLOCK_K))


SPECIALIZED = Kernel("fp8_block_matmul_specialized_kernel<{TILE}>", TILE=TILES)


@variant(OP, "specialized", kernels=[SPECIALIZED], **HOPPER)
def specialized(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """A producer and two consumer warpgroups; one block per tile."""
    p = checked(a, b, scale_a, scale_b)
    tile = tile_for(p.M, p.N, multiprocessors(a.device))
    return by_tma(SPECIALIZED(TILE=tile), p, tile)


PERSISTENT = Kernel("fp8_block_matmul_persistent_kernel<{TILE}>", TILE=TILES)


@variant(OP, "persistent", kernels=[PERSISTENT], **HOPPER)
def persistent(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One block per multiprocessor; the producer prefetches the next tile."""
    p, processors = checked(a, b, scale_a, scale_b), multiprocessors(a.device)
    tile = tile_for(p.M, p.N, processors)
    return by_tma(PERSISTENT(TILE=tile), p, tile, processors)


def grouped_kernel(name: str, GROUP_M: int) -> Kernel:
    template = f"{OP}_{name}_kernel<{{TILE}}, {{GROUP_M}}, {{ALIGNED}}>"
    return Kernel(template, TILE=TILES, GROUP_M=[GROUP_M], ALIGNED=BOOLS)


def by_groups(run: Kernel, p: Product, blocks: int, BLOCK_N: int, GROUP_M: int, shares: bool) -> Plan:
    """Persistent, in grouped tile order; TMA stores c.  `tile_for` chooses a BLOCK_N of 0.

    ``shares``: two blocks share their loads of b, or of a if tiles are narrow.
    """
    fixed = (tile for tile in TILES if tile.BLOCK_N == BLOCK_N)
    tile = next(fixed, tile_for(p.M, p.N, multiprocessors(p.a.device)))
    cluster = (1, 1) if not shares else (2, 1) if tile.BLOCK_N > 64 else (1, 2)
    instance = run(TILE=tile, GROUP_M=GROUP_M, ALIGNED=p.aligned)
    return by_tma(instance, p, tile, blocks, stores=True, cluster=cluster)


TUNABLE = {"BLOCK_N": (64, 128, 256), "GROUP_M": (4, 8, 16)}
PREFETCHED = grouped_kernel("prefetched", 16)


@variant(OP, "prefetched", kernels=[PREFETCHED], tunable=TUNABLE, **HOPPER)
def prefetched(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    BLOCK_N: int = 0,
    GROUP_M: int = 16,
) -> Plan:
    """Scales are loaded four blocks of K ahead; TMA stores c."""
    p, blocks = checked(a, b, scale_a, scale_b), multiprocessors(a.device)
    return by_groups(PREFETCHED, p, blocks, BLOCK_N, GROUP_M, shares=False)


MULTICAST = grouped_kernel("multicast", 8)


@variant(OP, "multicast", kernels=[MULTICAST], tunable=TUNABLE, **HOPPER)
def multicast(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    BLOCK_N: int = 0,
    GROUP_M: int = 8,
) -> Plan:
    """TMA multicast: the two blocks of a cluster share their loads of b, or of a if tiles are narrow."""
    p, blocks = checked(a, b, scale_a, scale_b), multiprocessors(a.device) // 2 * 2
    return by_groups(MULTICAST, p, blocks, BLOCK_N, GROUP_M, shares=True)
