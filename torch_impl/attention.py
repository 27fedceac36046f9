"""attention in plain PyTorch.

q[B,Sq,Hq,D], k[B,Skv,Hk,D], v[B,Skv,Hk,D] -> o[B,Sq,Hq,D], lse[B,Hq,Sq]

    naive  elementary operations: the scores, Sq x Skv for each head, are written to memory and read back
    eager  scaled_dot_product_attention's own choice of kernel, called so that it returns lse
    flash  FlashAttention-2, as PyTorch ships it
    cudnn  cuDNN's fused kernel
    flex   FlexAttention: the causal mask is a Python function, torch.compile writes a Triton kernel

The causal diagonal ends at the bottom right: query i sees the keys j <= i + Skv - Sq.  With is_causal,
scaled_dot_product_attention itself starts it at the top left, which is the same where Sq = Skv.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad

from compare.arguments import check_queries
from compare.registry import implementation

Outputs = tuple[torch.Tensor, torch.Tensor]
MOST_SCORES = 1 << 28  # 1 GB in fp32, three times

MOST_BATCHES = (1 << 16) - 1  # the fused kernels' grids have the batch in y or z
BOTTOM_RIGHT = 2  # custom_mask_type of aten._efficient_attention_forward


def checked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Outputs | None:
    """The outputs, where there is no score; otherwise None."""
    check_queries("attention", q, k, v, (64, 128))
    B, Sq, Hq, _ = q.shape
    if q.numel() > 0 and k.numel() > 0:
        return None
    return q.new_zeros(q.shape), q.new_full((B, Hq, Sq), -math.inf, dtype=torch.float32)


def per_query_head(x: torch.Tensor, Hq: int) -> torch.Tensor:
    """Each key head repeated for the query heads that share it, as a copy: [B,S,Hq,D]."""
    return x if x.shape[2] == Hq else x.repeat_interleave(Hq // x.shape[2], dim=2)


def _primitives(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Outputs:
    Sq, Hq, D = q.shape[1:]
    Skv = k.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, per_query_head(k, Hq), per_query_head(v, Hq)))
    scores = q.float() @ k.float().mT / math.sqrt(D)
    if causal:
        hidden = torch.ones(Sq, Skv, dtype=torch.bool, device=q.device).triu(Skv - Sq + 1)
        scores = scores.masked_fill(hidden, -math.inf)
    # A row that sees no key: the maximum has to be finite, and the sum is 0.  Otherwise it is at least 1.
    row_max = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = (scores - row_max).exp()
    row_sum = weights.sum(-1, keepdim=True)
    o = (weights / row_sum.clamp(min=1.0)).to(v.dtype) @ v
    return o.transpose(1, 2).contiguous(), (row_max + row_sum.log())[..., 0]


@implementation("attention", "torch.naive", level="naive")
def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    if (outputs := checked(q, k, v)) is not None:
        return outputs
    scores = q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1]
    if scores > MOST_SCORES:
        raise NotImplementedError(f"B*Hq*Sq*Skv={scores}: all scores are in memory, at most {MOST_SCORES}")
    return _primitives(q, k, v, causal)


def aligned(x: torch.Tensor) -> torch.Tensor:
    """``x``, or a copy where its rows do not consist of aligned 16-byte vectors."""
    vector = 16 // x.itemsize
    good = x.stride(3) == 1 and all(stride % vector == 0 for stride in x.stride()[:3])
    return x if good and x.data_ptr() % 16 == 0 else x.clone(memory_format=torch.contiguous_format)


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Outputs:
    q, k, v = aligned(q), aligned(k), aligned(v)
    Sq, Skv = q.shape[1], k.shape[1]
    o, lse, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, Sq, Skv, 0.0, causal, False
    )  # with is_causal, bottom right
    # FlashAttention-2 returns +inf for rows that see no key and for rows with NaN.
    if causal and Sq > Skv:
        lse[:, :, : Sq - Skv] = -math.inf
    return o, lse.masked_fill_(lse == math.inf, math.nan)


def _cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Outputs:
    q, k, v = (aligned(x).transpose(1, 2) for x in (q, k, v))
    o, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    return o.transpose(1, 2), lse.reshape(q.shape[:3])


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Outputs:
    Sq, Skv, Hq = q.shape[1], k.shape[1], q.shape[2]
    blind = max(Sq - Skv, 0) if causal else 0  # rows that see no key; given them, it computes others wrong
    q, k, v = aligned(q[:, blind:]), aligned(per_query_head(k, Hq)), aligned(per_query_head(v, Hq))
    o, lse, *_ = torch.ops.aten._efficient_attention_forward(
        q, k, v, None, None, None, None, None, 0.0, BOTTOM_RIGHT if causal else 0, True
    )
    lse = lse[:, :, : Sq - blind].contiguous()  # it pads rows to a multiple of 32
    if blind == 0:
        return o, lse
    return pad(o, (0, 0, 0, 0, blind, 0)), pad(lse, (blind, 0), value=-math.inf)


FUSED: dict[SDPBackend, Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], Outputs]] = {
    SDPBackend.FLASH_ATTENTION: _flash,
    SDPBackend.CUDNN_ATTENTION: _cudnn,
    SDPBackend.EFFICIENT_ATTENTION: _efficient,
    SDPBackend.MATH: _primitives,
}


@implementation("attention", "torch.eager", level="vendor")
def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    if (outputs := checked(q, k, v)) is not None:
        return outputs
    if q.device.type == "cpu":  # its fused kernel for CPUs takes NaN for 0
        return _primitives(q, k, v, causal)
    square = q.shape[1] == k.shape[1]
    q, k, v = aligned(q), aligned(k), aligned(v)
    heads = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[2] != k.shape[2]
    chosen = SDPBackend(torch._fused_sdp_choice(*heads, is_causal=causal and square, enable_gqa=grouped))
    if chosen == SDPBackend.CUDNN_ATTENTION and causal and not square:  # top left
        chosen = SDPBackend.FLASH_ATTENTION
    if q.shape[0] > MOST_BATCHES:
        chosen = SDPBackend.MATH
    return FUSED[chosen](q, k, v, causal)


def refuse_fp32(q: torch.Tensor) -> None:
    if q.dtype is torch.float32:
        raise NotImplementedError(f"{q.dtype}: this kernel takes torch.float16 and torch.bfloat16")


@implementation("attention", "torch.flash", level="vendor", requires="sm_80", without_gpu=False)
def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    if (outputs := checked(q, k, v)) is not None:
        return outputs
    refuse_fp32(q)
    if q.shape[0] > MOST_BATCHES:
        raise NotImplementedError(f"B={q.shape[0]}: a grid's y is at most {MOST_BATCHES}")
    return _flash(q, k, v, causal)


@implementation("attention", "torch.cudnn", level="vendor", requires="sm_80", without_gpu=False)
def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    if (outputs := checked(q, k, v)) is not None:
        return outputs
    refuse_fp32(q)
    if causal and q.shape[1] != k.shape[1]:
        raise NotImplementedError("Sq != Skv: PyTorch aligns cuDNN's causal diagonal to the top left")
    try:
        return _cudnn(q, k, v, causal)
    except RuntimeError as error:
        if "cudnn" not in str(error).lower():
            raise
        raise NotImplementedError(str(error).partition("\n")[0]) from error


@functools.lru_cache(maxsize=16)
def _diagonal(Sq: int, Skv: int, device: torch.device) -> BlockMask:
    """Which tiles a causal case needs; made from the sizes alone, as users of FlexAttention make it once."""

    def visible(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return j <= i + (Skv - Sq)

    return create_block_mask(visible, None, None, Sq, Skv, device=str(device))


@functools.cache
def _compiled() -> Callable[..., tuple[torch.Tensor, Any]]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@implementation("attention", "torch.flex", level="vendor", requires="sm_80", without_gpu=False)
def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    if (outputs := checked(q, k, v)) is not None:
        return outputs
    if q.dtype is torch.float32:
        raise NotImplementedError("fp32: its kernel may compile for minutes; torch.eager takes any")
    mask = _diagonal(q.shape[1], k.shape[1], q.device) if causal else None
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o, more = _compiled()(q, k, v, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
    return o.transpose(1, 2).contiguous(), more.lse
