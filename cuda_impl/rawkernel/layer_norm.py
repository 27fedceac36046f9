"""layer_norm through cupy: ``x[M,N], weight[N], bias[N] -> y[M,N]``, with ``kernels/layer_norm.cuh``."""

from __future__ import annotations

import torch

from compare.registry import implementation
from cuda_impl.rawkernel import norm

EPS = 1e-5


@implementation("layer_norm", "cupy.online", level="tiled", algorithm="row read twice: moments, output")
def online(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """A block reads its row twice: any row length."""
    return norm.online("layer_norm", eps, x, weight=weight, bias=bias)


@implementation("layer_norm", "cupy.onepass", level="tiled")
def onepass(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The row stays in registers: up to 64 KB."""
    return norm.onepass("layer_norm", eps, x, weight=weight, bias=bias)


@implementation("layer_norm", "cupy.cluster", level="hopper", requires="sm_90")
def cluster(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The blocks of a cluster share rows: up to 512 KB each."""
    return norm.cluster("layer_norm", eps, x, weight=weight, bias=bias)
