"""What int8_matmul and fp8_matmul in Triton share: kernels of ``a[M,K], b[N,K], scale_a[M], scale_b[N] ->
c[M,N]``.

SUM is the type of the sums: int32 of int8, fp32 of e4m3, which Hopper's tensor cores keep with 13 bits behind
the leading one.  Scales are applied to finished sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from compare.arguments import check_scaled_product
from compare.device import multiprocessors
from triton_impl.counts import cdiv, check_counts, check_strides
from triton_impl.matmul import (
    CONSUMERS,
    PIECE,
    SWIZZLED,
    async_load,
    async_store,
    grouped_tile,
    grouped_tile_in_gluon,
    halves,
)
from triton_impl.tma import allocate_descriptors_on, check_coordinates, for_tma


@triton.jit
def scaled(total, scale_a_ptr, scale_b_ptr, m, n, M, N, stride_sa, stride_sb):
    """The elements of c in rows m, a column, and columns n, a row, with these sums."""
    of_row = tl.load(scale_a_ptr + m * stride_sa, mask=m < M, other=0.0)
    of_column = tl.load(scale_b_ptr + n * stride_sb, mask=n < N, other=0.0)
    return (total.to(tl.float32) * of_row * of_column).to(tl.bfloat16)


@triton.jit
def scaled_matmul_tiled_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sa, stride_sb,
    SUM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of c, in grouped order."""
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n * stride_bn
    total = tl.zeros([BLOCK_M, BLOCK_N], SUM)
    for begin in range(0, K, BLOCK_K):
        left = K - begin
        a = tl.load(a_ptrs, mask=(m < M) & (k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n < N), other=0.0)
        total = tl.dot(a, b, total, out_dtype=SUM)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c = scaled(total, scale_a_ptr, scale_b_ptr, m, n, M, N, stride_sa, stride_sb)
    tl.store(c_ptr + m * N + n, c, mask=(m < M) & (n < N))


