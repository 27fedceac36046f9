"""matmul by clusters of two blocks that share b: ``a[M,K] @ b[K,N] -> c[M,N]``, as CUDA's ``multicast``.

Two blocks have tiles of c in one column, and so need the same tile of b.  TMA multicast writes it into both.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv
from triton_impl.matmul import (
    CONSUMERS,
    PIECE,
    async_load,
    async_store,
    check_halves,
    checked,
    grouped_tile_in_gluon,
    halves,
    in_gluon,
    matrix_for_tma,
)

CLUSTER = gl.constexpr(2)


@gluon.jit
def produce_multicast(
    ring, operands, sizes, A_BY_ROWS: gl.constexpr, B_BY_ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Producer, one warp of each block: fills a stage when its own consumers have released it.

    The first block loads b for both, when the consumers of both have released the stage.
    """
    a_tiles, b_tiles, full, empty, empty_in_both = ring
    a_desc, b_desc = operands
    M, N, K = sizes
    ROWS: gl.constexpr = CLUSTER * PIECE
    step = 0
    tiles = gl.cdiv(M, CONSUMERS * ROWS) * gl.cdiv(N, BLOCK_N)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile_in_gluon(tile, M, N, CONSUMERS * ROWS, BLOCK_N, GROUP_M)
        m, n = tile_m * CONSUMERS * ROWS, tile_n * BLOCK_N
        for k in range(0, K, PIECE):
            stage, phase = step % STAGES, step // STAGES & 1 ^ 1
            landed = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(landed, (CONSUMERS * PIECE + BLOCK_N) * PIECE * 2)
            for i in gl.static_range(CONSUMERS):
                at = [m + i * ROWS, k] if A_BY_ROWS else [k, m + i * ROWS]
                async_load(a_desc, at, landed, a_tiles.index(stage * CONSUMERS + i))
            mbarrier.wait(empty_in_both.index(stage), phase)  # only the first block waits
            at = [k, n] if B_BY_ROWS else [n, k]
            async_load(b_desc, at, landed, b_tiles.index(stage), multicast=True)
            step += 1


@gluon.jit
def release(ring, stage, pred):
    """A consumer no longer reads a stage: tell its own producer, and the first block's."""
    mbarrier.arrive(ring[3].index(stage), pred=pred)
    mbarrier.arrive(ring[4].index(stage), pred=pred)


