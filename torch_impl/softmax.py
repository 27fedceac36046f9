"""softmax in plain PyTorch.

x[M,N] -> y[M,N]

    naive    elementary operations: one kernel per step, and each reads its whole input from memory
    eager    the library call: one kernel, tuned by PyTorch's authors
    compile  the naive expression through torch.compile, which fuses it
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_same
from compare.registry import implementation


def _primitives(x: torch.Tensor) -> torch.Tensor:
    # fp32 throughout, as the library call and every kernel here compute internally.
    wide = x.float()
    if wide.shape[1] == 0:  # amax fails on an empty row
        return torch.empty_like(x)
    shifted = wide - wide.amax(dim=1, keepdim=True)
    numerator = shifted.exp()
    denominator = numerator.sum(dim=1, keepdim=True)
    return (numerator / denominator).to(x.dtype)


@implementation("softmax", "torch.naive", level="naive")
def naive(x: torch.Tensor) -> torch.Tensor:
    check_same("softmax", 2, x=x)
    return _primitives(x)


@implementation("softmax", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_same("softmax", 2, x=x)
    return torch.softmax(x, dim=1)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_primitives, dynamic=False, fullgraph=True)


@implementation("softmax", "torch.compile", level="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_same("softmax", 2, x=x)
    return _compiled()(x)
