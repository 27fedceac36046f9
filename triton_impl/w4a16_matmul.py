"""w4a16_matmul in Triton: ``a[M,K], packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> y[M,N]``.

Variants, slow to fast:

* ``tiled``: one program per tile of y; weights are dequantized in registers, ``tl.dot`` multiplies a group
* ``split_k``: several programs share the groups of a tile, and a second kernel adds their partial sums
* ``transposed``: y.T = w @ a.T, with weights as the left operand; repacked offline, they are loaded in its
  registers' order; the last program of a tile adds the partial sums

Sums of 128 products (a group) have exact terms; they are scaled in fp32, as in
``cuda_impl/kernels/w4a16_matmul.cuh``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from compare.arguments import check_quantized_linear
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl import shared_rows
from triton_impl.counts import MOST_PROGRAMS, cdiv, check_counts
from triton_impl.tma import check_coordinates

OP = "w4a16_matmul"
GROUP = tl.constexpr(128)
WORDS = tl.constexpr(16)
"""Of packed, in a row of a group."""
NIBBLES = tl.constexpr(8)
INTERPRETED = tl.constexpr(shared_rows.INTERPRETED)


@triton.jit
def dequantized(words, zero, dtype: tl.constexpr):
    """q - zero of words[BLOCK_N,WORDS] as [BLOCK_N,GROUP] in that dtype, exact; zero[BLOCK_N,1].

    The bits of 1024 in fp16, or of 128 in bf16, | q are that number + q.  tl.join keeps a word's nibbles in
    one thread, where a broadcast would give each to another.
    """
    ORIGIN: tl.constexpr = 0x6400 if dtype == tl.float16 else 0x4300
    halves = tl.join(words, words >> 16)
    quarters = tl.join(halves, halves >> 8)
    nibbles = tl.join(quarters, quarters >> 4).reshape(words.shape[0], GROUP)
    bits = (nibbles & 15 | ORIGIN).to(tl.int16)
    bias = (zero.to(tl.int16) | ORIGIN).to(dtype, bitcast=True)
    return bits.to(dtype, bitcast=True) - bias


@triton.jit
def multiply_group(
    total, a_ptrs, packed_ptrs, scales_ptrs, zeros_ptrs, m_inside, n_inside, left, WHOLE: tl.constexpr
):
    """total[BLOCK_M,BLOCK_N] += scale * a @ (q - zero).T of one group, with left of its K; WHOLE: all 128."""
    if WHOLE:
        a = tl.load(a_ptrs, mask=m_inside[:, None], other=0.0)
        words = tl.load(packed_ptrs, mask=n_inside[:, None], other=0)
    else:
        k_inside = tl.arange(0, GROUP) < left
        word_inside = tl.arange(0, WORDS) * NIBBLES < left
        a = tl.load(a_ptrs, mask=m_inside[:, None] & k_inside[None, :], other=0.0)
        words = tl.load(packed_ptrs, mask=n_inside[:, None] & word_inside[None, :], other=0)
    zero = tl.load(zeros_ptrs, mask=n_inside, other=0)
    scale = tl.load(scales_ptrs, mask=n_inside, other=0.0)
    w = dequantized(words, zero[:, None], a.dtype)
    return total + tl.dot(a, w.T) * scale.to(tl.float32)[None, :]


@triton.jit
def multiply_groups(
    a_ptr, packed_ptr, scales_ptr, zeros_ptr, m, n, M, N, K, first, end,
    stride_am, stride_ak, stride_pn, stride_pk, stride_sn, stride_sk, stride_zn, stride_zk,
):  # fmt: skip
    """The sum[BLOCK_M,BLOCK_N] of these groups, for rows m and columns n.  The last group may end early."""
    m_inside, n_inside = m < M, n < N
    begin = tl.cast(first, tl.int64)
    k = begin * GROUP + tl.arange(0, GROUP)[None, :]
    word = begin * WORDS + tl.arange(0, WORDS)[None, :]
    a_ptrs = a_ptr + m[:, None] * stride_am + k * stride_ak
    packed_ptrs = packed_ptr + n[:, None] * stride_pn + word * stride_pk
    scales_ptrs = scales_ptr + n * stride_sn + begin * stride_sk
    zeros_ptrs = zeros_ptr + n * stride_zn + begin * stride_zk
    total = tl.zeros([m.shape[0], n.shape[0]], tl.float32)
    whole = tl.minimum(end, K // GROUP)
    # 64-bit: a and packed may be transposed, with strides of as many elements as they have rows.
    step_a, step_packed = tl.cast(stride_ak, tl.int64) * GROUP, tl.cast(stride_pk, tl.int64) * WORDS
    for _ in range(first, whole):
        total = multiply_group(
            total, a_ptrs, packed_ptrs, scales_ptrs, zeros_ptrs, m_inside, n_inside, GROUP, True
        )
        a_ptrs += step_a
        packed_ptrs += step_packed
        scales_ptrs += stride_sk
        zeros_ptrs += stride_zk
    if whole < end:
        total = multiply_group(
            total, a_ptrs, packed_ptrs, scales_ptrs, zeros_ptrs, m_inside, n_inside, K % GROUP, False
        )
    return total


@triton.jit
def w4a16_matmul_tiled_kernel(
    a_ptr, packed_ptr, scales_ptr, zeros_ptr, y_ptr, M, N, K,
    stride_am, stride_ak, stride_pn, stride_pk, stride_sn, stride_sk, stride_zn, stride_zk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of y, along M first: neighbours read the same weights."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    m = (tl.program_id(0) % tiles_m).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // tiles_m).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = multiply_groups(
        a_ptr, packed_ptr, scales_ptr, zeros_ptr, m, n, M, N, K,
        0, tl.cdiv(K, GROUP), stride_am, stride_ak, stride_pn, stride_pk, stride_sn, stride_sk, stride_zn,
        stride_zk,
    )  # fmt: skip
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(y_ptr + m[:, None] * N + n[None, :], total.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def w4a16_matmul_split_k_kernel(
    a_ptr, packed_ptr, scales_ptr, zeros_ptr, parts_ptr, M, N, K, splits,
    stride_am, stride_ak, stride_pn, stride_pk, stride_sn, stride_sk, stride_zn, stride_zk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: program tile * splits + split.  Writes parts[splits,M,N] in fp32."""
    split, tile = tl.program_id(0) % splits, tl.program_id(0) // splits
    tiles_m, groups = tl.cdiv(M, BLOCK_M), tl.cdiv(K, GROUP)
    m = (tile % tiles_m).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tile // tiles_m).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = multiply_groups(
        a_ptr, packed_ptr, scales_ptr, zeros_ptr, m, n, M, N, K,
        groups * split // splits, groups * (split + 1) // splits, stride_am, stride_ak, stride_pn, stride_pk,
        stride_sn, stride_sk, stride_zn, stride_zk,
    )  # fmt: skip
    inside = (m[:, None] < M) & (n[None, :] < N)
    part_ptr = parts_ptr + split.to(tl.int64) * M * N
    tl.store(part_ptr + m[:, None] * N + n[None, :], total, mask=inside)


