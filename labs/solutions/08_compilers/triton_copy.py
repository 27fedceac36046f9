"""Task 1: `vectorized` of the project's ``triton_impl/stream_copy.py``."""

import torch

from compare.registry import implementation
from triton_impl.stream_copy import vectorized


@implementation("stream_copy", "triton.mine", level="tiled")
def mine(x: torch.Tensor) -> torch.Tensor:
    return vectorized(x)
