"""fp8_block_matmul in Triton: ``a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N]``.

Variants; ``cuda_impl/kernels/fp8_block_matmul.cuh`` has persistent under the same name:

* ``tiled``: one program per tile of c: a product of 128 of K, scaled and added to fp32 sums, per iteration
* ``persistent``: as many programs as are resident compute tile after tile, with TMA loads and stores
* ``gluon``: as persistent in Gluon, Triton's lower-level language: explicit warp specialization and mbarriers

A product of e4m3 needs tensor cores that have it: sm_89.
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

from compare.arguments import check_block_product
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, check_strides
from triton_impl.matmul import (
    CONSUMERS,
    PIECE,
    SWIZZLED,
    async_store,
    grouped_tile,
    grouped_tile_in_gluon,
    halves,
)
from triton_impl.scaled_matmul import BYTES_SWIZZLED, STAGES_IN_GLUON, produce, tile_for
from triton_impl.tma import allocate_descriptors_on, check_coordinates, for_tma

BLOCK_K = tl.constexpr(128)
"""Of K, and of N, that share a scale."""


@triton.jit
def load_scales_a(scale_a_ptr, m, block, M, stride_sam, stride_sak):
    """A block's scales of these rows of a."""
    return tl.load(scale_a_ptr + m * stride_sam + block * stride_sak, mask=m < M, other=0.0)


@triton.jit
def load_scale_b(scale_b_ptr, n, block, stride_sbn, stride_sbk):
    """A block's scale of the tile that begins at row n of b; the tile lies in one block of rows."""
    return tl.load(scale_b_ptr + n // BLOCK_K * stride_sbn + block * stride_sbk)


@triton.jit
def fp8_block_matmul_tiled_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sam, stride_sak, stride_sbn, stride_sbk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of c, in grouped order.  BLOCK_N divides 128."""
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n * stride_bn
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in range(tl.cdiv(K, BLOCK_K)):
        left = K - block * BLOCK_K
        a = tl.load(a_ptrs, mask=(m < M) & (k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n < N), other=0.0)
        scale_a = load_scales_a(scale_a_ptr, m, block, M, stride_sam, stride_sak)
        scale_b = load_scale_b(scale_b_ptr, tile_n * BLOCK_N, block, stride_sbn, stride_sbk)
        total += tl.dot(a, b) * (scale_a * scale_b)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    tl.store(c_ptr + m * N + n, total.to(tl.bfloat16), mask=(m < M) & (n < N))


@triton.jit
def fp8_block_matmul_persistent_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K, stride_a, stride_b,
    stride_sam, stride_sak, stride_sbn, stride_sbk, C_ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles are assigned round-robin.

    TMA loads and stores through descriptors, which know the matrix bounds and fill with zeros.  Rows of a and
    b are 16-byte aligned; rows of c, if C_ALIGNED.  Scales are loaded a block ahead: the pipeliner moves only
    loads that a dot reads.
    """
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_a, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [stride_b, 1], [BLOCK_N, BLOCK_K])
    if C_ALIGNED:
        c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile_m, tile_n = grouped_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        rows = m.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        last = tl.cdiv(K, BLOCK_K) - 1
        next_a = load_scales_a(scale_a_ptr, rows, 0, M, stride_sam, stride_sak)
        next_b = load_scale_b(scale_b_ptr, n, 0, stride_sbn, stride_sbk)
        for block in range(last + 1):
            a = a_desc.load([m, block * BLOCK_K])
            b = b_desc.load([n, block * BLOCK_K])
            scale = next_a * next_b
            next_block = min(block + 1, last)
            next_a = load_scales_a(scale_a_ptr, rows, next_block, M, stride_sam, stride_sak)
            next_b = load_scale_b(scale_b_ptr, n, next_block, stride_sbn, stride_sbk)
            total += tl.dot(a, b.T) * scale
        if C_ALIGNED:
            c_desc.store([m, n], total.to(tl.bfloat16))
        else:
            columns = n + tl.arange(0, BLOCK_N)[None, :]
            inside = (rows < M) & (columns < N)
            tl.store(c_ptr + rows * N + columns, total.to(tl.bfloat16), mask=inside)


# --------------------------------------------------------------------------- Gluon
# Only register allocation and addressing are left to the compiler.  sm_90a.


