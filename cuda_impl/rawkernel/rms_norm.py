"""rms_norm through cupy: ``x[M,N], weight[N] -> y[M,N]``, with ``kernels/rms_norm.cuh``."""

from __future__ import annotations

import torch

from compare.registry import implementation
from cuda_impl.rawkernel import norm

EPS = 1e-5


@implementation("rms_norm", "cupy.online", level="tiled", algorithm="row read twice: sum of squares, output")
def online(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """A block reads its row twice: any row length."""
    return norm.online("rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "cupy.onepass", level="tiled")
def onepass(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The row stays in registers: up to 64 KB."""
    return norm.onepass("rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "cupy.cluster", level="hopper", requires="sm_90")
def cluster(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The blocks of a cluster share rows: up to 512 KB each."""
    return norm.cluster("rms_norm", eps, x, weight=weight)
