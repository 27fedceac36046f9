"""batched_matmul in plain PyTorch.

a[B,N,N], b[B,N,N] -> c[B,N,N]

    naive    from primitives: all B * N^3 products in memory, then their sums
    eager    the library call: cuBLAS's batched kernels
    compile  torch.compile with max-autotune, which times cuBLAS against Triton kernels of its own
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_batched_squares
from compare.registry import implementation
from torch_impl.matmul import MOST_PRODUCTS, on_terms


@implementation("batched_matmul", "torch.naive", rung="naive")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_batched_squares("batched_matmul", a, b)
    products = a.numel() * a.shape[1]
    if products > MOST_PRODUCTS:
        raise NotImplementedError(
            f"B*N*N*N={products}: all products are in memory, at most {MOST_PRODUCTS}; torch.eager takes any"
        )
    return (a.float()[:, :, :, None] * b.float()[:, None, :, :]).sum(dim=2).to(a.dtype)


@implementation("batched_matmul", "torch.eager", rung="vendor")
def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_batched_squares("batched_matmul", a, b)
    on_terms(tf32=False)
    return torch.bmm(a, b)


@functools.cache
def _compiled(on: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    # One specialised kernel a shape; past this many shapes torch.compile would give up.
    torch._dynamo.config.recompile_limit = 256
    # Its CUDA graphs would give every call the same output memory. On a CPU, where nothing is timed, it would
    # compile and time a C++ kernel a shape for most of a minute.
    mode = "max-autotune-no-cudagraphs" if on == "cuda" else "default"
    return torch.compile(torch.bmm, dynamic=False, fullgraph=True, mode=mode)


@implementation("batched_matmul", "torch.compile", rung="vendor", untuned="torch.eager")
def compiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_batched_squares("batched_matmul", a, b)
    on_terms(tf32=False)
    return _compiled(a.device.type)(a, b)
