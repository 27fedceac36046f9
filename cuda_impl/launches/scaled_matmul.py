"""What the products of 8-bit matrices share, ``a[M,K], b[N,K] -> c[M,N]`` with scales: operands, and Hopper's
levels, with the kernels of ``kernels/scaled_matmul/``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from compare.arguments import check_scaled_product
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty, zeros_like
from cuda_impl.launch import Argument, Instance, Kernel, Launch, Plan, ceil_div, int32
from cuda_impl.layouts import BOOLS, contiguous, padded
from cuda_impl.tensor_maps import SWIZZLE_ALIGNMENT, check_coordinates, matrix_map

BLOCK_K = 128
CONSUMERS, WARPGROUP, WARPGROUP_M = 2, 128, 64
BLOCK_M = CONSUMERS * WARPGROUP_M
THREADS = (1 + CONSUMERS) * WARPGROUP
PIECE_N, PIECE_ROWS = 64, 16
"""A piece of c that a warp stores by TMA."""


class Product(NamedTuple):
    """Checked arguments, contiguous scales, an uninitialised c, and the sizes that kernels take."""

    a: Tensor
    b: Tensor
    scales: tuple[Tensor, Tensor]
    c: Tensor
    M: int
    N: int
    K: int
    """Or how many blocks of it have a scale."""

    @property
    def aligned(self) -> bool:
        """Whether the rows of c are 16-byte aligned."""
        return self.N % 8 == 0


def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, K: int) -> Product:
    """Of checked arguments; ``K``: as kernels take it."""
    M, N = a.shape[0], b.shape[0]
    scales = contiguous(scale_a), contiguous(scale_b)
    return Product(a, b, scales, empty((M, N), torch.bfloat16, a.device), M, N, K)


def checked(op: str, taken: torch.dtype, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Product:
    """A product of matrices of a dtype, with scales of rows."""
    check_scaled_product(op, taken, a, b, scale_a, scale_b)
    return product(a, b, scale_a, scale_b, a.shape[1])


class Tile(NamedTuple):
    BLOCK_N: int
    STAGES: int

    def grid(self, M: int, N: int, CLUSTER_M: int = 1, CLUSTER_N: int = 1) -> int:
        """Blocks, one per tile of c, in whole clusters of so many along M and N."""
        clusters = ceil_div(M, CLUSTER_M * BLOCK_M) * ceil_div(N, CLUSTER_N * self.BLOCK_N)
        return CLUSTER_M * CLUSTER_N * clusters


TILES = (Tile(256, 4), Tile(128, 6), Tile(64, 8))


def tile_for(M: int, N: int, blocks: int) -> Tile:
    """The tile with which the last of so many resident blocks finishes first.

    A tile costs its width plus about 96 columns for prologue and epilogue, times the number of tiles that a
    block processes in sequence.
    """

    def columns(tile: Tile) -> int:
        return ceil_div(tile.grid(M, N), blocks) * (tile.BLOCK_N + 96)

    return min(TILES, key=columns)


def lines_of_a(M: int) -> int:
    """Lines of a tile of a that are fetched, as in ``kernels/scaled_matmul/tiles.cuh``."""
    return min(BLOCK_M, ceil_div(M, 16) * 16)


def places_bytes(BLOCK_N: int) -> int:
    """Shared memory for pieces of c that TMA stores."""
    places = 1 if BLOCK_N == PIECE_N else 2
    return 4 * CONSUMERS * places * PIECE_ROWS * PIECE_N * 2


def by_tma(
    run: Instance,
    p: Product,
    tile: Tile,
    most_blocks: int = 0,
    *,
    threads: int = THREADS,
    stores: bool = False,
    cluster: tuple[int, int] = (1, 1),
) -> Plan:
    """A kernel that fetches tiles of a and b by TMA; c is zeros if there is nothing to multiply.

    Args:
        run: the kernel.
        p: the product.
        tile: of a block.
        most_blocks: of the grid; 0: one per tile.
        threads: of a block.
        stores: whether the kernel has a map of c, and buffers for pieces of it.
        cluster: the blocks that share loads: along M those of b, along N those of a.
    """
    check_coordinates(M=p.M, N=p.N, K=p.a.shape[1])
    if p.K == 0:
        return Plan(zeros_like(p.c))
    CLUSTER_M, CLUSTER_N = cluster
    maps: list[Argument] = [
        matrix_map(padded(p.a), lines_of_a(p.M) // CLUSTER_N),
        matrix_map(padded(p.b), tile.BLOCK_N // CLUSTER_M),
    ]
    shared_bytes = tile.STAGES * (BLOCK_M + tile.BLOCK_N) * BLOCK_K + SWIZZLE_ALIGNMENT
    if stores:
        maps.append(matrix_map(p.c, PIECE_ROWS) if p.aligned else np.zeros(1, "V128")[0])
        shared_bytes += places_bytes(tile.BLOCK_N)
    blocks = tile.grid(p.M, p.N, *cluster)
    args = (*maps, *p.scales, p.c, *int32(p.M, p.N, p.K))
    blocks = min(blocks, most_blocks or blocks)
    return Plan(p.c, Launch(run, blocks, threads, args, shared_bytes, CLUSTER_M * CLUSTER_N))


# --------------------------------------------------------------------------- scales of rows


def kernels_of(T: str) -> tuple[Kernel, Kernel, Kernel, Kernel]:
    """Those of the functions below, in their order; ``T``: the C++ type of sums."""
    stored = {"TILE": TILES, "ALIGNED": BOOLS}
    return (
        Kernel(f"scaled_matmul_wgmma_kernel<{T}, 3>"),
        Kernel(f"scaled_matmul_specialized_kernel<{T}, {{TILE}}>", TILE=TILES),
        Kernel(f"scaled_matmul_persistent_kernel<{T}, {{TILE}}, {{ALIGNED}}>", **stored),
        Kernel(f"scaled_matmul_multicast_kernel<{T}, {{TILE}}, {{ALIGNED}}>", **stored),
    )


def wgmma(run: Kernel, p: Product) -> Plan:
    """One tile per warpgroup, fetched by TMA."""
    return by_tma(run(), p, Tile(128, 3), threads=WARPGROUP)


def specialized(run: Kernel, p: Product) -> Plan:
    """One producer warp, eight consumer warps."""
    tile = tile_for(p.M, p.N, multiprocessors(p.a.device))
    return by_tma(run(TILE=tile), p, tile)


def persistent(run: Kernel, p: Product) -> Plan:
    """One block per multiprocessor, round-robin tile scheduling; TMA stores c."""
    processors = multiprocessors(p.a.device)
    tile = tile_for(p.M, p.N, processors)
    return by_tma(run(TILE=tile, ALIGNED=p.aligned), p, tile, processors, stores=True)


def multicast(run: Kernel, p: Product) -> Plan:
    """TMA multicast: the two blocks of a cluster share their loads of b, or of a if tiles are narrow."""
    processors = multiprocessors(p.a.device) // 2 * 2
    tile = tile_for(p.M, p.N, processors)
    cluster = (2, 1) if tile.BLOCK_N > 64 else (1, 2)
    instance = run(TILE=tile, ALIGNED=p.aligned)
    return by_tma(instance, p, tile, processors, stores=True, cluster=cluster)
