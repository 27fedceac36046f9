"""What int8_matmul's and fp8_matmul's launches through cupy share: operands, and the levels on Hopper."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_scaled_product
from compare.device import multiprocessors
from cuda_impl.loader import kernel
from cuda_impl.matrix_map import has_aligned_rows, matrix_map

BLOCK_K = 128
CONSUMERS, WARPGROUP, WARPGROUP_M = 2, 128, 64
PERMUTED_BYTES = 1024
"""Alignment of swizzled tiles; dynamic shared memory may lack it."""
PIECE_N, PIECE_ROWS = 64, 16
"""A piece of c that a warp stores by TMA."""
MOST = (1 << 31) - 512
"""Maximum M and N: coordinates, up to the end of the last tile, are 32-bit."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def lines_of_a(BLOCK_M: int, M: int) -> int:
    """Lines of a tile of a that are fetched, as in ``kernels/scaled_matmul/tiles.cuh``."""
    return min(BLOCK_M, ceil_div(M, 16) * 16)


def operand(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows are contiguous, 16-byte aligned and of whole pairs, else such a copy, with zeros
    behind an odd K."""
    rows, K = x.shape
    if K % 2 == 0 and has_aligned_rows(x):
        return x
    padded = x.new_empty((rows, ceil_div(K, 16) * 16))
    padded[:, K : K + 1] = 0
    padded[:, :K].copy_(x)
    return padded[:, : K + K % 2]


def places_bytes(BLOCK_N: int) -> int:
    """Shared memory for pieces of c that TMA stores."""
    places = 1 if BLOCK_N == PIECE_N else 2
    return 4 * CONSUMERS * places * PIECE_ROWS * PIECE_N * 2


class Product:
    """Checked arguments, contiguous scales, and an uninitialised c."""

    def __init__(
        self,
        op: str,
        taken: torch.dtype,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
    ) -> None:
        check_scaled_product(op, taken, a, b, scale_a, scale_b)
        self.op, self.a, self.b = op, a, b
        self.sum = "int" if taken is torch.int8 else "float"
        (self.M, self.K), self.N = a.shape, b.shape[0]
        self.scales = scale_a.contiguous(), scale_b.contiguous()
        self.c = torch.empty((self.M, self.N), dtype=torch.bfloat16, device=a.device)

    def pointers(self) -> tuple[int, ...]:
        """Of the scales and c, as all kernels take them."""
        return (*(scale.data_ptr() for scale in self.scales), self.c.data_ptr())

    def launch(
        self,
        template: str,
        blocks: int,
        BLOCK_M: int,
        BLOCK_N: int,
        STAGES: int,
        *,
        threads: int = (1 + CONSUMERS) * WARPGROUP,
        stores: bool = False,
        parts: tuple[int, int] = (1, 1),
    ) -> torch.Tensor:
        """Launch a kernel that fetches tiles of BLOCK_M rows of a and BLOCK_N of b by TMA.

        Args:
            template: the kernel with its template arguments.
            blocks: of the grid.
            BLOCK_M: rows of a tile of a.
            BLOCK_N: rows of a tile of b.
            STAGES: pipeline stages.
            threads: of a block.
            stores: whether it has a map of c, and buffers for pieces of it.
            parts: copies per tile of a and of b.
        """
        a, b = operand(self.a), operand(self.b)
        parts_a, parts_b = parts
        maps = [
            matrix_map(a, lines_of_a(BLOCK_M, self.M) // parts_a),
            matrix_map(b, BLOCK_N // parts_b),
        ]
        shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K + PERMUTED_BYTES
        if stores:
            maps.append(matrix_map(self.c, PIECE_ROWS) if self.aligned() else np.zeros(1, "V128")[0])
            shared_bytes += places_bytes(BLOCK_N)
        run = kernel(self.op, template, a.device)
        sizes = np.int32(self.M), np.int32(self.N), np.int32(self.K)
        run((blocks,), (threads,), (*maps, *self.pointers(), *sizes), shared_mem=shared_bytes)
        return self.c

    def aligned(self) -> bool:
        """Whether the rows of c are 16-byte aligned."""
        return self.N % 8 == 0

    def done(self) -> bool:
        """Whether there is nothing to multiply; c is zeros then.

        Raises:
            NotImplementedError: M or N is too large for TMA.
        """
        if max(self.M, self.N) > MOST:
            raise NotImplementedError(f"M={self.M}, N={self.N}: at most {MOST} of each")
        if self.c.numel() and self.K:
            return False
        self.c.zero_()
        return True


def wgmma(p: Product) -> torch.Tensor:
    """One tile per warpgroup, fetched by TMA."""
    if p.done():
        return p.c
    BLOCK_M, BLOCK_N, STAGES = 128, 128, 3
    blocks = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N)
    name = f"scaled_matmul_wgmma_kernel<{p.sum}, {STAGES}>"
    return p.launch(name, blocks, BLOCK_M, BLOCK_N, STAGES, threads=WARPGROUP)


STAGES_OF = {256: 4, 128: 6, 64: 8}
"""Pipeline stages that fit into shared memory, by BLOCK_N."""


def tile_for(M: int, N: int, blocks: int) -> int:
    """BLOCK_N of the tile with which the last of so many resident blocks finishes first.

    A tile costs its width plus about 96 columns for prologue and epilogue, times the number of tiles that a
    block processes in sequence.
    """

    def columns(BLOCK_N: int) -> int:
        return ceil_div(ceil_div(M, CONSUMERS * WARPGROUP_M) * ceil_div(N, BLOCK_N), blocks) * (BLOCK_N + 96)

    return min(STAGES_OF, key=columns)


def specialized(p: Product) -> torch.Tensor:
    """One producer warp, eight consumer warps."""
    if p.done():
        return p.c
    BLOCK_M, BLOCK_N = CONSUMERS * WARPGROUP_M, tile_for(p.M, p.N, multiprocessors(p.a.device))
    STAGES = STAGES_OF[BLOCK_N]
    blocks = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N)
    name = f"scaled_matmul_specialized_kernel<{p.sum}, {BLOCK_N}, {STAGES}>"
    return p.launch(name, blocks, BLOCK_M, BLOCK_N, STAGES)


def cpp(value: bool) -> str:
    return str(value).lower()


def persistent(p: Product) -> torch.Tensor:
    """One block per multiprocessor, round-robin tile scheduling; TMA stores c."""
    if p.done():
        return p.c
    processors = multiprocessors(p.a.device)
    BLOCK_M, BLOCK_N = CONSUMERS * WARPGROUP_M, tile_for(p.M, p.N, processors)
    STAGES = STAGES_OF[BLOCK_N]
    blocks = min(processors, ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N))
    name = f"scaled_matmul_persistent_kernel<{p.sum}, {BLOCK_N}, {STAGES}, {cpp(p.aligned())}>"
    return p.launch(name, blocks, BLOCK_M, BLOCK_N, STAGES, stores=True)


def multicast(p: Product) -> torch.Tensor:
    """TMA multicast: the two blocks of a cluster share their loads of b, or of a if tiles are narrow."""
    if p.done():
        return p.c
    CLUSTER = 2
    processors = multiprocessors(p.a.device) // CLUSTER * CLUSTER
    BLOCK_M, BLOCK_N = CONSUMERS * WARPGROUP_M, tile_for(p.M, p.N, processors)
    STAGES = STAGES_OF[BLOCK_N]
    CLUSTER_M = 2 if BLOCK_N > 64 else 1
    CLUSTER_N = CLUSTER // CLUSTER_M
    tiles = CLUSTER * ceil_div(p.M, CLUSTER_M * BLOCK_M) * ceil_div(p.N, CLUSTER_N * BLOCK_N)
    name = f"scaled_matmul_multicast_kernel<{p.sum}, {BLOCK_N}, {STAGES}, {cpp(p.aligned())}>"
    parts = CLUSTER_N, CLUSTER_M
    return p.launch(name, min(processors, tiles), BLOCK_M, BLOCK_N, STAGES, stores=True, parts=parts)
