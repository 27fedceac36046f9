"""Task 2: the project's ``triton_impl/vector_add.py``."""

import torch

from compare.registry import implementation
from triton_impl.vector_add import blocked


@implementation("vector_add", "triton.mine", level="tiled")
def mine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return blocked(x, y)
