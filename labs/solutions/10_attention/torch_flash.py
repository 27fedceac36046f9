"""Task 1: the recurrence of FlashAttention (Dao et al. 2022), in PyTorch."""

import math

import torch

from compare.registry import implementation

CHUNK = 16


def include(
    seen_max: torch.Tensor, seen_sum: torch.Tensor, o: torch.Tensor, scores: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is known of each query, after one more chunk of keys.

    Args:
        seen_max: [B, H, Sq, 1], the largest score so far.
        seen_sum: [B, H, Sq, 1], the sum of exp(score - seen_max) over all keys so far.
        o: [B, H, Sq, D], the sum of exp(score - seen_max) * v over all keys so far.
        scores: [B, H, Sq, keys], of the chunk.
        v: [B, H, keys, D].
    """
    new_max = torch.maximum(seen_max, scores.amax(-1, keepdim=True))
    shift = new_max.masked_fill(new_max == -math.inf, 0.0)
    weights, factor = (scores - shift).exp(), (seen_max - shift).exp()
    return new_max, seen_sum * factor + weights.sum(-1, keepdim=True), o * factor + weights @ v


@implementation("attention", "torch.mine", level="naive")
def mine(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``o[B,Sq,Hq,D]`` and ``lse[B,Hq,Sq]`` of ``q[B,Sq,Hq,D]``, ``k`` and ``v[B,Skv,Hk,D]``."""
    B, Sq, Hq, D = q.shape
    Skv, Hk = k.shape[1:3]
    query = q.float().transpose(1, 2)
    key, value = (x.float().repeat_interleave(Hq // max(Hk, 1), dim=2).transpose(1, 2) for x in (k, v))
    seen_max = query.new_full((B, Hq, Sq, 1), -math.inf)
    seen_sum, o = query.new_zeros((B, Hq, Sq, 1)), torch.zeros_like(query)
    i = torch.arange(Sq, device=q.device)[:, None]
    for begin in range(0, Skv, CHUNK):
        scores = query @ key[:, :, begin : begin + CHUNK].mT / math.sqrt(D)
        j = begin + torch.arange(scores.shape[3], device=q.device)
        if causal:
            scores = scores.masked_fill(j > i + Skv - Sq, -math.inf)
        seen_max, seen_sum, o = include(seen_max, seen_sum, o, scores, value[:, :, begin : begin + CHUNK])
    o = o / seen_sum.masked_fill(seen_sum == 0, 1.0)  # 0 for a query that sees no key
    return o.to(q.dtype).transpose(1, 2).contiguous(), (seen_max + seen_sum.log())[..., 0]
