"""Which tile of a matrix product is the fastest, from predicted times: shared by the ways.  Imports nothing.

``c[M,N] = a[M,K] @ b[K,N]`` in 16 bits.  A block multiplies its tile of c in steps of 64 terms, after a time
to start and before one to store; with more tiles than multiprocessors it does so several times (waves):

    step    = (tile.step_us, bytes that all running blocks load a step / L2), the norm of power 4
    compute = LAUNCH_US + waves * (steps * step + tile.tile_us)
    memory  = START_US + bytes of a, b and c / DRAM
    time    = (compute, memory), the norm of power OVERLAP: the two overlap, but not wholly

The constants of each way stand beside its kernels, for one card (NVIDIA H200): `tools/docs/tiles.py` fits
them to a run with ``--tune TILE`` on another card, and says how far the choice is from the best tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

BLOCK_K = 64
LINE = 64
"""Elements of a line of the L2, 128 bytes."""
SHARED_BYTES = 227 * 1024
"""Of a multiprocessor."""


class Tile(NamedTuple):
    """A tile of c, how it is computed, and its times."""

    BLOCK_M: int
    BLOCK_N: int
    STAGES: int
    SHARING: int
    """Blocks of a cluster that share their loads of a, or of b."""
    SPLIT: int
    """Blocks that divide the terms of a tile among them."""
    step_us: float
    tile_us: float
    """To start, to add the sums of a tile that is split, and to store."""

    @property
    def exchanged(self) -> bool:
        """Whether CUDA computes c^T = b^T a^T, with a shared by blocks side by side; else they share b."""
        return self.BLOCK_N % 64 == 0 and (self.BLOCK_M % 64 != 0 or self.BLOCK_M >= self.BLOCK_N)

    def clusters(self, M: int, N: int) -> int:
        """Of SHARING blocks, or that many times SPLIT."""
        tiles = math.ceil(M / self.BLOCK_M), math.ceil(N / self.BLOCK_N)
        return tiles[not self.exchanged] * math.ceil(tiles[self.exchanged] / self.SHARING)


class Machine(NamedTuple):
    """What does not depend on the tile."""

    LAUNCH_US: float
    START_US: float
    DRAM: float
    """Bytes per microsecond; those of the L2 next."""
    L2: float
    UNALIGNED: float
    """Cost of loads from rows that do not start on a line: they touch one more."""
    OVERLAP: float


def predicted_us(
    machine: Machine, tile: Tile, M: int, N: int, K: int, lines: tuple[int, int], processors: int
) -> float:
    """The time of a product; ``lines``: elements from a row, or column, of a and of b to the next one."""
    together = tile.SHARING * tile.SPLIT
    per_processor = max(1, SHARED_BYTES // ((tile.BLOCK_M + tile.BLOCK_N) * BLOCK_K * 2 * tile.STAGES))
    # A group of 16 or 18 multiprocessors (GPC) has whole clusters: 120 of 132 are in clusters of 4 or 8.
    room = max(1, processors * per_processor * (10 if together > 2 else 11) // 11 // together)
    clusters = tile.clusters(M, N)
    steps = math.ceil(math.ceil(K / BLOCK_K) / tile.SPLIT)
    of_a, of_b = (machine.UNALIGNED if line % LINE else 1.0 for line in lines)
    of_a, of_b = of_a * min(M, tile.BLOCK_M), of_b * min(N, tile.BLOCK_N)
    elements = of_a / tile.SHARING + of_b if tile.exchanged else of_a + of_b / tile.SHARING
    loaded = min(clusters, room) * together * elements * BLOCK_K * 2
    step = (tile.step_us**4 + (loaded / machine.L2) ** 4) ** 0.25
    compute = machine.LAUNCH_US + math.ceil(clusters / room) * (steps * step + tile.tile_us)
    memory = machine.START_US + 2 * (M * K + K * N + M * N) / machine.DRAM
    return math.pow(compute**machine.OVERLAP + memory**machine.OVERLAP, 1 / machine.OVERLAP)


def possible(tiles: Sequence[Tile], M: int, K: int) -> list[Tile]:
    """Tiles with a step for each block that divides the terms.

    Tiles higher than 1.4 * M are left out: most of them would be empty, and a lower one holds all rows.  The
    lowest of these stays.
    """
    most = max(1.4 * M, min((tile.BLOCK_M for tile in tiles if tile.BLOCK_M >= M), default=0))
    return [tile for tile in tiles if most >= tile.BLOCK_M and max(1, math.ceil(K / BLOCK_K)) >= tile.SPLIT]


def fastest(
    machine: Machine, tiles: Sequence[Tile], M: int, N: int, K: int, lines: tuple[int, int], processors: int
) -> Tile:
    """The possible tile with the least predicted time."""
    return min(
        possible(tiles, M, K), key=lambda tile: predicted_us(machine, tile, M, N, K, lines, processors)
    )
