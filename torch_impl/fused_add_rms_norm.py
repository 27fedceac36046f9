"""fused_add_rms_norm in plain PyTorch.

x[M,N], residual[M,N], weight[N] -> y[M,N], h[M,N]

    naive    elementary operations: one kernel per step, and each reads and writes all of x's size
    eager    an addition and the library call: two kernels, and the second reads h again
    compile  the naive expression through torch.compile, which fuses it into one Triton kernel
"""

import functools
from collections.abc import Callable

import torch
from torch.nn.functional import rms_norm

from compare.arguments import check_residual_norm
from compare.registry import implementation

OP, EPS = "fused_add_rms_norm", 1e-5
Outputs = tuple[torch.Tensor, torch.Tensor]


def _primitives(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Outputs:
    h = (x + residual).contiguous()
    # fp32 from the rounded sum on, as the library call and every kernel here compute internally.
    wide = h.float()
    mean_square = wide.square().mean(dim=1, keepdim=True)
    return (wide * torch.rsqrt(mean_square + eps) * weight).to(x.dtype), h


@implementation(OP, "torch.naive", level="naive")
def naive(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> Outputs:
    check_residual_norm(OP, x, residual, weight)
    return _primitives(x, residual, weight, eps)


@implementation(OP, "torch.eager", level="vendor")
def eager(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> Outputs:
    check_residual_norm(OP, x, residual, weight)
    h = (x + residual).contiguous()
    return rms_norm(h, weight.shape, weight, eps), h


@functools.cache
def _compiled() -> Callable[..., Outputs]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    # Without the option, a fused kernel would go on with the sum that is not rounded.
    options = {"emulate_precision_casts": True}
    return torch.compile(_primitives, dynamic=False, fullgraph=True, options=options)


@implementation(OP, "torch.compile", level="vendor")
def compiled(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> Outputs:
    check_residual_norm(OP, x, residual, weight)
    return _compiled()(x, residual, weight, eps)
