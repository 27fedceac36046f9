"""rotary in Triton: ``q[B,S,H,D], k[B,S,Hk,D], cos[S,D/2], sin[S,D/2] -> out[B,S,H+Hk,D]``, heads of q first.

Variants; ``cuda_impl/kernels/rotary.cuh`` has the same under the same names:

* ``pairs``: a program rotates a block of pairs, with a load of cosine and sine for each
* ``token``: a program rotates all heads of a token and reuses its cosines and sines for all of them
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.arguments import check_heads
from compare.registry import implementation
from triton_impl.counts import cdiv, grid_1d, next_power_of_2


@triton.jit
def rotary_pairs_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, out_ptr, pairs, S, H, heads, half,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_cs, stride_ss,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Grid: one program per BLOCK_SIZE pairs; half = D/2 pairs per head, heads = H + Hk per token."""
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = n < pairs
    d, head = n % half, n // half
    h, token = head % heads, head // heads
    s, b = token % S, token // S
    cos = tl.load(cos_ptr + s * stride_cs + d, mask=inside).to(tl.float32)
    sin = tl.load(sin_ptr + s * stride_ss + d, mask=inside).to(tl.float32)
    q_ptrs = q_ptr + b * stride_qb + s * stride_qs + h * stride_qh + d
    k_ptrs = k_ptr + b * stride_kb + s * stride_ks + (h - H) * stride_kh + d
    x_ptrs = tl.where(h < H, q_ptrs, k_ptrs)
    first = tl.load(x_ptrs, mask=inside).to(tl.float32)
    second = tl.load(x_ptrs + half, mask=inside).to(tl.float32)
    to_ptrs = out_ptr + head * 2 * half + d
    tl.store(to_ptrs, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(to_ptrs + half, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotate_heads(
    x_ptr, stride_xh, cos, sin, out_ptr, heads, half, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Rotate ``heads`` heads, BLOCK_H per iteration, with their cos[1,BLOCK_D] and sin[1,BLOCK_D]."""
    d = tl.arange(0, BLOCK_D)[None, :]
    for begin in range(0, heads, BLOCK_H):
        h = begin + tl.arange(0, BLOCK_H).to(tl.int64)[:, None]
        inside = (h < heads) & (d < half)
        x_ptrs = x_ptr + h * stride_xh + d
        first = tl.load(x_ptrs, mask=inside).to(tl.float32)
        second = tl.load(x_ptrs + half, mask=inside).to(tl.float32)
        to_ptrs = out_ptr + h * 2 * half + d
        tl.store(to_ptrs, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(to_ptrs + half, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotary_token_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, out_ptr, S, H, Hk, vectors,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_cs, stride_ss,
    BLOCK_H: tl.constexpr, BLOCK_HK: tl.constexpr, BLOCK_D: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Grid: one program per token.  Half a head is ``vectors`` vectors of VEC elements."""
    half = vectors * VEC  # the product tells the compiler the divisibility, so it can vectorize
    token = tl.program_id(0).to(tl.int64)
    s, b = token % S, token // S
    d = tl.arange(0, BLOCK_D)[None, :]
    cos = tl.load(cos_ptr + s * stride_cs + d, mask=d < half).to(tl.float32)
    sin = tl.load(sin_ptr + s * stride_ss + d, mask=d < half).to(tl.float32)
    q_ptr += b * stride_qb + s * stride_qs
    k_ptr += b * stride_kb + s * stride_ks
    out_ptr += token * (H + Hk) * 2 * half
    rotate_heads(q_ptr, stride_qh, cos, sin, out_ptr, H, half, BLOCK_H, BLOCK_D)
    rotate_heads(k_ptr, stride_kh, cos, sin, out_ptr + H * 2 * half, Hk, half, BLOCK_HK, BLOCK_D)


def checked(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """The inputs, copied if heads or rows are not contiguous; and an uninitialised output."""
    check_heads("rotary", q, k, cos, sin)
    inputs = tuple(x if x.stride(-1) == 1 or x.size(-1) <= 1 else x.contiguous() for x in (q, k, cos, sin))
    B, S, H, D = q.shape
    return inputs, torch.empty((B, S, H + k.shape[2], D), dtype=q.dtype, device=q.device)


def strides_of(inputs: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    q, k, cos, sin = inputs
    return (*q.stride()[:3], *k.stride()[:3], cos.stride(0), sin.stride(0))


def vec(inputs: tuple[torch.Tensor, ...]) -> int:
    """Elements per access: 16 bytes' worth if every half of a head is 16-byte aligned, else 1."""
    pack = 16 // inputs[0].element_size()
    aligned = inputs[2].shape[1] % pack == 0 and all(
        x.data_ptr() % 16 == 0 and all(stride % pack == 0 for stride in x.stride()[:-1]) for x in inputs
    )
    return pack if aligned else 1


@implementation("rotary", "triton.pairs", level="naive", algorithm="pairs one by one")
def pairs(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """A program rotates a block of pairs."""
    inputs, out = checked(q, k, cos, sin)
    count = out.numel() // 2
    if count == 0:
        return out
    BLOCK_SIZE = 1024
    _, S, heads, D = out.shape
    rotary_pairs_kernel[(cdiv(count, BLOCK_SIZE),)](
        *inputs,
        out,
        count,
        S,
        q.shape[2],
        heads,
        D // 2,
        *strides_of(inputs),
        BLOCK_SIZE=BLOCK_SIZE,
        num_warps=4,
    )
    return out


MOST_ELEMENTS = (1 << 31) - 1
"""Of a token: offsets from its first head are 32-bit."""


@implementation("rotary", "triton.token", level="tiled", algorithm="cosines and sines read once per token")
def token(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """A program rotates all heads of a token."""
    inputs, out = checked(q, k, cos, sin)
    if out.numel() == 0:
        return out
    B, S, heads, D = out.shape
    if heads * D > MOST_ELEMENTS:
        raise NotImplementedError(f"H + Hk={heads}, D={D}: a token has at most {MOST_ELEMENTS} elements")
    H, Hk = q.shape[2], k.shape[2]
    VEC = vec(inputs)
    BLOCK_D = next_power_of_2(D // 2)
    most = max(1, 2048 // BLOCK_D)  # 16 elements of each half per thread
    rotary_token_kernel[grid_1d(B * S)](
        *inputs, out, S, H, Hk, D // 2 // VEC, *strides_of(inputs),
        BLOCK_H=min(most, next_power_of_2(max(H, 1))),
        BLOCK_HK=min(most, next_power_of_2(max(Hk, 1))),
        BLOCK_D=BLOCK_D, VEC=VEC, num_warps=4,
    )  # fmt: skip
    return out
