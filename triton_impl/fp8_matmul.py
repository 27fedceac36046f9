"""fp8_matmul in Triton: ``a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]``, with sums in fp22.

Variants, slow to fast, with the kernels of ``triton_impl/scaled_matmul.py``; in CUDA, ``persistent`` has the
same name:

* ``tiled``: one program per tile of c, in grouped order; ``tl.dot`` of e4m3: tensor cores
* ``persistent``: persistent kernel, one program per multiprocessor, round-robin tile scheduling; TMA loads
  and stores
* ``gluon``: as persistent in Gluon, Triton's lower-level language: explicit warp specialization and mbarriers
"""

from __future__ import annotations

import torch

from compare.registry import implementation
from triton_impl import scaled_matmul

OP = "fp8_matmul"


@implementation(OP, "triton.tiled", level="tensor_core", requires="sm_89", accumulator="fp22")
def tiled(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return scaled_matmul.tiled(OP, a, b, scale_a, scale_b)


@implementation(
    OP,
    "triton.persistent",
    level="hopper",
    requires="sm_90",
    accumulator="fp22",
    tunable={
        "BLOCK_M": (64, 128),
        "BLOCK_N": (32, 64, 128, 256),
        "WARPS": (4, 8),
        "STAGES": (3, 4, 6, 8, 10),
    },
)
def persistent(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    BLOCK_M: int = 0,
    BLOCK_N: int = 0,
    WARPS: int = 0,
    STAGES: int = 0,
) -> torch.Tensor:
    sizes = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "WARPS": WARPS, "STAGES": STAGES}
    return scaled_matmul.persistent(OP, a, b, scale_a, scale_b, **sizes)


@implementation(OP, "triton.gluon", level="hopper", requires="sm_90a", accumulator="fp22")
def in_gluon(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return scaled_matmul.in_gluon(OP, a, b, scale_a, scale_b)
