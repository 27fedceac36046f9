"""fp8_matmul in plain PyTorch.

a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]

    naive    the matrices in fp32
    eager    the library call: cuBLAS; sums of the tensor cores are added to fp32 ones after 128 terms
    fast     the same with fast accumulation: sums stay in the tensor cores
    compile  torch.compile of fast with max-autotune, which times cuBLAS against its own Triton kernels
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_scaled_product
from compare.registry import implementation
from torch_impl.int8_matmul import for_cublas, scaled


@implementation("fp8_matmul", "torch.naive", level="naive")
def naive(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    check_scaled_product("fp8_matmul", torch.float8_e4m3fn, a, b, scale_a, scale_b)
    return scaled(a.float() @ b.float().t(), scale_a, scale_b)


def _fast(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


def _precise(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=False)


def _multiplied(
    multiply: Callable[..., torch.Tensor],
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
) -> torch.Tensor:
    """``multiply`` of what cuBLAS takes, which refuses other sizes; on a CPU, the product in fp32."""
    check_scaled_product("fp8_matmul", torch.float8_e4m3fn, a, b, scale_a, scale_b)
    (M, K), N = a.shape, b.shape[0]
    if M * N * K == 0:
        return torch.zeros((M, N), dtype=torch.bfloat16, device=a.device)
    if a.device.type == "cpu":
        return scaled(a.float() @ b.float().t(), scale_a, scale_b)
    if N % 16 or K % 16:
        raise NotImplementedError(f"N={N}, K={K}: cuBLAS takes multiples of 16 of fp8")
    rows, columns = scale_a.contiguous()[:, None], scale_b.contiguous()[None, :]
    try:
        return multiply(for_cublas(a), for_cublas(b), rows, columns)
    except (RuntimeError, ValueError) as refusal:
        if torch.cuda.get_device_capability(a.device) >= (9, 0):
            raise
        raise NotImplementedError(str(refusal).partition("\n")[0]) from refusal


@implementation("fp8_matmul", "torch.eager", level="vendor", requires="sm_89")
def eager(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return _multiplied(_precise, a, b, scale_a, scale_b)


@implementation("fp8_matmul", "torch.fast", level="vendor", requires="sm_89", accumulator="fp22")
def fast(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return _multiplied(_fast, a, b, scale_a, scale_b)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    # No CUDA graphs: they would return the same output memory from every call.
    return torch.compile(_fast, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")


@implementation(
    "fp8_matmul",
    "torch.compile",
    level="vendor",
    requires="sm_89",
    accumulator="fp22",
    untuned="torch.fast",
)
def compiled(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return _multiplied(_compiled(), a, b, scale_a, scale_b)
