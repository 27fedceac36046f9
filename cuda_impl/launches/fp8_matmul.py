"""fp8_matmul in CUDA: ``a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]``; ``kernels/scaled_matmul/``."""

from __future__ import annotations

import torch

from compare.device import multiprocessors
from cuda_impl.buffers import Tensor
from cuda_impl.launch import HOPPER, Kernel, Plan, variant
from cuda_impl.launches import scaled_matmul
from cuda_impl.launches.scaled_matmul import TILES, Product, by_tma, tile_for
from cuda_impl.layouts import BOOLS

OP = "fp8_matmul"


def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Product:
    return scaled_matmul.checked(OP, torch.float8_e4m3fn, a, b, scale_a, scale_b)


WGMMA, SPECIALIZED, PERSISTENT, MULTICAST = scaled_matmul.kernels_of("float")
FP8 = {**HOPPER, "accumulator": "fp22"}


@variant(OP, "wgmma", kernels=[WGMMA], **FP8)
def wgmma(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One tile per warpgroup, fetched by TMA."""
    return scaled_matmul.wgmma(WGMMA, product(a, b, scale_a, scale_b))


@variant(OP, "specialized", kernels=[SPECIALIZED], **FP8)
def specialized(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One producer warp, eight consumer warps."""
    return scaled_matmul.specialized(SPECIALIZED, product(a, b, scale_a, scale_b))


@variant(OP, "persistent", kernels=[PERSISTENT], **FP8)
def persistent(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One block per multiprocessor, round-robin tile scheduling; TMA stores c."""
    return scaled_matmul.persistent(PERSISTENT, product(a, b, scale_a, scale_b))


@variant(OP, "multicast", kernels=[MULTICAST], **FP8)
def multicast(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """TMA multicast: two blocks share their loads of b."""
    return scaled_matmul.multicast(MULTICAST, product(a, b, scale_a, scale_b))


PROMOTED = Kernel("scaled_matmul_promoted_kernel<{TILE}, {ALIGNED}>", TILE=TILES, ALIGNED=BOOLS)


@variant(OP, "promoted", kernels=[PROMOTED], **HOPPER)
def promoted(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """Sums of 128 of K are added in fp32."""
    p, processors = product(a, b, scale_a, scale_b), multiprocessors(a.device)
    tile = tile_for(p.M, p.N, processors)
    return by_tma(PROMOTED(TILE=tile, ALIGNED=p.aligned), p, tile, processors, stores=True)
