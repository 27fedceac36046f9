"""transpose in plain PyTorch.

x[M,N] -> y[N,M]

    eager    the library call: PyTorch's generic kernel that copies between any two dimension orders
    compile  the same expression through torch.compile, which generates a Triton kernel for it

There is no naive variant: ``x.t()`` is a view, and making it contiguous is the copy.
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_same
from compare.registry import implementation


def _transposed(x: torch.Tensor) -> torch.Tensor:
    # Not .contiguous(): it returns a view where x is already transposed, and the output must be fresh.
    return x.t().clone(memory_format=torch.contiguous_format)


@implementation("transpose", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_same("transpose", 2, x=x)
    return _transposed(x)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_transposed, dynamic=False, fullgraph=True)


@implementation("transpose", "torch.compile", level="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_same("transpose", 2, x=x)
    return _compiled()(x)
