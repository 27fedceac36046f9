"""linear_gelu in CUDA: ``x[M,K], w[K,N], bias[N] -> y[M,N]``, with ``kernels/linear_gelu.cuh``."""

from __future__ import annotations

from compare.arguments import check_linear
from cuda_impl.launch import HALVES, Kernel, Launch, Plan, Tensor, ceil_div, empty, int64, variant
from cuda_impl.launches.matmul import (
    LAYOUTS,
    SPLIT_K_TILES,
    Product,
    by_split_k,
    check_sizes,
    operands,
    tma_kernel,
    tma_store,
)
from cuda_impl.layouts import VECS, check_tensor_cores, packed, vector


def checked(x: Tensor, w: Tensor, bias: Tensor) -> Product:
    """The sizes, and an uninitialised y."""
    check_linear("linear_gelu", x, w, bias)
    check_tensor_cores(x)
    (M, K), N = x.shape, w.shape[1]
    return Product(M, N, K, empty((M, N), x.dtype, x.device))


TENSOR_CORE = Kernel(
    "linear_gelu_tensor_core_kernel<{T}, {A_BY_ROWS}, {B_BY_ROWS}, 128, 128, 32, 2, 2, 4, 2>",
    HALVES,
    **LAYOUTS,
)


@variant("linear_gelu", "tensor_core", kernels=[TENSOR_CORE], level="tensor_core")
def tensor_core(x: Tensor, w: Tensor, bias: Tensor) -> Plan:
    """matmul's kernel with bias and GELU as its epilogue, in registers."""
    M, N, K, y = checked(x, w, bias)
    of = operands(x, w)
    BLOCK_M, BLOCK_N, BLOCK_K, WARPS, STAGES = 128, 128, 32, 4, 4
    args = (of.a, of.b, packed(bias), y, *int64(M, N, K, of.lda, of.ldb))
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * 2
    return Plan(y, Launch(TENSOR_CORE(x.dtype, **of.layouts), blocks, WARPS * 32, args, shared_bytes))


UNFUSED = Kernel("linear_gelu_unfused_kernel<{T}, {VEC}, 256>", HALVES, VEC=VECS)


@variant(
    "linear_gelu",
    "unfused",
    kernels=[UNFUSED, *tma_store.kernels],
    level="hopper",
    algorithm="matmul, then bias and GELU",
    requires="sm_90a",
)
def unfused(x: Tensor, w: Tensor, bias: Tensor) -> Plan:
    """matmul's tma_store, then bias and GELU in a separate kernel."""
    M, N, *_ = checked(x, w, bias)
    product = tma_store.plan(x, w)
    y = product.result
    assert not isinstance(y, tuple)
    VEC = vector(x) if N % vector(x) == 0 else 1
    args = (packed(bias), y, *int64(M, N))
    epilogue = Launch(UNFUSED(x.dtype, VEC=VEC), ceil_div(M * N // VEC, 256), 256, args)
    return Plan(y, *product.launches, epilogue)


FUSED = tma_kernel("linear_gelu_fused_kernel", "linear_gelu", TILE=[tile[:5] for tile in SPLIT_K_TILES])


@variant(
    "linear_gelu",
    "fused",
    kernels=[FUSED, TENSOR_CORE],
    level="hopper",
    algorithm="matmul with bias and GELU in its epilogue",
    requires="sm_90a",
)
def fused(x: Tensor, w: Tensor, bias: Tensor) -> Plan:
    """matmul's split_k with bias and GELU as its epilogue, in registers.

    Falls back to tensor_core where TMA cannot be used: rows of y that are not 16-byte aligned, or K = 0.
    """
    M, N, K, y = checked(x, w, bias)
    check_sizes(M, N, K)
    if K == 0 or N % vector(x) != 0:
        return tensor_core.plan(x, w, bias)
    return by_split_k(FUSED, x, w, y, more=(packed(bias),))
