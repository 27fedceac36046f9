"""Task 2: `online` of the project's ``triton_impl/softmax.py``."""

import torch

from compare.registry import implementation
from triton_impl.softmax import online


@implementation("softmax", "triton.mine", level="tiled")
def mine(x: torch.Tensor) -> torch.Tensor:
    return online(x)
