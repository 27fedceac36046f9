"""fp8_matmul in CUDA: ``a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]``; ``kernels/scaled_matmul/``."""

from __future__ import annotations

import torch

from compare.device import multiprocessors
from cuda_impl.buffers import Tensor
from cuda_impl.launch import Kernel, Plan, variant
from cuda_impl.launches import scaled_matmul
from cuda_impl.launches.scaled_matmul import ARGUMENTS, BOOLS, PROMOTED_TILES, Product, by_tma


def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Product:
    return scaled_matmul.checked("fp8_matmul", torch.float8_e4m3fn, a, b, scale_a, scale_b)


WGMMA = Kernel("scaled_matmul_wgmma_kernel<float, 3>")


@variant(
    "fp8_matmul",
    "wgmma",
    kernels=[WGMMA],
    level="hopper",
    requires="sm_90a",
    accumulator="fp22",
    emulated=True,
)
def wgmma(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One tile per warpgroup, fetched by TMA."""
    return scaled_matmul.wgmma(WGMMA, product(a, b, scale_a, scale_b))


SPECIALIZED = Kernel("scaled_matmul_specialized_kernel<float, {TILE}>", TILE=ARGUMENTS)


@variant(
    "fp8_matmul",
    "specialized",
    kernels=[SPECIALIZED],
    level="hopper",
    requires="sm_90a",
    accumulator="fp22",
    emulated=True,
)
def specialized(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One producer warp, eight consumer warps."""
    return scaled_matmul.specialized(SPECIALIZED, product(a, b, scale_a, scale_b))


PERSISTENT = Kernel(
    "scaled_matmul_persistent_kernel<float, {TILE}, {ALIGNED}>", TILE=ARGUMENTS, ALIGNED=BOOLS
)


@variant(
    "fp8_matmul",
    "persistent",
    kernels=[PERSISTENT],
    level="hopper",
    requires="sm_90a",
    accumulator="fp22",
    emulated=True,
)
def persistent(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One block per multiprocessor, round-robin tile scheduling; TMA stores c."""
    return scaled_matmul.persistent(PERSISTENT, product(a, b, scale_a, scale_b))


MULTICAST = Kernel("scaled_matmul_multicast_kernel<float, {TILE}, {ALIGNED}>", TILE=ARGUMENTS, ALIGNED=BOOLS)


@variant(
    "fp8_matmul", "multicast", kernels=[MULTICAST], level="hopper", requires="sm_90a", accumulator="fp22"
)
def multicast(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """TMA multicast: two blocks share their loads of b."""
    return scaled_matmul.multicast(MULTICAST, product(a, b, scale_a, scale_b))


PROMOTED = Kernel("scaled_matmul_promoted_kernel<{TILE}, {ALIGNED}>", TILE=PROMOTED_TILES, ALIGNED=BOOLS)


@variant("fp8_matmul", "promoted", kernels=[PROMOTED], level="hopper", requires="sm_90a", emulated=True)
def promoted(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """Sums of 128 of K are added in fp32; the largest tile of which there is one per multiprocessor."""
    p = product(a, b, scale_a, scale_b)
    processors = multiprocessors(a.device)
    enough = (tile for tile in PROMOTED_TILES if tile.grid(p.M, p.N) >= processors)
    tile = next(enough, PROMOTED_TILES[-1])
    return by_tma(PROMOTED(TILE=tile, ALIGNED=p.aligned), p, tile, processors, stores=True)