@gluon.jit
def consume(
    ring, output, scales, sizes, C_ALIGNED: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiplies its 64 rows of a stage, by 128 columns at a time; scales and adds.

    While it scales and adds partial sums, the other consumer's products run.  Scales are loaded a block of K
    ahead.
    """
    a_tiles, b_tiles, full, empty = ring
    c_desc, c_ptr, c_tiles = output
    scale_a_ptr, scale_b_ptr = scales
    M, N, K = sizes
    BLOCK_M: gl.constexpr = CONSUMERS * PIECE
    PART_N: gl.constexpr = b_tiles.shape[1]
    PARTS: gl.constexpr = BLOCK_N // PART_N
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART_N, 32])
    ROWS: gl.constexpr = gl.SliceLayout(1, SUMS)
    nothing = gl.zeros([PIECE, PART_N], gl.float32, SUMS)
    step = 0
    blocks = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile_in_gluon(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M + CONSUMER * PIECE, tile_n * BLOCK_N
        # Rows and columns behind the last one take its scales: their sums are not stored.
        rows = gl.minimum(m + gl.arange(0, PIECE, ROWS), M - 1)
        of_m_ptrs = scale_a_ptr + rows.to(gl.int64) * blocks
        of_left_ptr = scale_b_ptr + n // BLOCK_K * blocks
        of_right_ptr = scale_b_ptr + gl.minimum(n + BLOCK_K, N - 1) // BLOCK_K * blocks
        left, right = nothing, nothing
        next_a, next_left, next_right = gl.load(of_m_ptrs), gl.load(of_left_ptr), gl.load(of_right_ptr)
        for block in range(blocks):
            stage = step % STAGES
            scale_left, scale_right = next_a * next_left, next_a * next_right
            next_block = gl.minimum(block + 1, blocks - 1)
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            a = a_tiles.index(stage * CONSUMERS + CONSUMER)
            b = b_tiles.index(stage * PARTS).permute([1, 0])

            part = hopper.warpgroup_mma(a, b, nothing, use_acc=False, is_async=True)
            next_a = gl.load(of_m_ptrs + next_block)
            next_left = gl.load(of_left_ptr + next_block)
            next_right = gl.load(of_right_ptr + next_block)
            part = hopper.warpgroup_mma_wait(0, [part])
            left += part * scale_left[:, None]
            # The compiler must not add later: there are no registers for two tiles of partial sums.  So the
            # sums are made operands of a wait, and the next product begins behind a branch.
            if PARTS > 1:
                left = hopper.warpgroup_mma_wait(0, [left])
                if n + PART_N < N:
                    b = b_tiles.index(stage * PARTS + 1).permute([1, 0])
                    part = hopper.warpgroup_mma(a, b, nothing, use_acc=False, is_async=True)
                    part = hopper.warpgroup_mma_wait(0, [part])
                    right += part * scale_right[:, None]
            mbarrier.arrive(empty.index(stage))
            step += 1

        pieces = (left,)
        if PART_N > PIECE:
            pieces = halves(left)
        if PARTS > 1:
            pieces = pieces + halves(right)
        for i in gl.static_range(BLOCK_N // PIECE):
            piece = pieces[i].to(gl.bfloat16)
            if C_ALIGNED:
                c_tile = c_tiles.index(CONSUMER * 2 + i % 2)
                # The store that last read this buffer has finished: of a tile's only piece, the last one.
                tma.store_wait(1 if BLOCK_N > PIECE else 0)
                c_tile.store(piece)
                hopper.fence_async_shared()
                async_store(c_desc, [m, n + i * PIECE], c_tile)
            else:
                c_rows = m + gl.arange(0, PIECE, gl.SliceLayout(1, piece.type.layout))[:, None]
                columns = n + i * PIECE + gl.arange(0, PIECE, gl.SliceLayout(0, piece.type.layout))[None, :]
                c_ptrs = c_ptr + c_rows.to(gl.int64) * N + columns
                gl.store(c_ptrs, piece, mask=(c_rows < M) & (columns < N))
    if C_ALIGNED:
        tma.store_wait(0)


@gluon.jit
def fp8_block_matmul_gluon_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K,
    C_ALIGNED: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, C_LAYOUT: gl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles of 128 x BLOCK_N are assigned round-robin.

    A program has nine warps: two consumer warpgroups, each with half of the tile's rows, and one producer
    warp for both.  Between them is a ring of STAGES stages, each with a full and an empty mbarrier.  If
    C_ALIGNED, TMA stores c.
    """
    PART_N: gl.constexpr = b_desc.block_shape[0]
    PARTS: gl.constexpr = BLOCK_N // PART_N
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES * CONSUMERS, PIECE, BLOCK_K], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES * PARTS, PART_N, BLOCK_K], b_desc.layout)
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
            (consume, (ring, output, scales, sizes, C_ALIGNED, BLOCK_N, GROUP_M, STAGES, 0)),
            (consume, (ring, output, scales, sizes, C_ALIGNED, BLOCK_N, GROUP_M, STAGES, 1)),
            (produce, (ring, (a_desc, b_desc), sizes, BLOCK_N, GROUP_M, STAGES)),
        ],
        worker_num_warps=[4, 1],
        worker_num_regs=[240, 24],
    )


