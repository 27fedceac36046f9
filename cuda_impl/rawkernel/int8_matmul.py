"""int8_matmul through cupy: ``a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]``, with the kernels of
``kernels/int8_matmul/`` and ``kernels/scaled_matmul/``."""

from __future__ import annotations

import numpy as np
import torch

from compare.registry import implementation
from cuda_impl.loader import kernel
from cuda_impl.rawkernel import scaled_matmul
from cuda_impl.rawkernel.scaled_matmul import Product, ceil_div, operand

MOST_PRODUCTS = 1 << 37


def product(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> Product:
    return Product("int8_matmul", torch.int8, a, b, scale_a, scale_b)


@implementation("int8_matmul", "cupy.naive", level="naive", accumulator="int32")
def naive(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """One element per thread; dp4a."""
    p = product(a, b, scale_a, scale_b)
    products = p.M * p.N * p.K
    if products > MOST_PRODUCTS:
        raise NotImplementedError(f"M*N*K={products}: it would take seconds, at most {MOST_PRODUCTS}")
    if p.c.numel() == 0:
        return p.c
    THREADS = 256
    a, b = operand(a), operand(b)
    run = kernel("int8_matmul", f"int8_matmul_naive_kernel<{THREADS}>", a.device)
    blocks = ceil_div(p.M, THREADS // 32) * ceil_div(p.N, 32)
    sizes = [np.int64(value) for value in (p.M, p.N, p.K, a.stride(0), b.stride(0))]
    run((blocks,), (THREADS,), (a.data_ptr(), b.data_ptr(), *p.pointers(), *sizes))
    return p.c


@implementation("int8_matmul", "cupy.tensor_core", level="tensor_core", accumulator="int32")
def tensor_core(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """One tile per warp, on tensor cores."""
    p = product(a, b, scale_a, scale_b)
    if p.c.numel() == 0:
        return p.c
    a, b = operand(a), operand(b)
    BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES = 128, 128, 32, 2, 2, 4
    tile = f"{BLOCK_M}, {BLOCK_N}, {BLOCK_K}, {WARPS_M}, {WARPS_N}, {STAGES}"
    run = kernel("int8_matmul", f"int8_matmul_tensor_core_kernel<{tile}>", a.device)
    blocks = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N)
    pairs = ceil_div(p.K, 2), a.stride(0) // 2, b.stride(0) // 2
    sizes = [np.int64(value) for value in (p.M, p.N, *pairs)]
    shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * 2
    pointers = a.data_ptr(), b.data_ptr(), *p.pointers()
    run((blocks,), (WARPS_M * WARPS_N * 32,), (*pointers, *sizes), shared_mem=shared_bytes)
    return p.c


@implementation(
    "int8_matmul", "cupy.wgmma", level="hopper", requires="sm_90a", accumulator="int32", emulated=True
)
def wgmma(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """One tile per warpgroup, fetched by TMA."""
    return scaled_matmul.wgmma(product(a, b, scale_a, scale_b))


@implementation(
    "int8_matmul", "cupy.specialized", level="hopper", requires="sm_90a", accumulator="int32", emulated=True
)
def specialized(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """One producer warp, eight consumer warps."""
    return scaled_matmul.specialized(product(a, b, scale_a, scale_b))


@implementation(
    "int8_matmul",
    "cupy.persistent",
    level="hopper",
    requires="sm_90a",
    accumulator="int32",
    emulated=True,
)
def persistent(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """One block per multiprocessor, round-robin tile scheduling; TMA stores c."""
    return scaled_matmul.persistent(product(a, b, scale_a, scale_b))


@implementation("int8_matmul", "cupy.multicast", level="hopper", requires="sm_90a", accumulator="int32")
def multicast(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """TMA multicast: two blocks share their loads of b."""
    return scaled_matmul.multicast(product(a, b, scale_a, scale_b))
