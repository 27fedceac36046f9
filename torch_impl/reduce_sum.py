"""reduce_sum in plain PyTorch.

x[N] -> y[], in fp32

    tree     elementary operations: adds the second half to the first until one element is left
    eager    the library call: one kernel, tuned by PyTorch's authors
    compile  the same call through torch.compile, which generates Triton kernels for it
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_same
from compare.registry import implementation


@implementation("reduce_sum", "torch.tree", level="naive")
def tree(x: torch.Tensor) -> torch.Tensor:
    check_same("reduce_sum", 1, x=x)
    if x.numel() == 0:
        return x.new_zeros((), dtype=torch.float32)
    y = x
    while y.numel() > 1:
        half = (y.numel() + 1) // 2
        left, right = y[:half].float(), y[half:]
        y = torch.cat((left[: len(right)] + right, left[len(right) :]))
    return y[0].to(torch.float32, copy=True)


def _sum(x: torch.Tensor) -> torch.Tensor:
    return torch.sum(x, dtype=torch.float32)


@implementation("reduce_sum", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_same("reduce_sum", 1, x=x)
    return _sum(x)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_sum, dynamic=False, fullgraph=True)


@implementation("reduce_sum", "torch.compile", level="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_same("reduce_sum", 1, x=x)
    return _compiled()(x)
