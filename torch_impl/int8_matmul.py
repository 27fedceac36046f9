"""int8_matmul in plain PyTorch.

a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]

    naive    the matrices in fp64, whose sums are exact
    eager    the library call, cuBLAS: int32 sums in memory, scaled and rounded by further kernels
    compile  torch.compile: one kernel scales and rounds
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_scaled_product
from compare.registry import implementation


@implementation("int8_matmul", "torch.naive", level="naive", accumulator="int32")
def naive(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    check_scaled_product("int8_matmul", torch.int8, a, b, scale_a, scale_b)
    return scaled((a.double() @ b.double().t()).float(), scale_a, scale_b)


def scaled(sums: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return (sums * scale_a[:, None] * scale_b).to(torch.bfloat16)


def for_cublas(x: torch.Tensor) -> torch.Tensor:
    """``x`` if it is row-major and 16-byte aligned, else such a copy."""
    whole = x.is_contiguous() and x.data_ptr() % 16 == 0
    return x if whole else x.clone(memory_format=torch.contiguous_format)


def _checked(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> None:
    """Raise NotImplementedError for sizes that cuBLAS does not take, and what `check_scaled_product` does."""
    check_scaled_product("int8_matmul", torch.int8, a, b, scale_a, scale_b)
    (M, K), N = a.shape, b.shape[0]
    if a.device.type == "cpu" or M * N * K == 0:
        return
    if N % 8 or K % 8:
        raise NotImplementedError(f"N={N}, K={K}: cuBLAS takes multiples of 8 of int8")
    if M <= 16:
        raise NotImplementedError(f"M={M}: PyTorch's int8 product takes more than 16 rows")


def _multiplied(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    return scaled(torch._int_mm(a, b.t()), scale_a, scale_b)


@implementation("int8_matmul", "torch.eager", level="vendor", accumulator="int32")
def eager(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    _checked(a, b, scale_a, scale_b)
    (M, K), N = a.shape, b.shape[0]
    if M * N * K == 0:
        return torch.zeros((M, N), dtype=torch.bfloat16, device=a.device)
    return _multiplied(for_cublas(a), for_cublas(b), scale_a, scale_b)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    # No CUDA graphs: they would return the same output memory from every call.
    return torch.compile(_multiplied, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")


@implementation("int8_matmul", "torch.compile", level="vendor", accumulator="int32", untuned="torch.eager")
def compiled(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    _checked(a, b, scale_a, scale_b)
    (M, K), N = a.shape, b.shape[0]
    if M * N * K == 0:
        return torch.zeros((M, N), dtype=torch.bfloat16, device=a.device)
    return _compiled()(for_cublas(a), for_cublas(b), scale_a, scale_b)
