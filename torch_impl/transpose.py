"""transpose in plain PyTorch.

x[M,N] -> y[N,M]

    eager    the library call: one kernel, that which copies between any two orders of dimensions
    compile  the same expression through torch.compile, which writes a Triton kernel for it

There is no rung below: ``x.t()`` is a view, and whatever makes it dense is the copy.
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_same
from compare.registry import implementation


def _transposed(x: torch.Tensor) -> torch.Tensor:
    # Not .contiguous(), which gives back a view where x is transposed already: the output must be fresh.
    return x.t().clone(memory_format=torch.contiguous_format)


@implementation("transpose", "torch.eager", rung="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_same("transpose", 2, x=x)
    return _transposed(x)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # One specialised kernel a shape; past this many shapes torch.compile would give up.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_transposed, dynamic=False, fullgraph=True)


@implementation("transpose", "torch.compile", rung="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_same("transpose", 2, x=x)
    return _compiled()(x)
