"""rotary in CUDA: ``q[B,S,H,D], k[B,S,Hk,D], cos[S,D/2], sin[S,D/2] -> out[B,S,H+Hk,D]``.

With the kernels of ``kernels/rotary.cuh``.
"""

from __future__ import annotations

import numpy as np

from compare.arguments import check_heads
from cuda_impl.buffers import Tensor, empty
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, check_counts, int32, int64, variant
from cuda_impl.layouts import VECS, contiguous_rows, vector


def checked(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """The inputs, copied if heads or rows are not contiguous; and an uninitialised output."""
    check_heads("rotary", q, k, cos, sin)
    B, S, H, D = q.shape
    out = empty((B, S, H + k.shape[2], D), q.dtype, q.device)
    return tuple(map(contiguous_rows, (q, k, cos, sin))), out


def layout_of(inputs: tuple[Tensor, ...]) -> tuple[np.int64, ...]:
    """S, H, heads per token, half a head's length, and the inputs' strides, as the kernels take them."""
    q, k, cos, sin = inputs
    sizes = (q.shape[1], q.shape[2], q.shape[2] + k.shape[2], q.shape[3] // 2)
    return int64(*sizes, *q.stride()[:3], *k.stride()[:3], cos.stride(0), sin.stride(0))


PAIRS = Kernel("rotary_pairs_kernel<{T}>")


@variant("rotary", "pairs", kernels=[PAIRS], level="naive", algorithm="pairs one by one")
def pairs(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Plan:
    """A thread rotates one pair of elements."""
    inputs, out = checked(q, k, cos, sin)
    count, THREADS = out.numel() // 2, 256
    args = (*inputs, out, *int64(count), *layout_of(inputs))
    return Plan(out, Launch(PAIRS(q.dtype), ceil_div(count, THREADS), THREADS, args))


def vec(inputs: tuple[Tensor, ...]) -> int:
    """Elements per access: 16 bytes' worth if every half of a head is 16-byte aligned, else 1."""
    pack = vector(inputs[0])
    aligned = inputs[2].shape[1] % pack == 0 and all(
        x.data_ptr() % 16 == 0 and all(stride % pack == 0 for stride in x.stride()[:-1]) for x in inputs
    )
    return pack if aligned else 1


TOKEN = Kernel("rotary_token_kernel<{T}, {VEC}, {HEADS}>", VEC=VECS, HEADS=(4,))


@variant(
    "rotary",
    "token",
    kernels=[TOKEN],
    level="tiled",
    algorithm="cosines and sines read once per token",
    tunable={"HEADS": (1, 2, 4)},
)
def token(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, HEADS: int = 4) -> Plan:
    """Threads share the heads of a token and reuse its cosines and sines for all of them."""
    inputs, out = checked(q, k, cos, sin)
    if out.numel() == 0:
        return Plan(out)
    check_counts(q.shape[2], k.shape[2])
    B, S, _, D = out.shape
    THREADS, VEC = 128, vec(inputs)
    vectors = ceil_div(D // 2, VEC)
    lanes = min(vectors, THREADS)
    pieces = ceil_div(vectors, lanes)
    # Heads processed concurrently: so many that a thread has HEADS query heads, or key heads if these are
    # more.
    groups = min(ceil_div(max(q.shape[2], k.shape[2]), HEADS), THREADS // lanes)
    token_threads = lanes * groups
    block_tokens = THREADS // token_threads
    shape = int32(lanes, pieces, token_threads, block_tokens)
    args = (*inputs, out, *int64(B * S), *layout_of(inputs), *shape)
    blocks = ceil_div(B * S, block_tokens) * pieces
    return Plan(out, Launch(TOKEN(q.dtype, VEC=VEC, HEADS=HEADS), blocks, THREADS, args))
