"""rotary through cupy: ``q[B,S,H,D], k[B,S,Hk,D], cos[S,D/2], sin[S,D/2] -> out[B,S,H+Hk,D]``.

With the kernels of ``kernels/rotary.cuh``.
"""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_heads
from compare.registry import implementation
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def checked(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """The inputs, copied if heads or rows are not contiguous; and an uninitialised output."""
    check_heads("rotary", q, k, cos, sin)
    inputs = tuple(x if x.stride(-1) == 1 or x.size(-1) <= 1 else x.contiguous() for x in (q, k, cos, sin))
    B, S, H, D = q.shape
    return inputs, torch.empty((B, S, H + k.shape[2], D), dtype=q.dtype, device=q.device)


def layout_of(inputs: tuple[torch.Tensor, ...]) -> tuple[np.int64, ...]:
    """S, H, heads per token, half a head's length, and the inputs' strides, as the kernels take them."""
    q, k, cos, sin = inputs
    sizes = (q.shape[1], q.shape[2], q.shape[2] + k.shape[2], q.shape[3] // 2)
    strides = (*q.stride()[:3], *k.stride()[:3], cos.stride(0), sin.stride(0))
    return tuple(np.int64(number) for number in (*sizes, *strides))


@implementation("rotary", "cupy.pairs", level="naive", algorithm="pairs one by one")
def pairs(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """A thread rotates one pair of elements."""
    inputs, out = checked(q, k, cos, sin)
    count = out.numel() // 2
    if count == 0:
        return out
    THREADS = 256
    run = kernel("rotary", f"rotary_pairs_kernel<{CTYPES[q.dtype]}>", q.device)
    pointers = (*(x.data_ptr() for x in inputs), out.data_ptr())
    run((ceil_div(count, THREADS),), (THREADS,), (*pointers, np.int64(count), *layout_of(inputs)))
    return out


def vec(inputs: tuple[torch.Tensor, ...]) -> int:
    """Elements per access: 16 bytes' worth if every half of a head is 16-byte aligned, else 1."""
    pack = 16 // inputs[0].element_size()
    aligned = inputs[2].shape[1] % pack == 0 and all(
        x.data_ptr() % 16 == 0 and all(stride % pack == 0 for stride in x.stride()[:-1]) for x in inputs
    )
    return pack if aligned else 1


@implementation(
    "rotary",
    "cupy.token",
    level="tiled",
    algorithm="cosines and sines read once per token",
    tunable={"HEADS": (1, 2, 4)},
)
def token(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, HEADS: int = 4
) -> torch.Tensor:
    """Threads share the heads of a token and reuse its cosines and sines for all of them."""
    inputs, out = checked(q, k, cos, sin)
    if out.numel() == 0:
        return out
    B, S, _, D = out.shape
    THREADS, VEC = 128, vec(inputs)
    packs = ceil_div(D // 2, VEC)
    lanes = min(packs, THREADS)
    pieces = ceil_div(packs, lanes)
    # Heads processed concurrently: so many that a thread has HEADS query heads, or key heads if these are
    # more.
    groups = min(ceil_div(max(q.shape[2], k.shape[2]), HEADS), THREADS // lanes)
    token_threads = lanes * groups
    block_tokens = THREADS // token_threads
    run = kernel("rotary", f"rotary_token_kernel<{CTYPES[q.dtype]}, {VEC}, {HEADS}>", q.device)
    pointers = (*(x.data_ptr() for x in inputs), out.data_ptr())
    shape = (np.int32(lanes), np.int32(pieces), np.int32(token_threads), np.int32(block_tokens))
    grid = (ceil_div(B * S, block_tokens) * pieces,)
    run(grid, (THREADS,), (*pointers, np.int64(B * S), *layout_of(inputs), *shape))
    return out
