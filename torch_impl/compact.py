"""compact in plain PyTorch.

x[N] -> y[N]: the x[n] greater than 0, then NaN if there is room; the rest is unspecified

    naive    elementary operations: a prefix sum gives each element's output index
    eager    the library call, masked_select: the host waits for the GPU to return the count
    compile  the naive expression through torch.compile
"""

import functools
import math
from collections.abc import Callable

import torch

from compare.arguments import check_same
from compare.registry import implementation


def _primitives(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel() == 0:
        return y
    keep = x > 0
    before = keep.cumsum(0)
    count = before[-1].clone()
    before -= 1  # now the output index of each kept element
    # All other elements write NaN to the same index, one past the last kept element.
    return y.scatter_(0, torch.where(keep, before, count), torch.where(keep, x, math.nan))


@implementation("compact", "torch.naive", level="naive")
def naive(x: torch.Tensor) -> torch.Tensor:
    check_same("compact", 1, x=x)
    return _primitives(x)


@implementation("compact", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_same("compact", 1, x=x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    # Given an empty slice of y, masked_select writes past it into y's memory: no copy is needed.
    kept = torch.masked_select(x, x > 0, out=y[:0])
    y[kept.numel() : kept.numel() + 1] = math.nan
    return y


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_primitives, dynamic=False, fullgraph=True)


@implementation("compact", "torch.compile", level="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_same("compact", 1, x=x)
    return _compiled()(x)