@triton.jit
def w4a16_matmul_add_kernel(parts_ptr, y_ptr, elements, splits, BLOCK: tl.constexpr):
    """parts[splits,elements] -> y[elements].  Grid: one program per BLOCK elements."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    part_ptrs = parts_ptr + i
    for _ in range(splits):
        total += tl.load(part_ptrs, mask=i < elements, other=0.0)
        part_ptrs += elements
    tl.store(y_ptr + i, total.to(y_ptr.dtype.element_ty), mask=i < elements)


def checked(
    a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> tuple[int, int, int, torch.Tensor]:
    """M, N, K and an uninitialised y; zeros if there is nothing to add."""
    check_quantized_linear(OP, a, packed, scales, zeros)
    (M, K), N = a.shape, packed.shape[0]
    check_counts(M=M, N=N, K=K)
    y = torch.empty((M, N), dtype=a.dtype, device=a.device)
    return M, N, K, y if K else y.zero_()


TILES = {16: (64, 4, 4), 32: (64, 4, 4), 64: (128, 8, 4), 128: (64, 8, 3)}
"""BLOCK_N, warps and pipeline stages, by BLOCK_M."""


def tile_of(M: int) -> dict[str, int]:
    """The least tile that has all rows, up to 128."""
    BLOCK_M = next((size for size in TILES if size >= M), 128)
    BLOCK_N, num_warps, num_stages = TILES[BLOCK_M]
    return {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "num_warps": num_warps, "num_stages": num_stages}


@implementation(OP, "triton.tiled", level="tensor_core", requires="sm_80")
def tiled(a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """One program per tile of y."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if y.numel() == 0 or K == 0:
        return y
    tile = tile_of(M)
    strides = (*a.stride(), *packed.stride(), *scales.stride(), *zeros.stride())
    grid = (cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"]),)
    w4a16_matmul_tiled_kernel[grid](a, packed, scales, zeros, y, M, N, K, *strides, **tile)
    return y


MOST_PARTS_BYTES = 64 << 20


def most_splits(groups: int) -> int:
    """A group each, but no more than the kernels count: groups * splits is 32-bit."""
    return min(groups, MOST_PROGRAMS // groups)


@implementation(OP, "triton.split_k", level="tensor_core", requires="sm_80")
def split_k(a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """About four programs per multiprocessor, two of large tiles."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if y.numel() == 0 or K == 0:
        return y
    tile = tile_of(M)
    tiles = cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"])
    programs = (4 if tile["BLOCK_M"] < 64 else 2) * multiprocessors(a.device)
    most = min(programs // tiles, MOST_PARTS_BYTES // (4 * y.numel()))
    splits = max(1, min(most, most_splits(scales.shape[1])))
    if splits == 1:
        return tiled(a, packed, scales, zeros)
    parts = torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
    strides = (*a.stride(), *packed.stride(), *scales.stride(), *zeros.stride())
    w4a16_matmul_split_k_kernel[(tiles * splits,)](
        a, packed, scales, zeros, parts, M, N, K, splits, *strides, **tile
    )
    BLOCK = 512
    w4a16_matmul_add_kernel[(cdiv(y.numel(), BLOCK),)](parts, y, y.numel(), splits, BLOCK=BLOCK, num_warps=4)
    return y


PIECE_N = 64
"""Rows of the weights in a piece: those of one wgmma."""
PIECE_WORDS = PIECE_N * GROUP.value // NIBBLES.value + PIECE_N
"""Of a group of 64 rows: weights, then a scale with the zero point above it for each row."""
ROWS = tl.constexpr(PIECE_N)
QUARTERS = tl.constexpr(PIECE_N * GROUP.value // 4)
"""Numbers of 16 bits with four weights each, in a piece."""
PIECE = tl.constexpr(PIECE_WORDS * 2)
"""The numbers of 16 bits in a piece."""
PIECE_BITS = ("piece", "row_half", "warp", "quad", "in_quad", "word", "parity", "step", "k_half")
"""Of a nibble's place in pieces, high to low.  Thread 32 * warp + 4 * quad + in_quad has 16 bytes, or four
words, of each row_half."""
ROW_BITS, K_BITS = ("piece", "warp", "row_half", "quad"), ("word", "step", "k_half", "in_quad", "parity")
"""Of its row of the product and of its k, high to low: wgmma's operand in registers."""
TO_OPERAND = tl.constexpr(tuple(PIECE_BITS.index(bits) for bits in ROW_BITS + K_BITS))
Prepared = tuple[torch.Tensor, ...]


@triton.jit
def w4a16_matmul_repack_pieces_kernel(
    packed_ptr, scales_ptr, zeros_ptr, pieces_ptr, N, words, groups,
    stride_pn, stride_pk, stride_sn, stride_sk, stride_zn, stride_zk,
    ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Grid: one program per piece, of a group of ROWS rows.  `repack_pieces` says where weights go."""
    tile = (tl.program_id(0) // groups).to(tl.int64)
    group = (tl.program_id(0) % groups).to(tl.int64)
    pieces_ptr += tl.program_id(0).to(tl.int64) * (ROWS * WORDS + ROWS)
    n = tl.arange(0, ROWS * WORDS)
    word, in_quad, quad, warp, row_half = n % 4, n // 4 % 4, n // 16 % 8, n // 128 % 4, n // 512
    row = tile * ROWS + 16 * warp + 2 * quad + row_half
    weights = tl.zeros([ROWS * WORDS], tl.int32)
    for eighth in tl.static_range(4):  # 2 * step + k_half
        k8 = group * WORDS + 4 * word + eighth
        inside = (row < N) & (k8 < words)
        two = tl.load(packed_ptr + row * stride_pn + k8 * stride_pk, mask=inside, other=0) >> 8 * in_quad
        weights |= (two & 15) << 4 * eighth | (two >> 4 & 15) << 4 * eighth + 16
    tl.store(pieces_ptr + n, weights)
    r = tl.arange(0, ROWS)
    row = tile * ROWS + r
    scale = tl.load(scales_ptr + row * stride_sn + group * stride_sk, mask=row < N, other=0).to(tl.int32)
    zero = tl.load(zeros_ptr + row * stride_zn + group * stride_zk, mask=row < N, other=0).to(tl.int32)
    tl.store(pieces_ptr + ROWS * WORDS + r, scale & 0xFFFF | zero << 16)


def repack_pieces(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> Prepared:
    """What `transposed` takes as prepared: pieces[N/64,K/128,1088] in the order of wgmma's operand in
    registers (`PIECE_BITS`), and a counter for each tile, 0 between calls.

    Calls with the same tensors must not overlap, as their programs share the counters.  An aborted launch
    leaves them set: repack.
    """
    N, groups = scales.shape
    tiles = cdiv(N, PIECE_N)
    pieces = packed.new_empty((tiles, groups, PIECE_WORDS))
    if pieces.numel() > 0:
        w4a16_matmul_repack_pieces_kernel[(tiles * groups,)](
            packed, scales.view(torch.int16), zeros, pieces, N, packed.shape[1], groups,
            *packed.stride(), *scales.stride(), *zeros.stride(),
            ROWS=PIECE_N, WORDS=WORDS.value, num_warps=4,
        )  # fmt: skip
    return pieces, packed.new_zeros(tiles * MOST_TILES_M)


def aligned(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows are contiguous and 16-byte aligned, as TMA requires, else such a copy."""
    M, K = x.shape
    if x.stride(1) == 1 and x.stride(0) >= K and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0:
        return x
    return x.new_empty((M, cdiv(K, 8) * 8))[:, :K].copy_(x)


MOST_TILES_M = 8
"""Tiles along M that counters are there for; more rows take no split along K."""


_FOUR = """{{
.reg .b32 by_4, by_8, by_12, origin;
mov.b32 origin, {};
shr.u32 by_4, $4, 4;
shr.u32 by_8, $4, 8;
shr.u32 by_12, $4, 12;
lop3.b32 $0, $4, 0x000f000f, origin, 0xea;
lop3.b32 $1, by_4, 0x000f000f, origin, 0xea;
lop3.b32 $2, by_8, 0x000f000f, origin, 0xea;
lop3.b32 $3, by_12, 0x000f000f, origin, 0xea;
}}"""
FOUR_FP16, FOUR_BF16 = (tl.constexpr(_FOUR.format(origin)) for origin in ("0x64006400", "0x43004300"))


@triton.jit
def four_of(quarters, dtype: tl.constexpr):
    """The four weights of each number of 16 bits, in dimensions step and k_half: ORIGIN + q, in dtype."""
    ORIGIN: tl.constexpr = 0x6400 if dtype == tl.float16 else 0x4300
    if INTERPRETED:
        q0, q1 = quarters & 15 | ORIGIN, quarters >> 4 & 15 | ORIGIN
        q2, q3 = quarters >> 8 & 15 | ORIGIN, quarters >> 12 & 15 | ORIGIN
    else:  # two numbers in a register: one LOP3 masks the bits and adds those of ORIGIN
        PTX: tl.constexpr = FOUR_FP16 if dtype == tl.float16 else FOUR_BF16
        q0, q1, q2, q3 = tl.inline_asm_elementwise(
            PTX,
            "=r,=r,=r,=r,r",
            [quarters],
            dtype=(tl.int16, tl.int16, tl.int16, tl.int16),
            is_pure=True,
            pack=2,
        )
    halves = tl.join(tl.join(q0, q2), tl.join(q1, q3))
    return halves.to(tl.int16).to(dtype, bitcast=True)


@triton.jit
def w4a16_matmul_transposed_kernel(
    a_desc, pieces_ptr, y_ptr, parts_ptr, arrived_ptr, M, N, K, splits,
    BLOCK_M: tl.constexpr, PIECES: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Grid: program tile * splits + split, tiles along M first.  parts[tiles,splits,BLOCK_M,64*PIECES].

    a_desc: boxes of BLOCK_M rows of a group; elements past M and K are 0.  SCALED: each weight is scaled, and
    rounded to a's dtype, so that tl.dot adds all groups; else each group's sum is scaled, in fp32.
    """
    BLOCK_N: tl.constexpr = PIECES * ROWS
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    ORIGIN: tl.constexpr = 0x6400 if dtype == tl.float16 else 0x4300
    split, tile = tl.program_id(0) % splits, tl.program_id(0) // splits
    tiles_m, groups = tl.cdiv(M, BLOCK_M), tl.cdiv(K, GROUP)
    first, end = groups * split // splits, groups * (split + 1) // splits
    begin_m, piece = tile % tiles_m * BLOCK_M, tile // tiles_m * PIECES
    # Row 16 * warp + 8 * row_half + quad of wgmma is column 16 * warp + 2 * quad + row_half of y: a
    # thread's two rows are neighbouring columns.
    row = tl.arange(0, BLOCK_N)
    column = row // 16 * 16 + row % 8 * 2 + row // 8 % 2
    # The last tile's pieces past the end are those of the last one; they are not stored.
    last = tl.cdiv(N, ROWS) - 1
    piece_index = tl.minimum(piece + tl.arange(0, PIECES), last).to(tl.int64) * groups + first
    quarter_ptrs = pieces_ptr + piece_index[:, None] * PIECE + tl.arange(0, QUARTERS)[None, :]
    row_index = tl.minimum(piece + row // ROWS, last).to(tl.int64) * groups + first
    word_ptrs = (
        pieces_ptr.to(tl.pointer_type(tl.int32)) + row_index * (PIECE // 2) + QUARTERS // 2 + column % ROWS
    )
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for group in range(first, end):
        a = a_desc.load([begin_m, group * GROUP])
        # Dimensions of PIECE_BITS, then of ROW_BITS and K_BITS: no element leaves its thread.
        q = four_of(tl.load(quarter_ptrs), dtype).reshape(PIECES, 2, 4, 8, 4, 4, 2, 2, 2)
        w = q.permute(TO_OPERAND.value).reshape(BLOCK_N, GROUP)
        scale_words = tl.load(word_ptrs)
        w -= (scale_words >> 16 | ORIGIN).to(tl.int16).to(dtype, bitcast=True)[:, None]
        scale = scale_words.to(tl.int16).to(dtype, bitcast=True)
        if SCALED:
            total = tl.dot(w * scale[:, None], a.T, total)
        else:
            total += tl.dot(w, a.T) * scale.to(tl.float32)[:, None]
        quarter_ptrs += PIECE
        word_ptrs += PIECE // 2
    m, n = begin_m.to(tl.int64) + tl.arange(0, BLOCK_M), piece.to(tl.int64) * ROWS + column
    if splits == 1:
        y_ptrs = y_ptr + m[None, :] * N + n[:, None]
        tl.store(y_ptrs, total.to(dtype), mask=(m[None, :] < M) & (n[:, None] < N))
    else:
        part_ptr = parts_ptr + tl.program_id(0).to(tl.int64) * (BLOCK_M * BLOCK_N)
        tl.store(part_ptr + tl.arange(0, BLOCK_M)[None, :] * BLOCK_N + column[:, None], total)
        tl.debug_barrier()  # a program that sees the count must see the partial sums
        if tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == splits - 1:
            part_ptrs = parts_ptr + tile.to(tl.int64) * splits * (BLOCK_M * BLOCK_N)
            part_ptrs += tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + row[None, :]
            sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            for _ in range(splits):
                sums += tl.load(part_ptrs, cache_modifier=".cg")
                part_ptrs += BLOCK_M * BLOCK_N
            n = piece.to(tl.int64) * ROWS + row
            y_ptrs = y_ptr + m[:, None] * N + n[None, :]
            tl.store(y_ptrs, sums.to(dtype), mask=(m[:, None] < M) & (n[None, :] < N))
            tl.atomic_xchg(arrived_ptr + tile, 0, sem="relaxed")


TRANSPOSED = {16: (1, 4, 4, 4), 32: (1, 4, 4, 4), 64: (1, 4, 4, 2), 128: (2, 8, 4, 1), 256: (2, 8, 3, 1)}
"""Pieces, warps, pipeline stages and programs per multiprocessor, by BLOCK_M."""


@implementation(
    OP,
    "triton.transposed",
    level="hopper",
    requires="sm_90",
    prepare=repack_pieces,
    tunable={
        "BLOCK_M": (16, 32, 64, 128, 256),
        "PIECES": (1, 2, 4),
        "WARPS": (4, 8),
        "STAGES": (2, 3, 4, 5),
        "PROGRAMS": (1, 2, 3, 4),
    },
)
def transposed(
    a: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    prepared: Prepared | None = None,
    BLOCK_M: int = 0,
    PIECES: int = 0,
    WARPS: int = 0,
    STAGES: int = 0,
    PROGRAMS: int = 0,
) -> torch.Tensor:
    """Weights as the left operand, in registers; about PROGRAMS programs per multiprocessor."""
    M, N, K, y = checked(a, packed, scales, zeros)
    check_coordinates(M=M, K=K)
    if y.numel() == 0 or K == 0:
        return y
    pieces, arrived = repack_pieces(packed, scales, zeros) if prepared is None else prepared
    groups = scales.shape[1]
    if pieces.shape != (cdiv(N, PIECE_N), groups, PIECE_WORDS):
        found = tuple(pieces.shape)
        raise ValueError(f"{OP}: prepared has shape {found}; it takes what repack_pieces returns")
    BLOCK_M = BLOCK_M or next((rows for rows in TRANSPOSED if rows >= M), 256)
    tile = TRANSPOSED[BLOCK_M]
    PIECES, WARPS, STAGES = PIECES or tile[0], WARPS or tile[1], STAGES or tile[2]
    PROGRAMS = PROGRAMS or tile[3]
    tiles_m, BLOCK_N = cdiv(M, BLOCK_M), PIECES * PIECE_N
    tiles = tiles_m * cdiv(N, BLOCK_N)
    splits = max(1, min(PROGRAMS * multiprocessors(a.device) // tiles, most_splits(groups)))
    if tiles_m > MOST_TILES_M:
        splits = 1
    parts = torch.empty(
        (tiles * splits if splits > 1 else 0, BLOCK_M, BLOCK_N), dtype=torch.float32, device=a.device
    )
    a_desc = TensorDescriptor.from_tensor(aligned(a), [BLOCK_M, GROUP.value])
    w4a16_matmul_transposed_kernel[(tiles * splits,)](
        a_desc, pieces.view(torch.int16), y, parts, arrived, M, N, K, splits,
        BLOCK_M=BLOCK_M, PIECES=PIECES, SCALED=BLOCK_M > 64, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return y
