"""attention_backward in plain PyTorch.

q[B,Sq,Hq,D], k[B,Skv,Hk,D], v[B,Skv,Hk,D], o[B,Sq,Hq,D], lse[B,Hq,Sq], do[B,Sq,Hq,D] -> dq, dk, dv

    naive  elementary operations: materializes all scores, probabilities and their gradients
    eager  what autograd calls behind scaled_dot_product_attention: the backend that it chooses on this GPU
    flash  the backward of FlashAttention-2
    cudnn  the backward of cuDNN's fused attention
"""

import math

import torch

from compare.arguments import check_gradients
from compare.registry import implementation
from torch_impl.attention import aligned

OP = "attention_backward"
HEAD_SIZES = (64, 128)
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

MOST_SCORES = 1 << 28
"""Scores in memory at a time: 1 GB in fp32, and four such tensors."""


def _elementary(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
) -> Gradients:
    if q.numel() == 0 or k.numel() == 0:
        return q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    Sq, Skv, Hk = q.shape[1], k.shape[1], k.shape[2]
    scale = 1 / math.sqrt(q.shape[3])
    # In fp32, as [B,Hk,Hq/Hk,S,D]: the query heads of a key head are together.
    wide_q, wide_o, wide_do = (x.float().unflatten(2, (Hk, -1)).permute(0, 2, 3, 1, 4) for x in (q, o, do))
    wide_k, wide_v = (x.float().permute(0, 2, 1, 3)[:, :, None] for x in (k, v))
    wide_lse = lse.unflatten(1, (Hk, -1))[..., None]
    s = scale * (wide_q @ wide_k.mT)
    if causal:
        hidden = torch.ones(Sq, Skv, dtype=torch.bool, device=q.device).triu(Skv - Sq + 1)
        s.masked_fill_(hidden, -math.inf)
    p = torch.where(wide_lse.isneginf(), 0.0, (s - wide_lse).exp())
    delta = (wide_do * wide_o).sum(-1, keepdim=True)
    ds = scale * p * (wide_do @ wide_v.mT - delta)
    dq = (ds @ wide_k).permute(0, 3, 1, 2, 4).reshape(q.shape)
    dk, dv = ((x.mT @ y).sum(2).permute(0, 2, 1, 3) for x, y in ((ds, wide_q), (p, wide_do)))
    return dq.to(q.dtype).contiguous(), dk.to(k.dtype).contiguous(), dv.to(v.dtype).contiguous()


@implementation(OP, "torch.naive", level="naive")
def naive(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    check_gradients(OP, q, k, v, o, lse, do, HEAD_SIZES)
    scores = q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1]
    if scores > MOST_SCORES:
        raise NotImplementedError(
            f"B*Hq*Sq*Skv={scores}: all scores are in memory, at most {MOST_SCORES}; torch.eager takes any"
        )
    return _elementary(q, k, v, o, lse, do, causal)


def _fused(
    backend: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
) -> Gradients:
    """The backward of ``flash`` or ``cudnn``, with which autograd replaces that of the operator."""
    lengths = None, None, q.shape[1], k.shape[1]  # of sequences of several lengths; none here
    none = torch.zeros(2, dtype=torch.int64, device=q.device)  # the state of dropout's random numbers
    heads_first = [aligned(x).transpose(1, 2) for x in (do, q, k, v, o)]
    if backend == "flash":
        made = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *heads_first, lse.contiguous(), *lengths, 0.0, causal, none, none
        )
    else:
        made = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            *heads_first, lse.contiguous()[..., None], none[0], none[1], None, *lengths, 0.0, causal
        )
    dq, dk, dv = (x.transpose(1, 2).contiguous() for x in made)
    return dq, dk, dv


def _check_fused(q: torch.Tensor, k: torch.Tensor) -> None:
    if q.dtype is torch.float32:
        raise NotImplementedError("fp32: it takes fp16 and bf16; torch.eager takes any")
    if q.device.type != "cuda":
        raise NotImplementedError("it runs on a GPU only; torch.eager runs anywhere")
    if 0 in q.shape or 0 in k.shape:
        raise NotImplementedError("it takes no empty tensors; torch.eager does")


@implementation(OP, "torch.eager", level="vendor")
def eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """Elementary operations where no fused backend takes the case: in fp32, on a CPU, of nothing."""
    check_gradients(OP, q, k, v, o, lse, do, HEAD_SIZES)
    if q.device.type != "cuda" or q.dtype is torch.float32 or 0 in q.shape or 0 in k.shape:
        return _elementary(q, k, v, o, lse, do, causal)
    square = not causal or q.shape[1] == k.shape[1]  # cuDNN's mask begins at the top left
    heads_first = [aligned(x).transpose(1, 2) for x in (q, k, v)]
    choice = torch._fused_sdp_choice(*heads_first, is_causal=causal and square, enable_gqa=True)
    backend = "cudnn" if choice == torch.nn.attention.SDPBackend.CUDNN_ATTENTION.value else "flash"
    return _fused(backend if square else "flash", q, k, v, o, lse, do, causal)


@implementation(OP, "torch.flash", level="vendor")
def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    check_gradients(OP, q, k, v, o, lse, do, HEAD_SIZES)
    _check_fused(q, k)
    return _fused("flash", q, k, v, o, lse, do, causal)


@implementation(OP, "torch.cudnn", level="vendor")
def cudnn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    check_gradients(OP, q, k, v, o, lse, do, HEAD_SIZES)
    _check_fused(q, k)
    if causal and q.shape[1] != k.shape[1]:
        raise NotImplementedError(
            f"Sq={q.shape[1]}, Skv={k.shape[1]}: its causal mask begins at the top left; "
            "torch.flash takes these lengths"
        )
    if q.shape[1] == k.shape[1] == 1:
        raise NotImplementedError("Sq=1, Skv=1: cuDNN takes longer ones; torch.flash takes these lengths")
    return _fused("cudnn", q, k, v, o, lse, do, causal)
