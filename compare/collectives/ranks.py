"""A rank: a process with one GPU, memory that the other ranks reach, and means to act as one with them.

Without GPUs the ranks share files, and check what a CPU runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric_memory

from compare import registry
from compare.collectives.memory import Layout, new_epochs
from compare.inputs import TORCH_DTYPES
from compare.model.op import Case, Implementation

COPY_BYTES = 1 << 28
"""Of the copy between GPUs that is measured."""


@dataclass(frozen=True)
class RankOrder:
    """What the ranks are to compare."""

    op: str
    cases: tuple[str, ...]
    only: tuple[str, ...]
    budget_s: float
    """Of the timing of a case."""
    seed: int
    on_gpu: bool


class Rank:
    """This process's rank.

    Args:
        rank: its number, and its GPU's.
        ranks: how many there are; their processes have met.
        store: a file whose name with a number behind is free for each rank.
        device: its GPU, or a CPU.
        order: what will be compared.
    """

    def __init__(self, rank: int, ranks: int, store: str, device: torch.device, order: RankOrder) -> None:
        self.rank, self.device, self.order = rank, device, order
        # On the CPU, beside all work of the GPUs.
        self._control = dist.new_group(backend="gloo") if order.on_gpu else dist.group.WORLD
        self.op = registry.get_op(order.op)
        cases = [Case.parse(case, self.op) for case in order.cases]
        x_bytes = max(case["N"] * TORCH_DTYPES[case.dtype].itemsize for case in cases)
        self.layout = Layout(ranks, max(x_bytes, COPY_BYTES if order.on_gpu else 1))
        self._of_ranks = self._shared(store)
        self.peers = self.layout.peers([each.data_ptr() for each in self._of_ranks], device)
        self.epochs = new_epochs(device)
        self.together()

    def _shared(self, store: str) -> list[torch.Tensor]:
        """The shared memory of each rank, as this process sees it; all zeros."""
        ranks, nbytes = range(self.layout.ranks), self.layout.nbytes
        if not self.order.on_gpu:
            files = [f"{store}.{r}" for r in ranks]
            with Path(files[self.rank]).open("ab") as own_file:  # a full disk is an error, and no SIGBUS
                os.posix_fallocate(own_file.fileno(), 0, nbytes)
            return [torch.from_file(file, shared=True, size=nbytes, dtype=torch.uint8) for file in files]
        own = symmetric_memory.empty(nbytes, dtype=torch.uint8, device=self.device).zero_()
        everyone = dist.group.WORLD
        assert everyone is not None, "the ranks have met"
        handle = symmetric_memory.rendezvous(own, everyone)
        return [own if r == self.rank else handle.get_buffer(r, (nbytes,), torch.uint8) for r in ranks]

    def together(self) -> None:
        """Wait for the GPU, then for all ranks."""
        if self.order.on_gpu:
            torch.cuda.synchronize()
        dist.barrier(group=self._control)

    def agreed(self, value: float) -> float:
        """The first rank's value."""
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0, group=self._control)
        return float(shared)

    def from_all(self, value: Any) -> list[Any]:
        """Every rank's value."""
        values: list[Any] = [None] * self.layout.ranks
        dist.all_gather_object(values, value, group=self._control)
        return values

    def memory_of(self, rank: int, dtype: torch.dtype, count: int) -> torch.Tensor:
        """The first elements in a rank's shared memory."""
        return self._of_ranks[rank][: count * dtype.itemsize].view(dtype)

    def x_of(self, case: Case) -> torch.Tensor:
        """This rank's x."""
        return self.memory_of(self.rank, TORCH_DTYPES[case.dtype], case["N"])

    def call_of(self, impl: Implementation, case: Case) -> Callable[[], torch.Tensor]:
        return partial(impl.run, self.x_of(case), self.peers, self.epochs, rank=self.rank)
