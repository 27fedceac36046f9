"""compact in plain PyTorch.

x[N] -> y[N]: the x[n] that are greater than 0, then NaN if there is room, then anything

    naive    the primitives: a running count says where each element goes
    eager    the library call: which asks the GPU how many there are, and waits for the answer
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
    before -= 1  # now the place of each that is kept
    # All others meet behind the last of these, as the NaN that ends them.
    return y.scatter_(0, torch.where(keep, before, count), torch.where(keep, x, math.nan))


@implementation("compact", "torch.naive", rung="naive")
def naive(x: torch.Tensor) -> torch.Tensor:
    check_same("compact", 1, x=x)
    return _primitives(x)


@implementation("compact", "torch.eager", rung="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_same("compact", 1, x=x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    # Given no elements of y, it takes as many as it needs of the memory behind them: no copy is needed.
    kept = torch.masked_select(x, x > 0, out=y[:0])
    y[kept.numel() : kept.numel() + 1] = math.nan
    return y


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # One specialised kernel a shape; past this many shapes torch.compile would give up.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_primitives, dynamic=False, fullgraph=True)


@implementation("compact", "torch.compile", rung="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_same("compact", 1, x=x)
    return _compiled()(x)
