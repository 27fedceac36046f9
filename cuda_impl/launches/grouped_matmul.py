"""grouped_matmul in CUDA: ``a[M,K], b[G,K,N], offsets[G] -> c[M,N]``, with ``kernels/grouped_matmul/``."""

from __future__ import annotations

from typing import NamedTuple

from compare.arguments import check_grouped_product
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, copied, empty, zeros_like
from cuda_impl.launch import HALVES, HOPPER, Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.launches.matmul import CONSUMERS, PIECE, THREADS, WarpTiles, check_terms, tile_ring_bytes
from cuda_impl.layouts import BOOLS, check_tensor_cores, contiguous, padded, vector
from cuda_impl.tensor_maps import check_coordinates, matrices_map, matrix_map

OP = "grouped_matmul"


class Grouped(NamedTuple):
    """Aligned operands, and an uninitialised c."""

    a: Tensor
    lda: int
    b: Tensor
    B_BY_ROWS: bool
    ldb: int
    stride_bg: int
    offsets: Tensor
    c: Tensor
    M: int
    N: int
    K: int
    G: int

    def tiles(self, BLOCK_M: int, BLOCK_N: int) -> int:
        """Tiles of c if every group's last tile had one row: no fewer than there are."""
        along_m = min((self.M + self.G * (BLOCK_M - 1)) // BLOCK_M, self.M)
        return int(int32(along_m * ceil_div(self.N, BLOCK_N))[0])


def grouped(a: Tensor, b: Tensor, offsets: Tensor) -> Grouped:
    check_grouped_product(OP, a, b, offsets)
    check_tensor_cores(a)
    (M, K), (G, _, N) = a.shape, b.shape
    check_terms(K)
    c, a = empty((M, N), a.dtype, a.device), padded(a)
    return Grouped(a, a.stride(0), *aligned_matrices(b), contiguous(offsets), c, M, N, K, G)


def aligned_matrices(b: Tensor) -> tuple[Tensor, bool, int, int]:
    """``b[G,K,N]``, whether it is row-major (else column-major), and its strides of rows and of matrices.

    Its rows (or columns) are contiguous, 16-byte aligned and apart; if they are not, such a copy is returned.
    """
    (_, K, N), VEC = b.shape, vector(b)
    by_rows = b.stride(2) == 1 or b.stride(1) != 1
    line, lines, length = (1, K, N) if by_rows else (2, N, K)
    ld, step = b.stride(line), b.stride(0)
    apart = ld >= length and step >= lines * ld
    if b.stride(3 - line) == 1 and apart and ld % VEC == step % VEC == b.data_ptr() % 16 == 0:
        return b, by_rows, ld, step
    ld = ceil_div(length, VEC) * VEC
    step = max(lines, 1) * ld
    return copied(b, (step, ld, 1) if by_rows else (step, 1, ld)), by_rows, ld, step


# --------------------------------------------------------------------------- tensor cores by mma

TILE = WarpTiles()


def mma_kernel(name: str) -> Kernel:
    return Kernel(
        f"{OP}_{name}_kernel<{{T}}, {{B_BY_ROWS}}, {{TILE}}>", HALVES, B_BY_ROWS=BOOLS, TILE=[TILE[:6]]
    )


def by_mma(run: Kernel, of: Grouped, most_blocks: int = 0) -> Plan:
    """A grid of a block per tile, or of ``most_blocks`` persistent ones."""
    tiles = of.tiles(TILE.BLOCK_M, TILE.BLOCK_N)
    shared_bytes = TILE.STAGES * (TILE.BLOCK_M + TILE.BLOCK_N) * TILE.BLOCK_K * 2
    sizes = (*int64(of.N, of.K), *int32(of.G), *int64(of.lda, of.ldb, of.stride_bg))
    instance = run(of.c.dtype, B_BY_ROWS=of.B_BY_ROWS, TILE=TILE[:6])
    blocks = min(tiles, most_blocks or tiles)
    args = (of.a, of.b, of.c, of.offsets, *sizes)
    return Plan(of.c, Launch(instance, blocks, TILE.WARPS_M * TILE.WARPS_N * 32, args, shared_bytes))


TILED = mma_kernel("tiled")


@variant(OP, "tiled", kernels=[TILED], level="tensor_core", requires="sm_80")
def tiled(a: Tensor, b: Tensor, offsets: Tensor) -> Plan:
    """One tile per block, which finds its group."""
    return by_mma(TILED, grouped(a, b, offsets))


PERSISTENT = mma_kernel("persistent")


@variant(
    OP,
    "persistent",
    kernels=[PERSISTENT],
    level="tensor_core",
    algorithm="tiles of all groups by persistent blocks",
    requires="sm_80",
)
def persistent(a: Tensor, b: Tensor, offsets: Tensor) -> Plan:
    """Two blocks per multiprocessor, round-robin tile scheduling."""
    return by_mma(PERSISTENT, grouped(a, b, offsets), TILE.BLOCKS * multiprocessors(a.device))


# --------------------------------------------------------------------------- Hopper's own units

TILES = ((256, 4), (128, 6))
"""The choices of BLOCK_N and STAGES."""
C_BYTES = 4 * CONSUMERS * 2 * 16 * PIECE * 2
"""Buffers for pieces of c, two of each consumer warp."""
WGMMA = Kernel(f"{OP}_wgmma_kernel<{{T}}, {{B_BY_ROWS}}, {{TILE}}>", HALVES, B_BY_ROWS=BOOLS, TILE=TILES)


def tile_for(of: Grouped, processors: int) -> tuple[int, int]:
    """BLOCK_N and STAGES of the tile with which the last multiprocessor finishes first, as in matmul.

    A group's last tile is half full on average, as far as the host knows.
    """
    tiles_m = ceil_div(of.M, 128) + of.G // 2

    def columns(BLOCK_N: int) -> int:
        return ceil_div(tiles_m * ceil_div(of.N, BLOCK_N), processors) * (BLOCK_N + 96)

    return min(TILES, key=lambda tile: columns(tile[0]))


@variant(OP, "wgmma", kernels=[WGMMA], **HOPPER)
def wgmma(a: Tensor, b: Tensor, offsets: Tensor) -> Plan:
    """One producer warp, eight consumer warps, persistent; TMA loads, and stores whole boxes of c."""
    of = grouped(a, b, offsets)
    check_coordinates(M=of.M, N=of.N, K=of.K)
    if of.K == 0:
        return Plan(zeros_like(of.c))
    processors = multiprocessors(a.device)
    BLOCK_M = CONSUMERS * PIECE
    BLOCK_N, STAGES = tile = tile_for(of, processors)
    maps = (
        matrix_map(of.a, BLOCK_M),
        matrices_map(
            of.b,
            PIECE if of.B_BY_ROWS else BLOCK_N,
            by_rows=of.B_BY_ROWS,
            ld=of.ldb,
            step=of.stride_bg,
        ),
        matrix_map(of.c, 16, ld=ceil_div(of.N, 8) * 8),  # never used if that is not N
    )
    shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES) + C_BYTES
    instance = WGMMA(a.dtype, B_BY_ROWS=of.B_BY_ROWS, TILE=tile)
    blocks = min(of.tiles(BLOCK_M, BLOCK_N), processors)
    args = (*maps, of.c, of.offsets, *int32(of.N, of.K, of.G))
    return Plan(of.c, Launch(instance, blocks, THREADS, args, shared_bytes))
