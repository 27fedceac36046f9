"""cross_entropy in plain PyTorch.

logits[M,V], targets[M] -> loss[M], in fp32

    naive    elementary operations: the exponentials of all logits are written to memory and read back
    eager    what F.cross_entropy calls: log_softmax, which writes as many elements as it reads, and nll_loss
    compile  the naive expression through torch.compile, which fuses it

For half-precision logits F.cross_entropy rounds the log-probabilities, and so the losses, to half precision.
Here log_softmax returns fp32.  An out-of-range target is an error of the library call: an IndexError on a
CPU, and on a GPU a device-side assertion, after which the process can no longer use the GPU.
"""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from compare.arguments import check_targets
from compare.registry import implementation

IGNORED = -100


def _primitives(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    V = logits.shape[1]
    if V == 0:  # amax fails on an empty row
        return torch.where(targets == IGNORED, 0.0, math.nan)
    wide = logits.float()
    row_max = wide.amax(dim=1)
    row_sum = (wide - row_max[:, None]).exp().sum(dim=1)
    inside = (targets >= 0) & (targets < V)
    picked = wide.gather(1, torch.where(inside, targets, 0)[:, None])[:, 0]
    loss = row_sum.log() - (picked - row_max)
    return torch.where(targets == IGNORED, 0.0, torch.where(inside, loss, math.nan))


@implementation("cross_entropy", "torch.naive", level="naive")
def naive(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    check_targets("cross_entropy", logits, targets)
    return _primitives(logits, targets)


@implementation("cross_entropy", "torch.eager", level="vendor")
def eager(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    check_targets("cross_entropy", logits, targets)
    logarithms = F.log_softmax(logits, dim=1, dtype=torch.float32)
    return F.nll_loss(logarithms, targets, reduction="none", ignore_index=IGNORED)


@functools.cache
def _compiled() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_primitives, dynamic=False, fullgraph=True)


@implementation("cross_entropy", "torch.compile", level="vendor")
def compiled(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    check_targets("cross_entropy", logits, targets)
    return _compiled()(logits, targets)
