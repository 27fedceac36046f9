"""vector_add in plain PyTorch.

x[N], y[N] -> z[N]

    eager    the library call: one kernel, tuned by PyTorch's authors
    compile  the same expression through torch.compile, which generates a Triton kernel for it
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_same
from compare.registry import implementation


@implementation("vector_add", "torch.eager", level="vendor")
def eager(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    check_same("vector_add", 1, x=x, y=y)
    return x + y


def _add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@functools.cache
def _compiled() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_add, dynamic=False, fullgraph=True)


@implementation("vector_add", "torch.compile", level="vendor")
def compiled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    check_same("vector_add", 1, x=x, y=y)
    return _compiled()(x, y)
