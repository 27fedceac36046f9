"""Task 1: the project's ``triton_impl/vector_add.py``, with 8 elements per thread."""

import torch

from compare.registry import implementation
from triton_impl.vector_add import blocked


@implementation(
    "vector_add",
    "triton.mine",
    level="tiled",
    tunable={"BLOCK_SIZE": (128, 256, 512, 1024, 2048, 4096), "WARPS": (1, 4, 8)},
)
def mine(x: torch.Tensor, y: torch.Tensor, *, BLOCK_SIZE: int = 1024, WARPS: int = 4) -> torch.Tensor:
    return blocked(x, y, BLOCK_SIZE=BLOCK_SIZE, WARPS=WARPS)
