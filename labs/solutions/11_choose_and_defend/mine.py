"""The choice: `onepass` of the project's ``triton_impl/rms_norm.py``."""

import torch

from compare.registry import implementation
from triton_impl.rms_norm import onepass


@implementation("rms_norm", "triton.mine", level="tiled")
def mine(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return onepass(x, weight)
