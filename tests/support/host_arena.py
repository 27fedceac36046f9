"""An arena in the host's memory, for tests of its users."""

from __future__ import annotations

import torch


class HostArena:
    device = torch.device("cpu")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.bytes = torch.zeros(nbytes, dtype=torch.uint8)

    def part(self, start: int, nbytes: int) -> torch.Tensor:
        return torch.frombuffer(self.bytes.numpy(), dtype=torch.uint8, count=nbytes, offset=start)
