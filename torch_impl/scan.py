"""scan in plain PyTorch.

x[M,N] -> y[M,N], y[m, n] = x[m, 0] + ... + x[m, n], with sums in fp32

    naive    elementary operations: adds the row to itself, shifted by 1, 2, 4 ... columns
    eager    the library call: fp16 and bf16 are converted before and after, as cumsum of fp16 adds in fp16
    compile  the same call through torch.compile
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_same
from compare.registry import implementation


@implementation("scan", "torch.naive", level="naive")
def naive(x: torch.Tensor) -> torch.Tensor:
    check_same("scan", 2, x=x)
    y = x.to(torch.float32, memory_format=torch.contiguous_format)
    distance = 1
    while distance < x.shape[1]:
        # Source: Hillis and Steele, "Data parallel algorithms", 1986.
        y = torch.cat((y[:, :distance], y[:, distance:] + y[:, :-distance]), dim=1)
        distance *= 2
    return y.to(x.dtype, copy=True)


def _cumsum(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, dim=1, dtype=torch.float32).to(x.dtype)


@implementation("scan", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    check_same("scan", 2, x=x)
    return _cumsum(x)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_cumsum, dynamic=False, fullgraph=True)


@implementation("scan", "torch.compile", level="vendor")
def compiled(x: torch.Tensor) -> torch.Tensor:
    check_same("scan", 2, x=x)
    return _compiled()(x)