@triton.jit
def scaled_matmul_persistent_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K, stride_a, stride_b, stride_sa, stride_sb,
    SUM: tl.constexpr, C_ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles are assigned round-robin.

    TMA loads and stores through descriptors, which know the matrix bounds and fill with zeros.  The loops
    over tiles and over K are one (flatten), so that a tile's first loads are issued before the last tile's
    output is written.  The output is stored in two halves, which halves its shared memory.  Rows of a and b
    are 16-byte aligned; rows of c, if C_ALIGNED.
    """
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_a, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [stride_b, 1], [BLOCK_N, BLOCK_K])
    if C_ALIGNED:
        c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])

    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], SUM)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([first_m, k])
            b = b_desc.load([first_n, k])
            total = tl.dot(a, b.T, total, out_dtype=SUM)
        left, right = tl.split(tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1]))
        m = first_m.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
        n = first_n.to(tl.int64) + tl.arange(0, BLOCK_N // 2)[None, :]
        c = scaled(left, scale_a_ptr, scale_b_ptr, m, n, M, N, stride_sa, stride_sb)
        if C_ALIGNED:
            c_desc.store([first_m, first_n], c)
        else:
            tl.store(c_ptr + m * N + n, c, mask=(m < M) & (n < N))
        n += BLOCK_N // 2
        c = scaled(right, scale_a_ptr, scale_b_ptr, m, n, M, N, stride_sa, stride_sb)
        if C_ALIGNED:
            c_desc.store([first_m, first_n + BLOCK_N // 2], c)
        else:
            tl.store(c_ptr + m * N + n, c, mask=(m < M) & (n < N))


# --------------------------------------------------------------------------- Gluon
# Only register allocation and addressing are left to the compiler.  A stage of shared memory has 128 bytes of
# K, the widest that TMA swizzles.  sm_90a.

LINE = gl.constexpr(128)


@gluon.jit
def produce(
    ring, operands, sizes, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Producer, one warp: waits for a stage to be empty, then issues the TMA loads that fill it.

    A stage has the 64 rows of each consumer, and a tile of b, in parts of as many columns as b_desc's boxes.
    """
    a_tiles, b_tiles, full, empty = ring
    a_desc, b_desc = operands
    M, N, K = sizes
    BLOCK_M: gl.constexpr = CONSUMERS * PIECE
    PART_N: gl.constexpr = b_desc.block_shape[0]
    PARTS: gl.constexpr = BLOCK_N // PART_N
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile_in_gluon(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        for k in range(0, K, LINE):
            stage = step % STAGES
            landed = full.index(stage)
            mbarrier.wait(empty.index(stage), step // STAGES & 1 ^ 1)
            if m + PIECE < M:
                mbarrier.expect(landed, (BLOCK_M + BLOCK_N) * LINE)
                async_load(a_desc, [m + PIECE, k], landed, a_tiles.index(stage * CONSUMERS + 1))
            else:  # TMA takes longer to fill lines with zeros than to load
                mbarrier.expect(landed, (PIECE + BLOCK_N) * LINE)
            async_load(a_desc, [m, k], landed, a_tiles.index(stage * CONSUMERS))
            for i in gl.static_range(PARTS):
                async_load(b_desc, [n + i * PART_N, k], landed, b_tiles.index(stage * PARTS + i))
            step += 1


@gluon.jit
def consume(
    ring, output, scales, sizes, C_ALIGNED: gl.constexpr, SUM: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: waits for a stage to be full, multiplies its 64 rows, releases the previous stage.

    One wgmma is in flight meanwhile.  Scales are loaded during the last one.  c is stored in pieces of 64
    columns, two of which may be in flight.
    """
    a_tiles, b_tiles, full, empty = ring
    c_desc, c_ptr, c_tiles = output
    scale_a_ptr, scale_b_ptr = scales
    M, N, K = sizes
    BLOCK_M: gl.constexpr = CONSUMERS * PIECE
    # Triton has no wgmma of int8 with 256 columns (to 3.9): two of 128.
    WGMMA_N: gl.constexpr = 128 if gl.int32 == SUM and BLOCK_N == 256 else BLOCK_N
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], warps_per_cta=[4, 1], instr_shape=[16, WGMMA_N, 32]
    )
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile_in_gluon(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M + CONSUMER * PIECE, tile_n * BLOCK_N
        total = gl.zeros([PIECE, BLOCK_N], SUM, SUMS)
        for k in range(0, K, LINE):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            a = a_tiles.index(stage * CONSUMERS + CONSUMER)
            b = b_tiles.index(stage).permute([1, 0])
            total = hopper.warpgroup_mma(a, b, total, use_acc=k > 0, is_async=True)
            total = hopper.warpgroup_mma_wait(1, [total])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        rows = m + gl.arange(0, PIECE, gl.SliceLayout(1, SUMS))
        columns = n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SUMS))
        of_row = gl.load(scale_a_ptr + rows, mask=rows < M, other=0.0)
        of_column = gl.load(scale_b_ptr + columns, mask=columns < N, other=0.0)
        total = hopper.warpgroup_mma_wait(0, [total])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))

        c = (total.to(gl.float32) * of_row[:, None] * of_column[None, :]).to(gl.bfloat16)
        pieces = (c,)
        if BLOCK_N > PIECE:
            pieces = halves(c)
        if BLOCK_N > 2 * PIECE:
            pieces = halves(pieces[0]) + halves(pieces[1])
        for i in gl.static_range(BLOCK_N // PIECE):
            piece = pieces[i]
            if C_ALIGNED:
                c_tile = c_tiles.index(CONSUMER * 2 + i % 2)
                # The store that last read this buffer has finished: of a tile's only piece, the last one.
                tma.store_wait(1 if BLOCK_N > PIECE else 0)
                c_tile.store(piece)
                hopper.fence_async_shared()
                async_store(c_desc, [m, n + i * PIECE], c_tile)
            else:
                c_rows = m + gl.arange(0, PIECE, gl.SliceLayout(1, piece.type.layout))[:, None]
                c_columns = n + i * PIECE + gl.arange(0, PIECE, gl.SliceLayout(0, piece.type.layout))[None, :]
                c_ptrs = c_ptr + c_rows.to(gl.int64) * N + c_columns
                gl.store(c_ptrs, piece, mask=(c_rows < M) & (c_columns < N))
    if C_ALIGNED:
        tma.store_wait(0)


@gluon.jit
def scaled_matmul_gluon_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K,
    SUM: gl.constexpr, C_ALIGNED: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, C_LAYOUT: gl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles of 128 x BLOCK_N are assigned round-robin.

    A program has nine warps: two consumer warpgroups, each with half of the tile's rows, and one producer
    warp for both.  Between them is a ring of STAGES stages, each with a full and an empty mbarrier.  If
    C_ALIGNED, TMA stores c.
    """
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES * CONSUMERS, PIECE, LINE], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_N, LINE], b_desc.layout)
    c_tiles = gl.allocate_shared_memory(gl.bfloat16, [CONSUMERS * 2, PIECE, PIECE], C_LAYOUT)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    hopper.fence_async_shared()

    ring = (a_tiles, b_tiles, full, empty)
    output = (c_desc, c_ptr, c_tiles)
    scales = (scale_a_ptr, scale_b_ptr)
    sizes = (M, N, K)
    gl.warp_specialize(
        [
            (consume, (ring, output, scales, sizes, C_ALIGNED, SUM, BLOCK_N, GROUP_M, STAGES, 0)),
            (consume, (ring, output, scales, sizes, C_ALIGNED, SUM, BLOCK_N, GROUP_M, STAGES, 1)),
            (produce, (ring, (a_desc, b_desc), sizes, BLOCK_N, GROUP_M, STAGES)),
        ],
        worker_num_warps=[4, 1],
        worker_num_regs=[240, 24],
    )


# --------------------------------------------------------------------------- launches

