"""A rank's memory that the others can read and write, and the addresses that its kernels get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compare.arguments import MESSAGES, RANK_BLOCKS

_ALIGNMENT = 1 << 16


@dataclass(frozen=True)
class Layout:
    """Where in a rank's shared memory things begin, in bytes: x first, then receive buffers, then flags."""

    ranks: int
    x_bytes: int

    @property
    def receive_buffers(self) -> int:
        return -(-self.x_bytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def flags(self) -> int:
        return self.receive_buffers + RANK_BLOCKS * 2 * self.ranks * MESSAGES * 8

    @property
    def nbytes(self) -> int:
        return self.flags + RANK_BLOCKS * self.ranks * 4

    def peers(self, addresses: Sequence[int], device: torch.device) -> torch.Tensor:
        """``peers[3, RANKS]``: addresses of all ranks' x, receive buffers and flags."""
        places = 0, self.receive_buffers, self.flags
        return torch.tensor([[each + place for each in addresses] for place in places], device=device)


def new_epochs(device: torch.device) -> torch.Tensor:
    """``epochs[2, RANK_BLOCKS]``: how often each block has waited for flags, and for messages."""
    return torch.zeros(2, RANK_BLOCKS, dtype=torch.int32, device=device)
