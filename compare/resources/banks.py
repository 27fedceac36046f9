"""Shared memory's banks: how often one access of a warp has to be served, by arithmetic on its addresses.

Shared memory has 32 banks, each 4 bytes wide, and a word lies in bank ``(address / 4) % 32``.  At a time a
bank serves one word, to any number of lanes.  An access of 8 bytes a lane is served by half warps, one of 16
bytes by quarters: 128 bytes at a time is what all banks hold together.
Source: CUDA C++ Programming Guide, "Shared Memory"; for wide accesses what Nsight Compute counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compare.resources.occupancy import WARP

BANKS = 32
BANK_BYTES = 4


@dataclass(frozen=True)
class Access:
    """One access of a warp to shared memory."""

    kind: str
    """``load`` or ``store``."""
    addresses: tuple[int, ...]
    """Of each lane that takes part, in bytes."""
    lane_bytes: int
    """What a lane moves: 1, 2, 4, 8 or 16; addresses are multiples of it."""

    def __post_init__(self) -> None:
        if self.lane_bytes not in (1, 2, 4, 8, 16):
            raise ValueError(f"an access of {self.lane_bytes} bytes a lane; it takes 1, 2, 4, 8 or 16")
        if not 0 < len(self.addresses) <= WARP:
            raise ValueError(f"an access of {len(self.addresses)} lanes; it takes 1 to {WARP}")
        wrong = [a for a in self.addresses if a < 0 or a % self.lane_bytes != 0]
        if wrong:
            raise ValueError(f"address {wrong[0]}; it takes multiples of {self.lane_bytes}")


SharedAccesses = Callable[[int], Mapping[str, tuple[Access, ...]]]
"""What a module of an op's launches may have under the name ``shared_accesses``: for elements of so many
bytes, how a warp of each variant accesses shared memory."""


def times_served(access: Access) -> int:
    """In how many turns the banks serve all lanes."""
    lanes = _lanes_at_a_time(access)
    addresses = access.addresses
    return sum(_turns(addresses[i : i + lanes], access.lane_bytes) for i in range(0, len(addresses), lanes))


def conflicts(access: Access) -> int:
    """How many turns more than if each bank were asked for one word at a time."""
    return times_served(access) - -(-len(access.addresses) // _lanes_at_a_time(access))


def _lanes_at_a_time(access: Access) -> int:
    return min(WARP, BANKS * BANK_BYTES // access.lane_bytes)


def _turns(addresses: tuple[int, ...], lane_bytes: int) -> int:
    words_of: dict[int, set[int]] = defaultdict(set)
    for address in addresses:
        first, last = address // BANK_BYTES, (address + lane_bytes - 1) // BANK_BYTES
        for word in range(first, last + 1):
            words_of[word % BANKS].add(word)
    return max(len(words) for words in words_of.values())
