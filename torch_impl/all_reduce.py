"""all_reduce in plain PyTorch, x[N] on each rank -> y[N], the sum over ranks, on each.

    nccl      the library call: NCCL chooses algorithm and protocol by size; in place (on a CPU: Gloo)
    one_shot  PyTorch's own kernel over symmetric memory: every rank reads all ranks' x
    two_shot  the same, each rank adding up its part; in place

x is in symmetric memory, which `compare.collectives.ranks` has exchanged; NCCL would take any.
"""

import torch
import torch.distributed as dist

from compare.arguments import check_ranks
from compare.registry import implementation


@implementation("all_reduce", "torch.nccl", level="vendor", deterministic=False)
def nccl(x: torch.Tensor, peers: torch.Tensor, epochs: torch.Tensor, *, rank: int) -> torch.Tensor:
    check_ranks("all_reduce", x, peers, epochs)
    dist.all_reduce(x)
    return x


def _check(x: torch.Tensor, peers: torch.Tensor, epochs: torch.Tensor) -> None:
    check_ranks("all_reduce", x, peers, epochs)
    if x.nbytes % 4 or not x.nbytes:
        raise NotImplementedError(f"x has {x.nbytes} bytes; PyTorch's kernels take 4, 8, 12 ...")


@implementation("all_reduce", "torch.one_shot", level="vendor", without_gpu=False)
def one_shot(x: torch.Tensor, peers: torch.Tensor, epochs: torch.Tensor, *, rank: int) -> torch.Tensor:
    _check(x, peers, epochs)
    y: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce(x, "sum", dist.group.WORLD.group_name)
    return y


@implementation("all_reduce", "torch.two_shot", level="vendor", without_gpu=False)
def two_shot(x: torch.Tensor, peers: torch.Tensor, epochs: torch.Tensor, *, rank: int) -> torch.Tensor:
    _check(x, peers, epochs)
    torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", dist.group.WORLD.group_name)
    return x
