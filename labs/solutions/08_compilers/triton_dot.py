"""Task 3: `tiled` of the project's ``triton_impl/matmul.py``."""

import torch

from compare.registry import implementation
from triton_impl.matmul import tiled


@implementation("matmul", "triton.mine", level="tensor_core")
def mine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return tiled(a, b)
