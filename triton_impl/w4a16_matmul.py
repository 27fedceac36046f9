"""w4a16_matmul in Triton: ``a[M,K], packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> y[M,N]``.

Variants, slow to fast:

* ``tiled``: one program per tile of y; weights are dequantized in registers, ``tl.dot`` multiplies a group
* ``split_k``: several programs share the groups of a tile, and a second kernel adds their partial sums

Sums of 128 products (a group) have exact terms; they are scaled in fp32, as in
``cuda_impl/kernels/w4a16_matmul.cuh``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.arguments import check_quantized_linear
from compare.device import multiprocessors
from compare.registry import implementation

OP = "w4a16_matmul"
GROUP = tl.constexpr(128)
WORDS = tl.constexpr(16)
"""Of packed, in a row of a group."""
NIBBLES = tl.constexpr(8)


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
    for _ in range(first, whole):
        total = multiply_group(
            total, a_ptrs, packed_ptrs, scales_ptrs, zeros_ptrs, m_inside, n_inside, GROUP, True
        )
        a_ptrs += GROUP * stride_ak
        packed_ptrs += WORDS * stride_pk
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
    grid = (triton.cdiv(M, tile["BLOCK_M"]) * triton.cdiv(N, tile["BLOCK_N"]),)
    w4a16_matmul_tiled_kernel[grid](a, packed, scales, zeros, y, M, N, K, *strides, **tile)
    return y


MOST_PARTS_BYTES = 64 << 20


@implementation(OP, "triton.split_k", level="tensor_core", requires="sm_80")
def split_k(a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """About four programs per multiprocessor, two of large tiles."""
    M, N, K, y = checked(a, packed, scales, zeros)
    if y.numel() == 0 or K == 0:
        return y
    tile = tile_of(M)
    tiles = triton.cdiv(M, tile["BLOCK_M"]) * triton.cdiv(N, tile["BLOCK_N"])
    programs = (4 if tile["BLOCK_M"] < 64 else 2) * multiprocessors(a.device)
    wanted = min(programs // tiles, MOST_PARTS_BYTES // (4 * y.numel()))
    splits = max(1, min(wanted, scales.shape[1]))
    if splits == 1:
        return tiled(a, packed, scales, zeros)
    parts = torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
    strides = (*a.stride(), *packed.stride(), *scales.stride(), *zeros.stride())
    w4a16_matmul_split_k_kernel[(tiles * splits,)](
        a, packed, scales, zeros, parts, M, N, K, splits, *strides, **tile
    )
    BLOCK = 512
    w4a16_matmul_add_kernel[(triton.cdiv(y.numel(), BLOCK),)](
        parts, y, y.numel(), splits, BLOCK=BLOCK, num_warps=4
    )
    return y
