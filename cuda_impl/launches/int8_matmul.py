"""int8_matmul in CUDA: ``a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]``, with the kernels of
``kernels/int8_matmul/`` and ``kernels/scaled_matmul/``."""

from __future__ import annotations

import torch

from cuda_impl.buffers import Tensor, copied
from cuda_impl.launch import HOPPER, Kernel, Launch, Plan, ceil_div, int64, variant
from cuda_impl.launches import scaled_matmul
from cuda_impl.launches.scaled_matmul import Product
from cuda_impl.layouts import check_products, padded

OP = "int8_matmul"


def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Product:
    return scaled_matmul.checked(OP, torch.int8, a, b, scale_a, scale_b)


NAIVE = Kernel("int8_matmul_naive_kernel<256>")


@variant(OP, "naive", kernels=[NAIVE], level="naive", accumulator="int32")
def naive(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One element per thread; dp4a."""
    p = product(a, b, scale_a, scale_b)
    check_products(p.M, p.N, p.K)
    a, b = padded(a), padded(b)
    args = (a, b, *p.scales, p.c, *int64(p.M, p.N, p.K, a.stride(0), b.stride(0)))
    return Plan(p.c, Launch(NAIVE(), ceil_div(p.M, 256 // 32) * ceil_div(p.N, 32), 256, args))


def whole_pairs(x: Tensor) -> Tensor:
    """``x`` if its rows are contiguous, 16-byte aligned and of whole pairs, else such a copy, with zeros
    behind an odd K."""
    K = x.size(1)
    return padded(x) if K % 2 == 0 else copied(x, (ceil_div(K, 16) * 16, 1), zeroed=True)


TENSOR_CORE = Kernel("int8_matmul_tensor_core_kernel<128, 128, 32, 2, 2, 4>")


@variant(OP, "tensor_core", kernels=[TENSOR_CORE], level="tensor_core", accumulator="int32")
def tensor_core(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One tile per warp, on tensor cores."""
    p = product(a, b, scale_a, scale_b)
    a, b = whole_pairs(a), whole_pairs(b)
    BLOCK_M, BLOCK_N, BLOCK_K, WARPS, STAGES = 128, 128, 32, 4, 4
    sizes = int64(p.M, p.N, ceil_div(p.K, 2), a.stride(0) // 2, b.stride(0) // 2)
    blocks = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N)
    shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * 2
    return Plan(p.c, Launch(TENSOR_CORE(), blocks, WARPS * 32, (a, b, *p.scales, p.c, *sizes), shared_bytes))


WGMMA, SPECIALIZED, PERSISTENT, MULTICAST = scaled_matmul.kernels_of("int")
INT8 = {**HOPPER, "accumulator": "int32"}


@variant(OP, "wgmma", kernels=[WGMMA], **INT8)
def wgmma(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One tile per warpgroup, fetched by TMA."""
    return scaled_matmul.wgmma(WGMMA, product(a, b, scale_a, scale_b))


@variant(OP, "specialized", kernels=[SPECIALIZED], **INT8)
def specialized(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One producer warp, eight consumer warps."""
    return scaled_matmul.specialized(SPECIALIZED, product(a, b, scale_a, scale_b))


@variant(OP, "persistent", kernels=[PERSISTENT], **INT8)
def persistent(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """One block per multiprocessor, round-robin tile scheduling; TMA stores c."""
    return scaled_matmul.persistent(PERSISTENT, product(a, b, scale_a, scale_b))


@variant(OP, "multicast", kernels=[MULTICAST], **INT8)
def multicast(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Plan:
    """TMA multicast: two blocks share their loads of b."""
    return scaled_matmul.multicast(MULTICAST, product(a, b, scale_a, scale_b))
