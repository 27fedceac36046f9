"""matmul in plain PyTorch.

a[M,K], b[K,N] -> c[M,N]

    naive    elementary operations: materializes all M * K * N products, then sums them
    eager    the library call: cuBLAS, which chooses one of hundreds of kernels
    compile  torch.compile with max-autotune, which times cuBLAS against its own Triton kernels
    tf32     the library call for fp32 inputs on TF32 tensor cores: lower precision, faster
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_product
from compare.registry import implementation

MOST_PRODUCTS = 1 << 28  # 1 GB in fp32


def on_terms(*, tf32: bool) -> None:
    """Make cuBLAS accumulate in fp32 and multiply fp32 as TF32 or not, for this process from now on.

    By default split-K kernels may reduce fp16 and bf16 partial sums in reduced precision.  A flag is set only
    where it differs: setting one takes a microsecond, which would count as launch overhead.
    """
    flags = torch.backends.cuda.matmul
    if flags.allow_tf32 is not tf32:
        flags.allow_tf32 = tf32
    if flags.allow_fp16_reduced_precision_reduction:
        flags.allow_fp16_reduced_precision_reduction = False
    if flags.allow_bf16_reduced_precision_reduction:
        flags.allow_bf16_reduced_precision_reduction = False


@implementation("matmul", "torch.naive", level="naive")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_product("matmul", a, b)
    products = a.shape[0] * b.numel()
    if products > MOST_PRODUCTS:
        raise NotImplementedError(f"M*N*K={products}: all products are in memory, at most {MOST_PRODUCTS}")
    return (a.float()[:, :, None] * b.float()[None, :, :]).sum(dim=1).to(a.dtype)


@implementation("matmul", "torch.eager", level="vendor")
def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_product("matmul", a, b)
    on_terms(tf32=False)
    return torch.matmul(a, b)


@functools.cache
def _compiled() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    # No CUDA graphs: they would return the same output memory from every call.
    return torch.compile(torch.matmul, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")


@implementation("matmul", "torch.compile", level="vendor", untuned="torch.eager")
def compiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_product("matmul", a, b)
    on_terms(tf32=False)
    return _compiled()(a, b)


@implementation("matmul", "torch.tf32", level="vendor", accumulator="tf32")
def tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_product("matmul", a, b)
    if a.dtype is not torch.float32:
        raise NotImplementedError(f"{a.dtype}: TF32 is a way to multiply fp32")
    on_terms(tf32=True)
    try:
        return torch.matmul(a, b)
    finally:
        on_terms(tf32=False)
