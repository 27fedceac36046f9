"""rms_norm_backward in plain PyTorch.

dy[M,N], x[M,N], weight[N], rstd[M] -> dx[M,N], dweight[N]

    naive    elementary operations: one kernel per step, and each reads and writes all of x's size
    eager    what autograd calls behind rms_norm on a GPU: one kernel for dx, two for dweight
    compile  the naive expression through torch.compile, which fuses it into Triton kernels
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_norm_gradients
from compare.registry import implementation

OP = "rms_norm_backward"
Gradients = tuple[torch.Tensor, torch.Tensor]


def _primitives(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Gradients:
    # fp32 throughout, as the library call and every kernel here compute internally.
    wide_dy, scale = dy.float(), rstd[:, None]
    x_hat, dx_hat = x.float() * scale, wide_dy * weight.float()
    dx = scale * (dx_hat - x_hat * (dx_hat * x_hat).mean(dim=1, keepdim=True))
    return dx.to(x.dtype).contiguous(), (wide_dy * x_hat).sum(dim=0).to(weight.dtype)


@implementation(OP, "torch.naive", level="naive")
def naive(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Gradients:
    check_norm_gradients(OP, dy, x, weight, rstd)
    return _primitives(dy, x, weight, rstd)


@implementation(OP, "torch.eager", level="vendor")
def eager(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Gradients:
    check_norm_gradients(OP, dy, x, weight, rstd)
    if not x.is_cuda or x.numel() == 0:  # a CPU has no such kernel: autograd composes it there
        return _primitives(dy, x, weight, rstd)
    fused = torch.ops.aten._fused_rms_norm_backward
    dx, dweight = fused(dy, x, list(weight.shape), rstd[:, None], weight, [True, True])
    return dx.contiguous(), dweight


@functools.cache
def _compiled() -> Callable[..., Gradients]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_primitives, dynamic=False, fullgraph=True)


@implementation(OP, "torch.compile", level="vendor")
def compiled(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Gradients:
    check_norm_gradients(OP, dy, x, weight, rstd)
    return _compiled()(dy, x, weight, rstd)
