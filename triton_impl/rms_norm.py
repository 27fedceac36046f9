"""rms_norm over rows, in Triton: ``x[M,N], weight[N] -> y[M,N]``.

The ladder; ``cuda_impl/kernels/rms_norm.cuh`` has the first two under the same names:

* ``online``: a program reads its row twice, tile by tile: any row length
* ``onepass``: the row waits in registers between reduction and output, so it is read once: 32768 columns
* ``packed``: it waits there as it came, two elements of 16 bits to a register, in tiles: rows of 128 KB
* ``split``: many programs share rows and tell each other their parts of the sums: long rows, where CUDA has
  the ``cluster``
* ``gluon``: as split in Gluon, Triton's own lower level: the next chunks are on their way into shared memory,
  where weights stay
"""

from __future__ import annotations

import torch

from compare.registry import implementation
from triton_impl import norm

EPS = 1e-5


@implementation("rms_norm", "triton.online", rung="tiled")
def online(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """A program reads its row twice: any row length."""
    return norm.online("rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "triton.onepass", rung="tiled")
def onepass(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The row waits in registers: up to 32768 columns."""
    return norm.onepass("rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "triton.packed", rung="tiled")
def packed(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The row waits in registers as it came: up to 65536 columns of 16 bits, or 32768 of 32."""
    return norm.packed("rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "triton.split", rung="tiled")
def split(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """Many programs share a row: rows as long as all programs together can hold."""
    return norm.split("rms_norm", eps, x, weight=weight)


@implementation("rms_norm", "triton.gluon", rung="tiled", requires="sm_80", without_gpu=False)
def in_gluon(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """Many programs share a row, and each fetches ahead: rows as long as all programs together can hold."""
    return norm.in_gluon("rms_norm", eps, x, weight=weight)
