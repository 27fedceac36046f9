"""Task 1: `naive` of the project's ``cuda_impl/kernels/transpose.cuh``."""

import torch

from compare.registry import implementation
from cuda_impl.launches.transpose import naive


@implementation("transpose", "cupy.mine", level="naive")
def mine(x: torch.Tensor) -> torch.Tensor:
    return naive(x)
