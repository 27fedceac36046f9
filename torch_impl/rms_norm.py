"""rms_norm in plain PyTorch.

x[M,N], weight[N] -> y[M,N]

    naive    elementary operations: one kernel per step, and each reads and writes all of x's size
    eager    the library call: one kernel, tuned by PyTorch's authors
    compile  the naive expression through torch.compile, which fuses it into one Triton kernel
"""

import functools
from collections.abc import Callable

import torch
from torch.nn.functional import rms_norm

from compare.arguments import check_norm
from compare.registry import implementation

EPS = 1e-5


def _primitives(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    # fp32 throughout, as the library call and every kernel here compute internally.
    wide = x.float()
    mean_square = wide.square().mean(dim=1, keepdim=True)
    return (wide * torch.rsqrt(mean_square + eps) * weight).to(x.dtype)


@implementation("rms_norm", "torch.naive", level="naive")
def naive(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    check_norm("rms_norm", x, weight=weight)
    return _primitives(x, weight, eps)


@implementation("rms_norm", "torch.eager", level="vendor")
def eager(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    check_norm("rms_norm", x, weight=weight)
    return rms_norm(x, weight.shape, weight, eps)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_primitives, dynamic=False, fullgraph=True)


@implementation("rms_norm", "torch.compile", level="vendor")
def compiled(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    check_norm("rms_norm", x, weight=weight)
    return _compiled()(x, weight, eps)