Matrices = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""a, b, scale_a and scale_b."""

IN_GLUON = {tl.int32: gl.int32, tl.float32: gl.float32}


def checked(op: str, matrices: Matrices) -> tuple[int, int, int, tl.dtype, torch.Tensor]:
    """M, N, K, the type of the sums, and an uninitialised c."""
    taken, SUM = (torch.int8, tl.int32) if op == "int8_matmul" else (torch.float8_e4m3fn, tl.float32)
    check_scaled_product(op, taken, *matrices)
    a, b, _, _ = matrices
    (M, K), N = a.shape, b.shape[0]
    check_counts(M=M, N=N, K=K)
    return M, N, K, SUM, torch.empty((M, N), dtype=torch.bfloat16, device=a.device)


def tiled(op: str, *matrices: torch.Tensor) -> torch.Tensor:
    a, b, scale_a, scale_b = matrices
    M, N, K, SUM, c = checked(op, (a, b, scale_a, scale_b))
    if c.numel() == 0:
        return c
    check_strides(K, stride_ak=a.stride(1), stride_bk=b.stride(1))
    BLOCK_M, BLOCK_N = 128, 128
    grid = (cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N),)
    strides = (*a.stride(), *b.stride(), *scale_a.stride(), *scale_b.stride())
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": 64, "GROUP_M": 8}
    scaled_matmul_tiled_kernel[grid](
        a, b, scale_a, scale_b, c, M, N, K, *strides, SUM, **tile, num_warps=4, num_stages=4
    )
    return c


WARPS_AND_STAGES = {256: (8, 3), 128: (8, 4), 64: (4, 8)}
"""By BLOCK_N."""


def tile_for(M: int, N: int, programs: int) -> int:
    """BLOCK_N of the tile of 128 rows with which the last of so many resident programs finishes first.

    A tile costs its width plus about 96 columns for prologue and epilogue, times the number of tiles that a
    program processes in sequence.
    """

    def columns(BLOCK_N: int) -> int:
        return cdiv(cdiv(M, 128) * cdiv(N, BLOCK_N), programs) * (BLOCK_N + 96)

    return min(WARPS_AND_STAGES, key=columns)


def persistent(
    op: str, *matrices: torch.Tensor, BLOCK_M: int = 0, BLOCK_N: int = 0, WARPS: int = 0, STAGES: int = 0
) -> torch.Tensor:
    a, b, scale_a, scale_b = matrices
    M, N, K, SUM, c = checked(op, (a, b, scale_a, scale_b))
    if c.numel() == 0 or K == 0:
        return c.zero_()  # TMA does not take an empty matrix
    check_coordinates(M=M, N=N, K=K)
    a, b = for_tma(a), for_tma(b)
    processors = multiprocessors(a.device)
    BLOCK_M = BLOCK_M or (64 if M <= 64 else 128)  # TMA takes longer to fill lines with zeros than to load
    BLOCK_N = BLOCK_N or tile_for(M, N, processors)
    num_warps, num_stages = WARPS_AND_STAGES.get(BLOCK_N, (4, 8))
    num_warps, num_stages = WARPS or num_warps, STAGES or num_stages
    programs = min(processors, cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N))
    strides = (a.stride(0), b.stride(0), *scale_a.stride(), *scale_b.stride())
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": 128, "GROUP_M": 8}
    allocate_descriptors_on(a.device)
    scaled_matmul_persistent_kernel[(programs,)](
        a, b, scale_a, scale_b, c, M, N, K, *strides, SUM, C_ALIGNED=N % 8 == 0, **tile,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return c


STAGES_IN_GLUON = {256: 4, 128: 6, 64: 8}
"""By BLOCK_N."""

BYTES_SWIZZLED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)


def in_gluon(op: str, *matrices: torch.Tensor) -> torch.Tensor:
    a, b, scale_a, scale_b = matrices
    M, N, K, SUM, c = checked(op, (a, b, scale_a, scale_b))
    check_coordinates(M=M, N=N, K=K)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    processors = multiprocessors(a.device)
    BLOCK_M, BLOCK_N = 128, tile_for(M, N, processors)
    a_desc = TensorDescriptor.from_tensor(for_tma(a), [64, 128], BYTES_SWIZZLED)
    b_desc = TensorDescriptor.from_tensor(for_tma(b), [BLOCK_N, 128], BYTES_SWIZZLED)
    C_ALIGNED = N % 8 == 0
    c_desc = TensorDescriptor.from_tensor(c, [64, 64], SWIZZLED) if C_ALIGNED else None
    programs = min(processors, cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N))
    constants = {"C_ALIGNED": C_ALIGNED, "BLOCK_N": BLOCK_N, "GROUP_M": 8, "STAGES": STAGES_IN_GLUON[BLOCK_N]}
    scaled_matmul_gluon_kernel[(programs,)](
        a_desc, b_desc, c_desc, scale_a.contiguous(), scale_b.contiguous(), c, M, N, K, IN_GLUON[SUM],
        C_LAYOUT=SWIZZLED, **constants, num_warps=4,
    )  # fmt: skip
    return c
