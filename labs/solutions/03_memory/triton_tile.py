"""Task 4: `vectorized` of the project's ``triton_impl/transpose.py``."""

import torch

from compare.registry import implementation
from triton_impl.transpose import vectorized


@implementation("transpose", "triton.mine", level="tiled")
def mine(x: torch.Tensor) -> torch.Tensor:
    return vectorized(x)
