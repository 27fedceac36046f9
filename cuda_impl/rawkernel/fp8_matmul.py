"""fp8_matmul through cupy: ``a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]``.

The kernels are those of ``kernels/scaled_matmul/``.
"""

from __future__ import annotations

import torch

from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.rawkernel import scaled_matmul
from cuda_impl.rawkernel.scaled_matmul import CONSUMERS, WARPGROUP_M, Product, ceil_div, cpp


def product(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> Product:
    return Product("fp8_matmul", torch.float8_e4m3fn, a, b, scale_a, scale_b)


@implementation(
    "fp8_matmul", "cupy.wgmma", level="hopper", requires="sm_90a", accumulator="fp22", emulated=True
)
def wgmma(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """One tile per warpgroup, fetched by TMA."""
    return scaled_matmul.wgmma(product(a, b, scale_a, scale_b))


@implementation(
    "fp8_matmul", "cupy.specialized", level="hopper", requires="sm_90a", accumulator="fp22", emulated=True
)
def specialized(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """One producer warp, eight consumer warps."""
    return scaled_matmul.specialized(product(a, b, scale_a, scale_b))


@implementation(
    "fp8_matmul",
    "cupy.persistent",
    level="hopper",
    requires="sm_90a",
    accumulator="fp22",
    emulated=True,
)
def persistent(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """One block per multiprocessor, round-robin tile scheduling; TMA stores c."""
    return scaled_matmul.persistent(product(a, b, scale_a, scale_b))


@implementation("fp8_matmul", "cupy.multicast", level="hopper", requires="sm_90a", accumulator="fp22")
def multicast(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """TMA multicast: two blocks share their loads of b."""
    return scaled_matmul.multicast(product(a, b, scale_a, scale_b))


PROMOTED_TILES = ((128, 2, 4), (128, 1, 6), (64, 1, 8))
"""BLOCK_N, WAVES and STAGES, from the largest tile."""


@implementation("fp8_matmul", "cupy.promoted", level="hopper", requires="sm_90a", emulated=True)
def promoted(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """Sums of 128 of K are added in fp32; the largest tile of which there is one per multiprocessor."""
    p = product(a, b, scale_a, scale_b)
    if p.done():
        return p.c
    processors = multiprocessors(a.device)

    def tiles_of(tile: tuple[int, int, int]) -> int:
        return ceil_div(p.M, CONSUMERS * tile[1] * WARPGROUP_M) * ceil_div(p.N, tile[0])

    enough = (tile for tile in PROMOTED_TILES if tiles_of(tile) >= processors)
    BLOCK_N, WAVES, STAGES = tile = next(enough, PROMOTED_TILES[-1])
    blocks = min(processors, tiles_of(tile))
    name = f"scaled_matmul_promoted_kernel<{BLOCK_N}, {WAVES}, {STAGES}, {cpp(p.aligned())}>"
    return p.launch(name, blocks, CONSUMERS * WAVES * WARPGROUP_M, BLOCK_N, STAGES, stores=True)