@gluon.jit
def consume_multicast(
    ring, output, sizes, A_BY_ROWS: gl.constexpr, B_BY_ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup, of each block: as gluon's, with 64 rows in each block."""
    a_tiles, b_tiles, full, _, _ = ring
    c_desc, c_tiles = output
    M, N, K = sizes
    ROWS: gl.constexpr = CLUSTER * PIECE
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16], cga_layout=[[1, 0]]
    )
    step = 0
    tiles = gl.cdiv(M, CONSUMERS * ROWS) * gl.cdiv(N, BLOCK_N)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile_in_gluon(tile, M, N, CONSUMERS * ROWS, BLOCK_N, GROUP_M)
        m, n = (tile_m * CONSUMERS + CONSUMER) * ROWS, tile_n * BLOCK_N
        total = gl.zeros([ROWS, BLOCK_N], gl.float32, SUMS)
        for k in range(0, K, PIECE):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            a = a_tiles.index(stage * CONSUMERS + CONSUMER)
            b = b_tiles.index(stage)
            a = a if A_BY_ROWS else a.permute([1, 0])
            b = b if B_BY_ROWS else b.permute([1, 0])
            total = hopper.warpgroup_mma(a, b, total, use_acc=k > 0, is_async=True)
            total = hopper.warpgroup_mma_wait(1, [total])
            release(ring, (step + STAGES - 1) % STAGES, k > 0)
            step += 1
        total = hopper.warpgroup_mma_wait(0, [total])
        release(ring, (step + STAGES - 1) % STAGES, True)

        pieces = halves(total)
        pieces = halves(pieces[0]) + halves(pieces[1])
        for i in gl.static_range(BLOCK_N // PIECE):
            c_tile = c_tiles.index(CONSUMER * 2 + i % 2)
            tma.store_wait(1)  # the store that last read this buffer has finished
            c_tile.store(pieces[i].to(c_desc.dtype))
            hopper.fence_async_shared()
            async_store(c_desc, [m, n + i * PIECE], c_tile)
    tma.store_wait(0)


@gluon.jit
def matmul_gluon_multicast_kernel(
    a_desc, b_desc, c_desc, M, N, K, A_BY_ROWS: gl.constexpr, B_BY_ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Grid: persistent, clusters of two blocks; tiles of 256 x BLOCK_N are assigned round-robin.

    Warps as in gluon.  The blocks have the upper and the lower 64 of each consumer's 128 rows.
    """
    T: gl.constexpr = c_desc.dtype
    A_LINES: gl.constexpr = a_desc.block_type.shape
    B_LINES: gl.constexpr = b_desc.block_type.shape
    a_tiles = gl.allocate_shared_memory(T, [STAGES * CONSUMERS, A_LINES[0], A_LINES[1]], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(T, [STAGES, B_LINES[0], B_LINES[1]], b_desc.layout)
    c_tiles = gl.allocate_shared_memory(T, [CONSUMERS * 2, CLUSTER * PIECE, PIECE], c_desc.layout)
    OF_EACH: gl.constexpr = mbarrier.MBarrierLayout([[1]])
    OF_BOTH: gl.constexpr = mbarrier.MBarrierLayout([[0]])  # in the first block; both arrive there
    full = gl.allocate_shared_memory(gl.int64, [STAGES, CLUSTER], OF_EACH)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, CLUSTER], OF_EACH)
    empty_in_both = gl.allocate_shared_memory(gl.int64, [STAGES, 1], OF_BOTH)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
        mbarrier.init(empty_in_both.index(stage), count=CONSUMERS)  # of each block
    hopper.fence_async_shared()

    ring = (a_tiles, b_tiles, full, empty, empty_in_both)
    operands = (a_desc, b_desc)
    output = (c_desc, c_tiles)
    sizes = (M, N, K)
    gl.warp_specialize(
        [
            (consume_multicast, (ring, output, sizes, A_BY_ROWS, B_BY_ROWS, BLOCK_N, GROUP_M, STAGES, 0)),
            (consume_multicast, (ring, output, sizes, A_BY_ROWS, B_BY_ROWS, BLOCK_N, GROUP_M, STAGES, 1)),
            (produce_multicast, (ring, operands, sizes, A_BY_ROWS, B_BY_ROWS, BLOCK_N, GROUP_M, STAGES)),
        ],
        worker_num_warps=[4, 1],
        worker_num_regs=[240, 24],
    )


def split_rows(matrix: torch.Tensor, by_rows: bool, block: list[int], axis: int | None) -> TensorDescriptor:
    """A matrix for TMA in blocks, of which each block of the cluster has a half along ``axis``; None: all."""
    of_cluster = [0, 0] if axis is None else [int(axis == 0), int(axis == 1)]
    if not by_rows:
        matrix, block, of_cluster = matrix.t(), block[::-1], of_cluster[::-1]
    T = gl.float16 if matrix.dtype is torch.float16 else gl.bfloat16
    layout = gl.NVMMASharedLayout.get_default_for(block, T, cga_layout=[of_cluster])
    return TensorDescriptor.from_tensor(matrix, block, layout)


@implementation(
    "matmul", "triton.gluon_multicast", level="hopper", requires="sm_90a", triton="3.8", without_gpu=False
)
def gluon_multicast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Two blocks share their loads of b.  Falls back to gluon if rows of c are not 16-byte aligned."""
    M, N, K, c = checked(a, b)
    check_halves(a, M, N, K)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    if N * c.element_size() % 16 != 0:
        return in_gluon(a, b)
    (a, A_BY_ROWS, _), (b, B_BY_ROWS, _) = matrix_for_tma(a), matrix_for_tma(b)
    BLOCK_M, BLOCK_N, BLOCK_K = 256, 256, 64
    a_desc = split_rows(a, A_BY_ROWS, [BLOCK_M // 2, BLOCK_K], axis=0)
    b_desc = split_rows(b, B_BY_ROWS, [BLOCK_K, BLOCK_N], axis=None)
    c_desc = split_rows(c, True, [BLOCK_M // 2, BLOCK_K], axis=0)
    clusters = min(multiprocessors(a.device) // 2, cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N))
    matmul_gluon_multicast_kernel[(clusters,)](
        a_desc, b_desc, c_desc, M, N, K, A_BY_ROWS, B_BY_ROWS, BLOCK_N, GROUP_M=8, STAGES=4,
        num_warps=4, num_ctas=2,
    )  # fmt: skip
    return c
