"""Task 1: `atomic` of the project's ``triton_impl/reduce_sum.py``."""

import torch

from compare.registry import implementation
from triton_impl.reduce_sum import atomic


@implementation("reduce_sum", "triton.mine", level="tiled", deterministic=False)
def mine(x: torch.Tensor) -> torch.Tensor:
    return atomic(x)
