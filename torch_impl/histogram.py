"""histogram in plain PyTorch.

x[N] of uint8 -> y[256] of int64

    scatter   elementary operations: scatter_add of a one per element into its bin
    eager     the library call, ``bincount``; it first computes the maximum, and the host waits for it
    compile   scatter through torch.compile, which calls PyTorch's own scatter_add kernel
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_bytes
from compare.registry import implementation

BINS = 256


def _scatter(x: torch.Tensor) -> torch.Tensor:
    one = torch.ones(1, dtype=torch.int64, device=x.device)
    y = torch.zeros(BINS, dtype=torch.int64, device=x.device)
    return y.scatter_add_(0, x.long(), one.expand(x.numel()))


@implementation("histogram", "torch.scatter", level="naive")
def scatter(x: torch.Tensor) -> torch.Tensor:
    check_bytes("histogram", x)
    return _scatter(x)


@implementation("histogram", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_bytes("histogram", x)
    return torch.bincount(x, minlength=BINS)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_scatter, dynamic=False, fullgraph=True)


@implementation("histogram", "torch.compile", level="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_bytes("histogram", x)
    return _compiled()(x)
