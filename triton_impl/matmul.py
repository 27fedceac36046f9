"""matmul in Triton: ``a[M,K], b[K,N] -> c[M,N]``, accumulated in fp32.

Variants, slow to fast; those also in ``cuda_impl/kernels/matmul/`` have the same name there:

* ``naive``: one program per small tile of c, one term of every sum per iteration, straight from global memory
* ``tiled``: one program per tile of c, ``tl.dot``: tensor cores, each element loaded BLOCK times less often
* ``grouped``: as tiled, in grouped tile order: programs that run at a time share operands in the L2
* ``autotuned``: as grouped, with tile, warps and stages autotuned for these sizes
* ``persistent``: persistent kernel, one program per multiprocessor (fp32: four), round-robin tile scheduling;
  TMA loads and stores
* ``gluon``: as persistent in Gluon, Triton's lower-level language: explicit warp specialization and mbarriers
* ``split_k``: the tile of the least predicted time: programs may split K of one tile, and a second kernel
  adds their sums; tiles of more than 64 rows as in ``gluon``
* ``skinny``: for few rows of a: as tiled, with a tile of 16 rows, the fewest that ``tl.dot`` multiplies;
  K is split as in ``split_k`` where tiles are few

Every kernel takes both strides of a and b; c is contiguous.  fp32 products have IEEE precision, never TF32.
"""

from __future__ import annotations

import functools
import itertools

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from compare.arguments import check_product
from compare.device import arch, capability, multiprocessors, shared_bytes_of_a_block
from compare.registry import implementation
from compare.tiles import LINE, Machine, Tile, fastest, predicted_us
from triton_impl.counts import cdiv, check_counts, check_strides
from triton_impl.tma import allocate_descriptors_on, check_coordinates, rows_for_tma


