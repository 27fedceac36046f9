"""fp8_block_matmul through cupy: ``a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N]``.

With the kernels of ``kernels/fp8_block_matmul/``.
"""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_block_product
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.loader import kernel
from cuda_impl.matrix_map import matrix_map
from cuda_impl.rawkernel.scaled_matmul import (
    BLOCK_K,
    CONSUMERS,
    MOST,
    PERMUTED_BYTES,
    PIECE_ROWS,
    WARPGROUP,
    WARPGROUP_M,
    ceil_div,
    cpp,
    lines_of_a,
    operand,
    places_bytes,
)


class Product:
    """Checked arguments that TMA can read, contiguous scales, and an uninitialised c."""

    def __init__(
        self, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
    ) -> None:
        check_block_product("fp8_block_matmul", a, b, scale_a, scale_b)
        (self.M, self.K), self.N = a.shape, b.shape[0]
        if max(self.M, self.N) > MOST:
            raise NotImplementedError(f"M={self.M}, N={self.N}: at most {MOST} of each")
        self.c = torch.empty((self.M, self.N), dtype=torch.bfloat16, device=a.device)
        self.done = self.c.numel() == 0 or self.K == 0
        if self.done:
            self.c.zero_()
            return
        self.a, self.b = operand(a), operand(b)
        self.scales = scale_a.contiguous(), scale_b.contiguous()
        self.processors = multiprocessors(a.device)

    def tiles(self, BLOCK_N: int, WAVES: int) -> int:
        return ceil_div(self.M, CONSUMERS * WARPGROUP_M * WAVES) * ceil_div(self.N, BLOCK_N)

    def launch(
        self,
        template: str,
        blocks: int,
        BLOCK_N: int,
        WAVES: int,
        STAGES: int,
        *,
        stores: bool = False,
        parts_a: int = 1,
    ) -> torch.Tensor:
        """Launch a kernel of so many blocks.

        Args:
            template: the kernel with its template arguments.
            blocks: of the grid.
            BLOCK_N: columns of a tile of c.
            WAVES: a tile has 128 rows for each.
            STAGES: pipeline stages.
            stores: whether it has a map of c, and buffers for pieces of it.
            parts_a: copies per tile of a.
        """
        BLOCK_M = CONSUMERS * WARPGROUP_M * WAVES
        maps = [
            matrix_map(self.a, lines_of_a(BLOCK_M, self.M) // parts_a),
            matrix_map(self.b, BLOCK_N),
        ]
        shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K + PERMUTED_BYTES
        if stores:
            maps.append(matrix_map(self.c, PIECE_ROWS) if self.aligned() else np.zeros(1, "V128")[0])
            shared_bytes += places_bytes(BLOCK_N)
        run = kernel("fp8_block_matmul", template, self.a.device)
        pointers = (*(scale.data_ptr() for scale in self.scales), self.c.data_ptr())
        sizes = np.int32(self.M), np.int32(self.N), np.int32(ceil_div(self.K, BLOCK_K))
        threads = (1 + CONSUMERS) * WARPGROUP
        run((blocks,), (threads,), (*maps, *pointers, *sizes), shared_mem=shared_bytes)
        return self.c

    def aligned(self) -> bool:
        """Whether the rows of c are 16-byte aligned."""
        return self.N % 8 == 0


STAGES_OF = {(128, 2): 4, (128, 1): 6, (64, 1): 8}
"""Pipeline stages that fit into shared memory, by BLOCK_N and WAVES."""


def tile_of(M: int, N: int, processors: int) -> tuple[int, int, int]:
    """BLOCK_N, WAVES and STAGES of the tile with which the last of so many resident blocks finishes first.

    A tile costs its width times its waves plus about 96 columns for prologue and epilogue, times the number
    of tiles that a block processes in sequence.
    """

    def columns(tile: tuple[int, int]) -> int:
        BLOCK_N, WAVES = tile
        tiles = ceil_div(M, CONSUMERS * WARPGROUP_M * WAVES) * ceil_div(N, BLOCK_N)
        return ceil_div(tiles, processors) * (BLOCK_N * WAVES + 96)

    BLOCK_N, WAVES = min(STAGES_OF, key=columns)
    return BLOCK_N, WAVES, STAGES_OF[BLOCK_N, WAVES]


def launch(variant: str, p: Product, *, persistent: bool) -> torch.Tensor:
    if p.done:
        return p.c
    BLOCK_N, WAVES, STAGES = tile_of(p.M, p.N, p.processors)
    blocks = p.tiles(BLOCK_N, WAVES)
    if persistent:
        blocks = min(blocks, p.processors)
    name = f"fp8_block_matmul_{variant}_kernel<{BLOCK_N}, {WAVES}, {STAGES}>"
    return p.launch(name, blocks, BLOCK_N, WAVES, STAGES)


@implementation("fp8_block_matmul", "cupy.specialized", level="hopper", requires="sm_90a", emulated=True)
def specialized(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """A producer and two consumer warpgroups; one block per tile."""
    return launch("specialized", Product(a, b, scale_a, scale_b), persistent=False)


@implementation("fp8_block_matmul", "cupy.persistent", level="hopper", requires="sm_90a", emulated=True)
def persistent(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """One block per multiprocessor; the producer prefetches the next tile."""
    return launch("persistent", Product(a, b, scale_a, scale_b), persistent=True)


TUNABLE = {"BLOCK_N": (64, 128), "WAVES": (1, 2), "GROUP_M": (4, 8, 16)}


def template(
    variant: str, p: Product, BLOCK_N: int, WAVES: int, GROUP_M: int
) -> tuple[str, tuple[int, int, int]]:
    """A kernel that stores c by TMA, and its BLOCK_N, WAVES and STAGES: `tile_of`'s where one is 0."""
    tile = tile_of(p.M, p.N, p.processors)
    if BLOCK_N and WAVES:
        tile = BLOCK_N, WAVES, STAGES_OF.get((BLOCK_N, WAVES), 4)
    constants = ", ".join(map(str, (*tile, GROUP_M)))
    return f"fp8_block_matmul_{variant}_kernel<{constants}, {cpp(p.aligned())}>", tile


@implementation(
    "fp8_block_matmul",
    "cupy.prefetched",
    level="hopper",
    requires="sm_90a",
    emulated=True,
    tunable=TUNABLE,
)
def prefetched(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    BLOCK_N: int = 0,
    WAVES: int = 0,
    GROUP_M: int = 8,
) -> torch.Tensor:
    """Scales are loaded four blocks of K ahead; TMA stores c."""
    p = Product(a, b, scale_a, scale_b)
    if p.done:
        return p.c
    name, tile = template("prefetched", p, BLOCK_N, WAVES, GROUP_M)
    return p.launch(name, min(p.processors, p.tiles(*tile[:2])), *tile, stores=True)


@implementation("fp8_block_matmul", "cupy.multicast", level="hopper", requires="sm_90a", tunable=TUNABLE)
def multicast(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    BLOCK_N: int = 0,
    WAVES: int = 0,
    GROUP_M: int = 8,
) -> torch.Tensor:
    """TMA multicast: the two blocks of a cluster share their loads of a."""
    p = Product(a, b, scale_a, scale_b)
    if p.done:
        return p.c
    CLUSTER = 2
    name, (BLOCK_N, WAVES, STAGES) = template("multicast", p, BLOCK_N, WAVES, GROUP_M)
    blocks = min(p.processors // CLUSTER * CLUSTER, CLUSTER * p.tiles(CLUSTER * BLOCK_N, WAVES))
    return p.launch(name, blocks, BLOCK_N, WAVES, STAGES, stores=True, parts_a=CLUSTER)
