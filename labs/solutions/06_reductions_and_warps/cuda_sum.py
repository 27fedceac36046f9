"""Task 2: `shuffle` of the project's ``cuda_impl/kernels/reduce_sum.cuh``."""

import torch

from compare.registry import implementation
from cuda_impl.launches.reduce_sum import shuffle


@implementation("reduce_sum", "cupy.mine", level="tiled")
def mine(x: torch.Tensor) -> torch.Tensor:
    return shuffle(x)
