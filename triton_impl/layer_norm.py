"""layer_norm over rows, in Triton: ``x[M,N], weight[N], bias[N] -> y[M,N]``.

Variants; ``cuda_impl/kernels/layer_norm.cuh`` has the first two under the same names:

* ``online``: a program reads its row twice, tile by tile: any row length
* ``onepass``: the row stays in registers between reduction and output, so it is read once: 32768 columns
* ``packed``: the row stays in registers as loaded, two 16-bit elements per register, in tiles: rows of 128 KB
* ``split``: several programs share rows and exchange partial sums through global memory: long rows, where
  CUDA has ``cluster``
* ``gluon``: as split in Gluon, Triton's lower-level language: asynchronous copies prefetch the next chunks
  into shared memory, where the weights stay
"""

from __future__ import annotations

import torch

from compare.registry import implementation
from triton_impl import norm

EPS = 1e-5


@implementation("layer_norm", "triton.online", rung="tiled")
def online(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """A program reads its row twice: any row length."""
    return norm.online("layer_norm", eps, x, weight=weight, bias=bias)


@implementation("layer_norm", "triton.onepass", rung="tiled")
def onepass(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The row stays in registers: up to 32768 columns."""
    return norm.onepass("layer_norm", eps, x, weight=weight, bias=bias)


@implementation("layer_norm", "triton.packed", rung="tiled")
def packed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The row stays in registers as loaded: up to 65536 columns of 16 bits, or 32768 of 32."""
    return norm.packed("layer_norm", eps, x, weight=weight, bias=bias)


@implementation("layer_norm", "triton.split", rung="tiled")
def split(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """Several programs share a row: up to as long as all resident programs can hold."""
    return norm.split("layer_norm", eps, x, weight=weight, bias=bias)


@implementation("layer_norm", "triton.gluon", rung="tiled", requires="sm_80", without_gpu=False)
def in_gluon(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """Several programs share a row and prefetch: up to as long as all resident programs can hold."""
    return norm.in_gluon("layer_norm", eps, x, weight=weight, bias=bias)