@triton.jit
def matmul_naive_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of c, row by row.  Each term is the outer product of a column and a row."""
    tile = tl.program_id(0).to(tl.int64)
    tiles_n = tl.cdiv(N, BLOCK_N)
    m = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    a_ptrs = a_ptr + m * stride_am
    b_ptrs = b_ptr + n * stride_bn
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(K):
        a = tl.load(a_ptrs, mask=m < M, other=0.0).to(tl.float32)
        b = tl.load(b_ptrs, mask=n < N, other=0.0).to(tl.float32)
        total += a * b
        a_ptrs += stride_ak
        b_ptrs += stride_bk
    tl.store(c_ptr + m * N + n, total.to(c_ptr.dtype.element_ty), mask=(m < M) & (n < N))


@triton.jit
def compute_tile(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, tile_m, tile_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of c: BLOCK_M rows of a times BLOCK_N columns of b, BLOCK_K terms per iteration."""
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n * stride_bn
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, K, BLOCK_K):
        left = K - begin
        a = tl.load(a_ptrs, mask=(m < M) & (k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n < N), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    tl.store(c_ptr + m * N + n, total.to(c_ptr.dtype.element_ty), mask=(m < M) & (n < N))


@triton.jit
def grouped_tile(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Coordinates of the tile-th tile in grouped order: down GROUP_M tiles, then one to the right, and so on.

    The programs that run at a time then cover a part of c about as high as wide.  That needs the fewest rows
    of a and columns of b, which stay in the L2.
    """
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tile // (GROUP_M * tiles_n)
    first_m = group * GROUP_M
    height = min(tiles_m - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return first_m + within % height, within // height


@triton.jit
def matmul_tiled_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of c, row by row."""
    tile = tl.program_id(0)
    tiles_n = tl.cdiv(N, BLOCK_N)
    compute_tile(
        a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        tile // tiles_n, tile % tiles_n, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


@triton.jit
def matmul_grouped_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of c, in grouped order (GROUP_M rows of tiles)."""
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    compute_tile(
        a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        tile_m, tile_n, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


INTERPRETED = triton.knobs.runtime.interpret


def space() -> list[triton.Config]:
    """The search space of autotuned; the first two are the defaults for 16-bit elements and for fp32."""
    tiles = (
        # BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages
        (128, 128, 32, 4, 4),
        (64, 64, 16, 4, 4),
        (128, 256, 64, 8, 3),
        (256, 128, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 128, 64, 4, 3),
        (128, 64, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (64, 64, 64, 4, 4),
        (64, 32, 64, 4, 5),
    )
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=warps, num_stages=stages
        )
        for m, n, k, warps, stages in tiles
    ]


WORTH_TUNING = 1 << 27
"""M * N * K below which every configuration takes less time than a launch."""


def worth_trying(configs: list[triton.Config], named: dict[str, object], **_: object) -> list[triton.Config]:
    """The configurations to time: all, except for small products and for fp32, whose tiles are small."""
    sizes = [int(named[name]) for name in ("M", "N", "K")]  # type: ignore[call-overload]
    if sizes[0] * sizes[1] * sizes[2] < WORTH_TUNING:
        return [c for c in configs if c.kwargs["BLOCK_M"] == c.kwargs["BLOCK_N"] == c.kwargs["BLOCK_K"]]
    if named["a_ptr"].dtype is torch.float32:  # type: ignore[attr-defined]
        return [c for c in configs if c.kwargs["BLOCK_M"] * c.kwargs["BLOCK_N"] <= 128 * 128]
    return configs


# The interpreter does not time: it takes the default.
matmul_autotuned_kernel = triton.autotune(
    space()[:1] if INTERPRETED else space(),
    key=["M", "N", "K", "stride_am", "stride_bk"],
    prune_configs_by={"early_config_prune": worth_trying},
)(matmul_grouped_kernel)


@triton.jit
def matmul_persistent_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_a, stride_b,
    A_BY_ROWS: tl.constexpr, B_BY_ROWS: tl.constexpr, C_ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    FLATTEN: tl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles are assigned round-robin.

    TMA loads through descriptors, which know the matrix bounds and fill with zeros.  With FLATTEN, the loops
    over tiles and over K are one, so that a tile's first loads are issued before the last tile's output is
    written. The output is stored in two halves, which halves its shared memory.  Rows of a and b (columns, if
    column-major) are 16-byte aligned; rows of c, if C_ALIGNED.
    """
    if A_BY_ROWS:
        a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_a, 1], [BLOCK_M, BLOCK_K])
    else:
        a_desc = tl.make_tensor_descriptor(a_ptr, [K, M], [stride_a, 1], [BLOCK_K, BLOCK_M])
    if B_BY_ROWS:
        b_desc = tl.make_tensor_descriptor(b_ptr, [K, N], [stride_b, 1], [BLOCK_K, BLOCK_N])
    else:
        b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [stride_b, 1], [BLOCK_N, BLOCK_K])
    if C_ALIGNED:
        c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])

    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        tile_m, tile_n = grouped_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([m, k]) if A_BY_ROWS else a_desc.load([k, m]).T
            b = b_desc.load([k, n]) if B_BY_ROWS else b_desc.load([n, k]).T
            total = tl.dot(a, b, total, input_precision="ieee")
        halves = tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1])
        left, right = tl.split(halves)
        if C_ALIGNED:
            c_desc.store([m, n], left.to(c_ptr.dtype.element_ty))
            c_desc.store([m, n + BLOCK_N // 2], right.to(c_ptr.dtype.element_ty))
        else:
            rows = m.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
            columns = n + tl.arange(0, BLOCK_N // 2)[None, :]
            c_ptrs = c_ptr + rows * N + columns
            tl.store(c_ptrs, left.to(c_ptr.dtype.element_ty), mask=(rows < M) & (columns < N))
            columns += BLOCK_N // 2
            tl.store(
                c_ptrs + BLOCK_N // 2,
                right.to(c_ptr.dtype.element_ty),
                mask=(rows < M) & (columns < N),
            )


# --------------------------------------------------------------------------- Gluon
# Only register allocation and addressing are left to the compiler.  Tiles in shared memory consist of 64 x 64
# pieces, as in CUDA, whose rows of 128 bytes TMA swizzles.  sm_90a.

# Triton 3.9 renamed these two.
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
async_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

PIECE = gl.constexpr(64)
CONSUMERS = gl.constexpr(2)
"""Of a tile of 128 rows, for the kernels that import it."""


grouped_tile_in_gluon = gluon.jit(grouped_tile.fn)


@gluon.jit
def produce_gluon(
    ring, operands, sizes, A_BY_ROWS: gl.constexpr, B_BY_ROWS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Producer, one warp: waits for a stage to be empty, then issues the TMA loads that fill it."""
    a_tiles, b_tiles, full, empty = ring
    a_desc, b_desc = operands
    M, N, K = sizes
    PIECES: gl.constexpr = BLOCK_M // PIECE
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile_in_gluon(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        for k in range(0, K, PIECE):
            stage = step % STAGES
            landed = full.index(stage)
            mbarrier.wait(empty.index(stage), step // STAGES & 1 ^ 1)
            mbarrier.expect(landed, (BLOCK_M + BLOCK_N) * PIECE * 2)
            for i in gl.static_range(PIECES):
                at = [m + i * PIECE, k] if A_BY_ROWS else [k, m + i * PIECE]
                async_load(a_desc, at, landed, a_tiles.index(stage * PIECES + i))
            at = [k, n] if B_BY_ROWS else [n, k]
            async_load(b_desc, at, landed, b_tiles.index(stage))
            step += 1


@gluon.jit
def halves(x):
    """The left and the right half of a tile's columns; no element moves between threads."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()


@gluon.jit
def consume_gluon(
    ring, output, sizes,
    A_BY_ROWS: gl.constexpr, B_BY_ROWS: gl.constexpr, C_ALIGNED: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    CONSUMER: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: waits for a stage to be full, multiplies its 64 rows, releases the previous stage.

    One wgmma is in flight meanwhile.  The sums are stored in pieces, two of which may be in flight.
    """
    a_tiles, b_tiles, full, empty = ring
    c_desc, c_ptr, c_tiles = output
    M, N, K = sizes
    PIECES: gl.constexpr = BLOCK_M // PIECE
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile_in_gluon(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M + CONSUMER * PIECE, tile_n * BLOCK_N
        total = gl.zeros([PIECE, BLOCK_N], gl.float32, SUMS)
        for k in range(0, K, PIECE):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            a = a_tiles.index(stage * PIECES + CONSUMER)
            b = b_tiles.index(stage)
            a = a if A_BY_ROWS else a.permute([1, 0])
            b = b if B_BY_ROWS else b.permute([1, 0])
            total = hopper.warpgroup_mma(a, b, total, use_acc=k > 0, is_async=True)
            total = hopper.warpgroup_mma_wait(1, [total])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        total = hopper.warpgroup_mma_wait(0, [total])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))

        pieces = halves(total)
        if BLOCK_N == 4 * PIECE:
            pieces = halves(pieces[0]) + halves(pieces[1])
        for i in gl.static_range(BLOCK_N // PIECE):
            piece = pieces[i].to(c_ptr.dtype.element_ty)
            if C_ALIGNED:
                c_tile = c_tiles.index(CONSUMER * 2 + i % 2)
                tma.store_wait(1)  # the store that last read this buffer has finished
                c_tile.store(piece)
                hopper.fence_async_shared()
                async_store(c_desc, [m, n + i * PIECE], c_tile)
            else:
                rows = m + gl.arange(0, PIECE, gl.SliceLayout(1, piece.type.layout))[:, None]
                columns = n + i * PIECE + gl.arange(0, PIECE, gl.SliceLayout(0, piece.type.layout))[None, :]
                c_ptrs = c_ptr + rows.to(gl.int64) * N + columns
                gl.store(c_ptrs, piece, mask=(rows < M) & (columns < N))
    if C_ALIGNED:
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K"])
def matmul_gluon_kernel(
    a_desc, b_desc, c_desc, c_ptr, M, N, K,
    A_BY_ROWS: gl.constexpr, B_BY_ROWS: gl.constexpr, C_ALIGNED: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles of BLOCK_M x BLOCK_N assigned round-robin.

    A program has two or three consumer warpgroups, each with 64 of the tile's rows, and one producer warp for
    all.  Between them is a ring of STAGES stages, each with a full and an empty mbarrier.  If C_ALIGNED, TMA
    stores c.
    """
    PIECES: gl.constexpr = BLOCK_M // PIECE
    T: gl.constexpr = c_ptr.dtype.element_ty
    a_tiles = gl.allocate_shared_memory(T, [STAGES * PIECES, PIECE, PIECE], a_desc.layout)
    LINES: gl.constexpr = b_desc.block_type.shape
    b_tiles = gl.allocate_shared_memory(T, [STAGES, LINES[0], LINES[1]], b_desc.layout)
    c_tiles = gl.allocate_shared_memory(T, [PIECES * 2, PIECE, PIECE], a_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=PIECES)
    hopper.fence_async_shared()

    ring = (a_tiles, b_tiles, full, empty)
    operands = (a_desc, b_desc)
    output = (c_desc, c_ptr, c_tiles)
    sizes = (M, N, K)
    gl.warp_specialize(
        [
            (
                consume_gluon,
                (ring, output, sizes, A_BY_ROWS, B_BY_ROWS, C_ALIGNED, BLOCK_M, BLOCK_N, GROUP_M, STAGES, i),
            )
            if i < PIECES
            else (
                produce_gluon,
                (ring, operands, sizes, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, GROUP_M, STAGES),
            )
            for i in (0, 1, 2, 3)[: PIECES + 1]
        ],
        worker_num_warps=[4] * (PIECES - 1) + [1],
        worker_num_regs=[240 if PIECES == 2 else 160] * (PIECES - 1) + [24],
    )


@triton.jit
def no_epilogue(sums, n, N, bias_ptr, stride_bias):
    return sums


@triton.jit(do_not_specialize=["M", "K", "part"])
def matmul_split_k_kernel(
    a_desc, b_desc, c_ptr, sums_ptr, bias_ptr, M, N, K, part, stride_bias,
    A_BY_ROWS: tl.constexpr, B_BY_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """Grid: SPLIT programs per tile of c, in grouped order; each multiplies ``part`` terms of K.

    Their sums are sums[SPLIT,M,N], which `matmul_add_kernel` adds.  Not split, they are stored to c.
    """
    tile, split = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT
    tile_m, tile_n = grouped_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    begin = split * part
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(begin, min(K, begin + part), BLOCK_K):
        a = a_desc.load([m, k]) if A_BY_ROWS else a_desc.load([k, m]).T
        b = b_desc.load([k, n]) if B_BY_ROWS else b_desc.load([n, k]).T
        total = tl.dot(a, b, total)
    row, column = m + tl.arange(0, BLOCK_M)[:, None], n + tl.arange(0, BLOCK_N)[None, :]
    at = row.to(tl.int64) * N + column
    if SPLIT > 1:
        c_ptr = sums_ptr + split.to(tl.int64) * M * N
    else:
        total = EPILOGUE(total, column, N, bias_ptr, stride_bias)
    tl.store(c_ptr + at, total.to(c_ptr.dtype.element_ty), mask=(row < M) & (column < N))


@triton.jit
def matmul_add_kernel(
    sums_ptr, c_ptr, bias_ptr, elements, N, stride_bias,
    SPLIT: tl.constexpr, EPILOGUE: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: one program per BLOCK elements of c.  Adds sums[SPLIT,elements] in order.

    OVERLAP: programmatic dependent launch: it may start before the kernel that stores the sums has ended.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if OVERLAP:
        gdc_wait()
    total = tl.load(sums_ptr + i, mask=i < elements)
    for _ in tl.static_range(1, SPLIT):
        sums_ptr += elements
        total += tl.load(sums_ptr + i, mask=i < elements)
    total = EPILOGUE(total, i % N, N, bias_ptr, stride_bias)
    tl.store(c_ptr + i, total.to(c_ptr.dtype.element_ty), mask=i < elements)


@triton.jit(do_not_specialize=["M"])
def matmul_skinny_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Grid: for each ``part`` of K one program per tile of c, down c first, as tiles share b.

    c[SPLIT, M, N] holds the sums of each part.  OVERLAP: programmatic dependent launch of the next kernel.
    """
    if OVERLAP:
        gdc_launch_dependents()
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles = tiles_m * tl.cdiv(N, BLOCK_N)
    tile, split = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    begin = split * part
    compute_tile(
        a_ptr + begin * stride_ak, b_ptr + begin * stride_bk, c_ptr + split * M * N, M, N,
        min(K - begin, part), stride_am, stride_ak, stride_bk, stride_bn,
        tile % tiles_m, tile // tiles_m, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


def checked(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int, int, torch.Tensor]:
    """M, N, K and an uninitialised c."""
    check_product("matmul", a, b)
    (M, K), N = a.shape, b.shape[1]
    check_counts(M=M, N=N, K=K)
    return M, N, K, a.new_empty((M, N))


def strides_of(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    check_strides(a.shape[1], stride_ak=a.stride(1), stride_bk=b.stride(0))
    return (*a.stride(), *b.stride())


MOST_PRODUCTS = 1 << 37


@implementation("matmul", "triton.naive", level="naive", algorithm="a dot product per element")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    M, N, K, c = checked(a, b)
    if M * N * K > MOST_PRODUCTS:
        raise NotImplementedError(f"M*N*K={M * N * K}: it would take seconds, at most {MOST_PRODUCTS}")
    if c.numel() == 0:
        return c
    BLOCK_M, BLOCK_N = 32, 32
    grid = (cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N),)
    strides = (*a.stride(), *b.stride())
    matmul_naive_kernel[grid](a, b, c, M, N, K, *strides, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4)
    return c


def default_tile(a: torch.Tensor) -> dict[str, int]:
    """The tile of the untuned variants.  fp32 does not use tensor cores: smaller tiles."""
    if a.dtype is torch.float32:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16}
    return {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32}


@implementation("matmul", "triton.tiled", level="tensor_core")
def tiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    M, N, K, c = checked(a, b)
    if c.numel() == 0:
        return c
    tile = default_tile(a)
    grid = (cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"]),)
    matmul_tiled_kernel[grid](a, b, c, M, N, K, *strides_of(a, b), **tile, num_warps=4, num_stages=4)
    return c


@implementation("matmul", "triton.grouped", level="tensor_core")
def grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    M, N, K, c = checked(a, b)
    if c.numel() == 0:
        return c
    tile = default_tile(a)
    grid = (cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"]),)
    matmul_grouped_kernel[grid](
        a, b, c, M, N, K, *strides_of(a, b), **tile, GROUP_M=8, num_warps=4, num_stages=4
    )
    return c


@implementation("matmul", "triton.autotuned", level="tensor_core", untuned="triton.grouped")
def autotuned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Autotunes at the first call with new sizes, which counts as compiling; later calls reuse the result."""
    M, N, K, c = checked(a, b)
    if c.numel() == 0:
        return c

    def grid(tile: dict[str, int]) -> tuple[int]:
        return (cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"]),)

    matmul_autotuned_kernel[grid](a, b, c, M, N, K, *strides_of(a, b))
    return c


def matrix_for_tma(x: torch.Tensor, align_bytes: int = 16) -> tuple[torch.Tensor, bool, int]:
    """``x`` or an aligned copy, whether it is row-major (else column-major), and its leading stride."""
    if x.stride(1) == 1 or x.stride(0) != 1:
        x = rows_for_tma(x, align_bytes)
        return x, True, x.stride(0)
    x = rows_for_tma(x.t(), align_bytes).t()
    return x, False, x.stride(1)


@implementation(
    "matmul", "triton.persistent", level="hopper", algorithm="tiles by persistent blocks", requires="sm_90"
)
def persistent(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    M, N, K, c = checked(a, b)
    if c.numel() == 0:
        return c
    if K == 0:
        return c.zero_()  # TMA does not take an empty matrix
    check_coordinates(M=M, N=N, K=K)
    (a, A_BY_ROWS, lda), (b, B_BY_ROWS, ldb) = matrix_for_tma(a), matrix_for_tma(b)
    narrow = a.dtype is not torch.float32
    tile = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64} if narrow else default_tile(a)
    tiles = cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"])
    C_ALIGNED = N * c.element_size() % 16 == 0
    allocate_descriptors_on(a.device)
    programs = multiprocessors(a.device) * (1 if narrow else 4)
    constants = {"A_BY_ROWS": A_BY_ROWS, "B_BY_ROWS": B_BY_ROWS, "C_ALIGNED": C_ALIGNED, "FLATTEN": narrow}
    matmul_persistent_kernel[(min(programs, tiles),)](
        a, b, c, M, N, K, lda, ldb, **constants, **tile, GROUP_M=8,
        num_warps=8 if narrow else 4, num_stages=3,
    )  # fmt: skip
    return c


SWIZZLED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


def descriptor(x: torch.Tensor, by_rows: bool, block: list[int]) -> GluonDescriptor:
    """The TMA descriptor of ``x``, or of its transpose if it is column-major."""
    if not by_rows:
        x, block = x.t(), block[::-1]
    return GluonDescriptor.from_tensor(x, block, SWIZZLED)


def check_halves(a: torch.Tensor, M: int, N: int, K: int) -> None:
    """Raises NotImplementedError for operands that are not multiplied by tensor cores from TMA's tiles."""
    if a.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")
    check_coordinates(M=M, N=N, K=K)


@implementation("matmul", "triton.gluon", level="hopper", requires="sm_90a")
def in_gluon(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    M, N, K, c = checked(a, b)
    check_halves(a, M, N, K)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    return by_gluon(a, b, c, BLOCK_M=128, BLOCK_N=256, STAGES=4)


def by_gluon(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, BLOCK_M: int, BLOCK_N: int, STAGES: int
) -> torch.Tensor:
    """c, computed by gluon's kernel with tiles of 128 or 192 x 128, or 128 x 256; K is not 0."""
    (M, K), N = a.shape, b.shape[1]
    (a, A_BY_ROWS, _), (b, B_BY_ROWS, _) = matrix_for_tma(a), matrix_for_tma(b)
    BLOCK_K = 64
    a_desc = descriptor(a, A_BY_ROWS, [64, BLOCK_K])
    b_desc = descriptor(b, B_BY_ROWS, [BLOCK_K, BLOCK_N])
    C_ALIGNED = N * c.element_size() % 16 == 0
    c_desc = descriptor(c, True, [64, 64]) if C_ALIGNED else None
    programs = min(multiprocessors(a.device), cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N))
    constants = {"C_ALIGNED": C_ALIGNED, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "STAGES": STAGES}
    matmul_gluon_kernel[(programs,)](
        a_desc, b_desc, c_desc, c, M, N, K, A_BY_ROWS, B_BY_ROWS, **constants, GROUP_M=8, num_warps=4
    )
    return c


SPLIT_K_TILES = (
    Tile(64, 64, 6, 1, 6, step_us=0.293, tile_us=2.63),
    Tile(64, 64, 9, 1, 1, step_us=0.150, tile_us=0.30),
    Tile(64, 128, 8, 1, 1, step_us=0.230, tile_us=0.28),
    Tile(64, 128, 5, 1, 2, step_us=0.275, tile_us=2.69),
    Tile(64, 128, 8, 1, 4, step_us=0.148, tile_us=3.82),
    Tile(64, 256, 4, 1, 1, step_us=0.342, tile_us=0.61),
    Tile(128, 128, 6, 1, 1, step_us=0.323, tile_us=0.67),
    Tile(128, 256, 4, 1, 1, step_us=0.631, tile_us=1.56),
    Tile(192, 128, 4, 1, 1, step_us=0.486, tile_us=1.12),
)
"""With times on an H200, as those of `H200`: `tools/docs/tiles.py` fits them.  Above 64 rows: by Gluon."""
H200 = Machine(LAUNCH_US=1.30, START_US=4.29, DRAM=4.29e6, L2=19.2e6, UNALIGNED=2.59, OVERLAP=1.85)
COPY_US, COPIED = 2.0, 3.2e6
"""To launch a copy of an operand, and its bytes per microsecond, read and written."""


@functools.lru_cache
def fastest_tile(
    tiles: tuple[Tile, ...],
    M: int,
    N: int,
    K: int,
    lines: tuple[int, int],
    by_rows: tuple[bool, bool],
    processors: int,
) -> tuple[Tile, tuple[int, int]]:
    """The tile of the least predicted time, and the alignment of a's and of b's rows for it, in bytes.

    128: an operand whose rows begin between lines, and lie across K, is copied.  A box of TMA touches twice
    as many of its lines, and a program loads all boxes itself; in CUDA the blocks of a cluster share them.
    Of rows along K the next step reads on in the same lines.
    """

    def of(aligned: tuple[int, ...]) -> tuple[float, Tile]:
        a_line, b_line = (LINE if to == 128 else line for to, line in zip(aligned, lines, strict=True))
        args = M, N, K, (a_line, b_line), processors
        tile = fastest(H200, tiles, *args)
        copied = [K * size for to, size in zip(aligned, (M, N), strict=True) if to == 128]
        copies = sum(COPY_US + 4 * elements / COPIED for elements in copied)
        return predicted_us(H200, tile, *args) + copies, tile

    across = not by_rows[0], by_rows[1]
    choices = [(16, 128) if lies and line % LINE else (16,) for lies, line in zip(across, lines, strict=True)]
    aligned = min(itertools.product(*choices), key=lambda choice: of(choice)[0])
    return of(aligned)[1], aligned


def can_overlap(device: torch.device) -> bool:
    """Whether a kernel there may be launched before the one that it depends on has ended."""
    name = arch(device)
    return not INTERPRETED and name is not None and capability(name) >= 90


def add_sums(
    sums: torch.Tensor,
    c: torch.Tensor,
    epilogue: triton.JITFunction = no_epilogue,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """c[M,N], the sum of sums[SPLIT,M,N], which the kernel before has stored, after ``epilogue``."""
    (SPLIT, M, N), BLOCK, OVERLAP = sums.shape, 512, can_overlap(c.device)
    matmul_add_kernel[(cdiv(M * N, BLOCK),)](
        sums, c, bias, M * N, N, bias.stride(0) if bias is not None else 0,
        SPLIT=SPLIT, EPILOGUE=epilogue, OVERLAP=OVERLAP, BLOCK=BLOCK, num_warps=4, launch_pdl=OVERLAP,
    )  # fmt: skip
    return c


def by_split_k(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    tile: Tile,
    epilogue: triton.JITFunction = no_epilogue,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """c, computed by split_k's kernel from operands for TMA; K is not 0."""
    (M, K), N = a.shape, b.shape[1]
    BLOCK_M, BLOCK_N, STAGES, _, SPLIT, *_ = tile
    BLOCK_K = 64
    A_BY_ROWS, B_BY_ROWS = a.stride(1) == 1, b.stride(1) == 1
    a_block, b_block = [BLOCK_M, BLOCK_K], [BLOCK_K, BLOCK_N]
    a_desc = TensorDescriptor.from_tensor(*((a, a_block) if A_BY_ROWS else (a.t(), a_block[::-1])))
    b_desc = TensorDescriptor.from_tensor(*((b, b_block) if B_BY_ROWS else (b.t(), b_block[::-1])))
    tiles = cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)
    sums = a.new_empty((SPLIT, M, N), dtype=torch.float32) if SPLIT > 1 else None
    part = cdiv(cdiv(K, SPLIT), BLOCK_K) * BLOCK_K
    matmul_split_k_kernel[(tiles * SPLIT,)](
        a_desc, b_desc, c, sums, bias, M, N, K, part, bias.stride(0) if bias is not None else 0,
        A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M=8, SPLIT=SPLIT, EPILOGUE=epilogue,
        num_warps=4, num_stages=STAGES,
    )  # fmt: skip
    return c if sums is None else add_sums(sums, c, epilogue, bias)


@implementation(
    "matmul",
    "triton.split_k",
    level="hopper",
    algorithm="a tile chosen by predicted time, its terms split where tiles are few",
    requires="sm_90",
    tunable={"TILE": range(len(SPLIT_K_TILES) + 1)},
)
def split_k(a: torch.Tensor, b: torch.Tensor, *, TILE: int = 0) -> torch.Tensor:
    """On other architectures, without Gluon's units, the tile has 64 rows."""
    M, N, K, c = checked(a, b)
    check_halves(a, M, N, K)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    (a, A_BY_ROWS, lda), (b, B_BY_ROWS, ldb) = matrix_for_tma(a), matrix_for_tma(b)
    name = arch(a.device)
    tiles = SPLIT_K_TILES if name is not None and capability(name) == 90 else SPLIT_K_TILES[:-3]
    if TILE > len(tiles):  # noqa: SIM300 - the parameter is what is judged
        raise NotImplementedError(f"TILE={TILE}: Gluon's tiles need sm_90; TILE=1 to {len(tiles)} need none")
    tile = SPLIT_K_TILES[TILE - 1]
    if TILE == 0:
        lines, by_rows = (lda, ldb), (A_BY_ROWS, B_BY_ROWS)
        tile, aligned = fastest_tile(tiles, M, N, K, lines, by_rows, multiprocessors(a.device))
        if 128 in aligned:
            a, b = (x for x, *_ in map(matrix_for_tma, (a, b), aligned))
    if tile.BLOCK_M > 64:
        return by_gluon(a, b, c, tile.BLOCK_M, tile.BLOCK_N, tile.STAGES)
    return by_split_k(a, b, c, tile)


SPLITS = (1, 2, 3, 4, 5, 6, 7, 8)


@implementation("matmul", "triton.skinny", level="tensor_core", tunable={"SPLIT": SPLITS})
def skinny(a: torch.Tensor, b: torch.Tensor, *, SPLIT: int = 0) -> torch.Tensor:
    """K is split as long as each multiprocessor has at most one program, and each program a step."""
    M, N, K, c = checked(a, b)
    check_halves(a, M, N, K)
    if c.numel() == 0:
        return c
    BLOCK_M, BLOCK_N, BLOCK_K = 16, 64, 128
    tiles = cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)
    SPLIT = SPLIT or max(1, min(multiprocessors(a.device) // tiles, K // BLOCK_K, SPLITS[-1]))
    part = max(cdiv(cdiv(K, SPLIT), BLOCK_K), 1) * BLOCK_K
    SPLIT = max(cdiv(K, part), 1)  # in whole steps perhaps fewer
    stages = shared_bytes_of_a_block(a.device) // ((BLOCK_M + BLOCK_N) * BLOCK_K * 2)
    sums = c if SPLIT == 1 else c.new_empty((SPLIT, M, N), dtype=torch.float32)
    matmul_skinny_kernel[(tiles * SPLIT,)](
        a, b, sums, M, N, K, *strides_of(a, b), part, BLOCK_M, BLOCK_N, BLOCK_K,
        OVERLAP=SPLIT > 1 and can_overlap(c.device), num_warps=4, num_stages=min(stages, 5),
    )  # fmt: skip
    return c if SPLIT == 1 else add_sums(sums, c)
