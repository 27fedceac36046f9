"""batched_matmul in plain PyTorch.

a[B,N,N], b[B,N,N] -> c[B,N,N]

    naive    elementary operations: materializes all B * N^3 products, then sums them
    eager    the library call: cuBLAS's batched kernels
    compile  torch.compile with max-autotune, which times cuBLAS against its own Triton kernels
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_batched_squares
from compare.registry import implementation
from torch_impl.matmul import MOST_PRODUCTS, on_terms


@implementation("batched_matmul", "torch.naive", level="naive")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_batched_squares("batched_matmul", a, b)
    products = a.numel() * a.shape[1]
    if products > MOST_PRODUCTS:
        raise NotImplementedError(
            f"B*N*N*N={products}: all products are in memory, at most {MOST_PRODUCTS}; torch.eager takes any"
        )
    return (a.float()[:, :, :, None] * b.float()[:, None, :, :]).sum(dim=2).to(a.dtype)


@implementation("batched_matmul", "torch.eager", level="vendor")
def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_batched_squares("batched_matmul", a, b)
    on_terms(tf32=False)
    return torch.bmm(a, b)


@functools.cache
def _compiled(on: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    # No CUDA graphs: they would return the same output memory from every call. On a CPU nothing is timed, and
    # max-autotune would compile and time C++ kernels for most of a minute per shape.
    mode = "max-autotune-no-cudagraphs" if on == "cuda" else "default"
    return torch.compile(torch.bmm, dynamic=False, fullgraph=True, mode=mode)


@implementation("batched_matmul", "torch.compile", level="vendor", untuned="torch.eager")
def compiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_batched_squares("batched_matmul", a, b)
    on_terms(tf32=False)
    return _compiled(a.device.type)(a, b)
