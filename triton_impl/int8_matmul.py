"""int8_matmul in Triton: ``a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]``, with exact sums.

Variants, slow to fast, with the kernels of ``triton_impl/scaled_matmul.py``; in CUDA, ``persistent`` has the
same name:

* ``tiled``: one program per tile of c, in grouped order; ``tl.dot`` of int8: tensor cores
* ``persistent``: persistent kernel, one program per multiprocessor, round-robin tile scheduling; TMA loads
  and stores
* ``gluon``: as persistent in Gluon, Triton's lower-level language: explicit warp specialization and mbarriers
"""

from __future__ import annotations

import torch

from compare.registry import implementation
from triton_impl import scaled_matmul

OP = "int8_matmul"


@implementation(OP, "triton.tiled", level="tensor_core", requires="sm_80", accumulator="int32")
def tiled(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return scaled_matmul.tiled(OP, a, b, scale_a, scale_b)


@implementation(
    OP,
    "triton.persistent",
    level="hopper",
    requires="sm_90",
    accumulator="int32",
)
def persistent(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    return scaled_matmul.persistent(OP, a, b, scale_a, scale_b)


@implementation(OP, "triton.gluon", level="hopper", requires="sm_90a", accumulator="int32")
def in_gluon(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return scaled_matmul.in_gluon(OP, a, b, scale_a, scale_b)
