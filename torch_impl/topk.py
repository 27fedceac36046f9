"""topk in plain PyTorch.

x[M,N] -> values[M,K], indices[M,K]

    naive    sorts whole rows, stably, and keeps the first K columns
    eager    the library call, torch.topk
"""

import math

import torch

from compare.arguments import check_largest
from compare.registry import implementation

OP = "topk"
Largest = tuple[torch.Tensor, torch.Tensor]


@implementation(OP, "torch.naive", level="naive")
def naive(x: torch.Tensor, *, K: int) -> Largest:
    check_largest(OP, x, K)
    # On a GPU, torch.sort calls a NaN whose sign bit is set the least.
    x = x.masked_fill(x.isnan(), math.nan)
    values, indices = torch.sort(x, dim=1, descending=True, stable=True)
    return values[:, :K].contiguous(), indices[:, :K].contiguous()


@implementation(OP, "torch.eager", level="vendor")
def eager(x: torch.Tensor, *, K: int) -> Largest:
    check_largest(OP, x, K)
    values, indices = torch.topk(x, K, dim=1, sorted=True)
    return values.contiguous(), indices.contiguous()
