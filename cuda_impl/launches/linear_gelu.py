"""linear_gelu in CUDA: ``x[M,K], w[K,N], bias[N] -> y[M,N]``, with ``kernels/linear_gelu.cuh``."""

from __future__ import annotations

from compare.arguments import check_linear
from cuda_impl.buffers import Tensor
from cuda_impl.launch import HALVES, HOPPER, Kernel, Launch, Plan, ceil_div, int64, variant
from cuda_impl.launches.matmul import (
    LAYOUTS,
    SPLIT_K_TILES,
    Product,
    WarpTiles,
    by_split_k,
    by_tensor_cores,
    check_terms,
    product,
    template_arguments,
    tma_kernel,
    tma_store,
)
from cuda_impl.layouts import VECS, check_tensor_cores, packed, vector
from cuda_impl.tensor_maps import check_coordinates

OP = "linear_gelu"


def checked(x: Tensor, w: Tensor, bias: Tensor) -> Product:
    """The sizes, and an uninitialised y."""
    check_linear(OP, x, w, bias)
    check_tensor_cores(x)
    return product(x, w)


TENSOR_CORE = Kernel(
    "linear_gelu_tensor_core_kernel<{T}, {A_BY_ROWS}, {B_BY_ROWS}, {TILE}>",
    HALVES,
    **LAYOUTS,
    TILE=[WarpTiles()],
)


@variant(OP, "tensor_core", kernels=[TENSOR_CORE], level="tensor_core")
def tensor_core(x: Tensor, w: Tensor, bias: Tensor) -> Plan:
    """matmul's kernel with bias and GELU as its epilogue, in registers."""
    *_, K, y = checked(x, w, bias)
    check_terms(K)
    return by_tensor_cores(TENSOR_CORE, x, w, y, WarpTiles(), packed(bias))


UNFUSED = Kernel("linear_gelu_unfused_kernel<{T}, {VEC}, 256>", HALVES, VEC=VECS)


@variant(
    OP, "unfused", kernels=[UNFUSED, *tma_store.kernels], algorithm="matmul, then bias and GELU", **HOPPER
)
def unfused(x: Tensor, w: Tensor, bias: Tensor) -> Plan:
    """matmul's tma_store, then bias and GELU in a separate kernel."""
    M, N, *_ = checked(x, w, bias)
    matmul = tma_store.plan(x, w)
    y = matmul.result
    assert not isinstance(y, tuple)
    VEC = vector(x) if N % vector(x) == 0 else 1
    args = (packed(bias), y, *int64(M, N))
    epilogue = Launch(UNFUSED(x.dtype, VEC=VEC), ceil_div(M * N // VEC, 256), 256, args)
    return Plan(y, *matmul.launches, epilogue)


FUSED = tma_kernel("linear_gelu_fused_kernel", OP, TILE=[*map(template_arguments, SPLIT_K_TILES)])


@variant(
    OP, "fused", kernels=[FUSED, TENSOR_CORE], algorithm="matmul with bias and GELU in its epilogue", **HOPPER
)
def fused(x: Tensor, w: Tensor, bias: Tensor) -> Plan:
    """matmul's split_k with bias and GELU as its epilogue, in registers.

    Falls back to tensor_core where TMA cannot be used: rows of y that are not 16-byte aligned, or K = 0.
    """
    M, N, K, y = checked(x, w, bias)
    check_coordinates(M=M, N=N, K=K)
    if K == 0 or N % vector(x) != 0:
        return tensor_core.plan(x, w, bias)
    return by_split_k(FUSED, x, w, y, more=(packed(bias),))
