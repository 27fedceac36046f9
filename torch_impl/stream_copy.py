"""stream_copy in plain PyTorch.

x[N] -> y[N]

    eager    the library call: for a dense vector no PyTorch kernel, but the driver's memcpy
    compile  the same expression through torch.compile, which generates a Triton kernel for it
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_same
from compare.registry import implementation


def _copied(x: torch.Tensor) -> torch.Tensor:
    # As .copy_() into an empty vector. Without the format an expanded x would stay expanded.
    return x.clone(memory_format=torch.contiguous_format)


@implementation("stream_copy", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_same("stream_copy", 1, x=x)
    return _copied(x)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_copied, dynamic=False, fullgraph=True)


@implementation("stream_copy", "torch.compile", level="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_same("stream_copy", 1, x=x)
    return _compiled()(x)