def checked(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> tuple[int, int, int, torch.Tensor]:
    """M, N, K and an uninitialised c."""
    check_block_product("fp8_block_matmul", a, b, scale_a, scale_b)
    (M, K), N = a.shape, b.shape[0]
    check_counts(M=M, N=N, K=K)
    (blocks_n, blocks_k), most = scale_b.shape, max(scale_b.shape)
    check_strides(blocks_k, most, stride_sak=scale_a.stride(1), stride_sbk=scale_b.stride(1))
    check_strides(blocks_n, most, stride_sbn=scale_b.stride(0))
    return M, N, K, torch.empty((M, N), dtype=torch.bfloat16, device=a.device)


def tile_of(M: int, N: int, processors: int) -> dict[str, int]:
    """The largest tile that keeps four fifths of the multiprocessors at work, else the smallest."""
    tiles = ((128, 128), (64, 128), (64, 64))
    enough = (t for t in tiles if 5 * cdiv(M, t[0]) * cdiv(N, t[1]) >= 4 * processors)
    BLOCK_M, BLOCK_N = next(enough, tiles[-1])
    return {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "GROUP_M": 8}


def vectorizable(x: torch.Tensor) -> torch.Tensor:
    """``x`` unless its rows are contiguous but misaligned: then a copy with zeros up to a multiple of 16.

    Triton loads 16 bytes at once only if it knows that strides and the limit of K are multiples of 16.
    """
    rows, K = x.shape
    if x.stride(1) != 1 or (x.stride(0) % 16 == 0 and K % 16 == 0) or K < 16:
        return x
    padded = x.new_zeros((rows, cdiv(K, 16) * 16))
    padded[:, :K].copy_(x)
    return padded


@implementation("fp8_block_matmul", "triton.tiled", level="tensor_core", requires="sm_89")
def tiled(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    M, N, K, c = checked(a, b, scale_a, scale_b)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    a, b = vectorizable(a), vectorizable(b)
    K = min(a.shape[1], b.shape[1])  # of either alone, zeros would meet what lies beyond the other's rows
    check_strides(K, stride_ak=a.stride(1), stride_bk=b.stride(1))
    tile = tile_of(M, N, multiprocessors(a.device))
    grid = (cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"]),)
    strides = (*a.stride(), *b.stride(), *scale_a.stride(), *scale_b.stride())
    num_warps = 8 if tile["BLOCK_M"] == 128 else 4
    fp8_block_matmul_tiled_kernel[grid](
        a, b, scale_a, scale_b, c, M, N, K, *strides, **tile, num_warps=num_warps, num_stages=4
    )
    return c


STAGES_OF = {(128, 128): 4, (64, 128): 6, (64, 64): 8}
"""Stages of the pipeline, by BLOCK_M and BLOCK_N."""

TUNABLE = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "WARPS": (4, 8), "STAGES": (3, 4, 5, 6, 8)}


@implementation("fp8_block_matmul", "triton.persistent", level="hopper", requires="sm_90", tunable=TUNABLE)
def persistent(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    BLOCK_M: int = 0,
    BLOCK_N: int = 0,
    WARPS: int = 0,
    STAGES: int = 0,
) -> torch.Tensor:
    M, N, K, c = checked(a, b, scale_a, scale_b)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    check_coordinates(M=M, N=N, K=K)
    a, b = for_tma(a), for_tma(b)
    processors = multiprocessors(a.device)
    tile = tile_of(M, N, processors)
    tile = {**tile, "BLOCK_M": BLOCK_M or tile["BLOCK_M"], "BLOCK_N": BLOCK_N or tile["BLOCK_N"]}
    programs = min(processors, cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"]))
    strides = (a.stride(0), b.stride(0), *scale_a.stride(), *scale_b.stride())
    allocate_descriptors_on(a.device)
    num_warps = WARPS or (8 if tile["BLOCK_M"] == 128 else 4)
    num_stages = STAGES or STAGES_OF.get((tile["BLOCK_M"], tile["BLOCK_N"]), 4)
    fp8_block_matmul_persistent_kernel[(programs,)](
        a, b, scale_a, scale_b, c, M, N, K, *strides, C_ALIGNED=N % 8 == 0, **tile,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return c


@implementation(
    "fp8_block_matmul",
    "triton.gluon",
    level="hopper",
    requires="sm_90a",
    without_gpu=False,
    tunable={"GROUP_M": (4, 8, 16)},
)
def in_gluon(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    GROUP_M: int = 16,
) -> torch.Tensor:
    M, N, K, c = checked(a, b, scale_a, scale_b)
    check_coordinates(M=M, N=N, K=K)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    processors = multiprocessors(a.device)
    BLOCK_M, BLOCK_N = 128, tile_for(M, N, processors)
    STAGES = STAGES_IN_GLUON[BLOCK_N]
    a_desc = TensorDescriptor.from_tensor(for_tma(a), [64, 128], BYTES_SWIZZLED)
    b_desc = TensorDescriptor.from_tensor(for_tma(b), [min(BLOCK_N, 128), 128], BYTES_SWIZZLED)
    C_ALIGNED = N % 8 == 0
    c_desc = TensorDescriptor.from_tensor(c, [64, 64], SWIZZLED) if C_ALIGNED else None
    programs = min(processors, cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N))
    constants = {"BLOCK_N": BLOCK_N, "GROUP_M": GROUP_M, "STAGES": STAGES}
    fp8_block_matmul_gluon_kernel[(programs,)](
        a_desc, b_desc, c_desc, scale_a.contiguous(), scale_b.contiguous(), c, M, N, K,
        C_ALIGNED, C_LAYOUT=SWIZZLED, **constants, num_warps=4,
    )  # fmt: skip
    return c
