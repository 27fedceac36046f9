"""rotary in plain PyTorch.

q[B,S,H,D], k[B,S,Hk,D], cos[S,D/2], sin[S,D/2] -> out[B,S,H+Hk,D]

    eager    the expression in most models' code, one kernel per operation: PyTorch has no call for it
    compile  the same through torch.compile, which fuses most of it: three kernels remain for 16-bit types
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_heads
from compare.registry import implementation


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    # In fp32 with one rounding at the end, as every kernel here computes internally.
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _primitives(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    cos, sin = cos.float()[:, None], sin.float()[:, None]  # broadcast over heads
    return torch.cat((_rotated(q, cos, sin), _rotated(k, cos, sin)), dim=2)


@implementation("rotary", "torch.eager", level="vendor")
def eager(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    check_heads("rotary", q, k, cos, sin)
    return _primitives(q, k, cos, sin)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_primitives, dynamic=False, fullgraph=True)


@implementation("rotary", "torch.compile", level="vendor")
def compiled(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    check_heads("rotary", q, k, cos, sin)
    return _compiled()(q, k, cos, sin)
