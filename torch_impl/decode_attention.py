"""decode_attention in plain PyTorch.

q[B,1,Hq,D], k_pages[P,PAGE,Hk,D], v_pages[P,PAGE,Hk,D], block_table[B,pages], lengths[B] -> o[B,1,Hq,D]

    naive  elementary operations in fp32 on keys and values gathered from their pages
    eager  scaled_dot_product_attention on the gathered keys and values: PyTorch has no call for pages

Gathering writes the whole cache once and reads it again.
"""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from compare.arguments import check_pages
from compare.registry import implementation
from torch_impl.attention import aligned

BACKENDS = {
    "cpu": [SDPBackend.MATH],  # the fused kernel for CPUs takes NaN for 0
    "cuda": [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


def gathered(
    k_pages: torch.Tensor, v_pages: torch.Tensor, block_table: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Keys and values [B,Hk,S,D] of each sequence, 0 behind its end, and which of them exist [B,1,1,S]."""
    PAGE = k_pages.shape[1]
    n = torch.arange(block_table.shape[1] * PAGE, device=k_pages.device)
    inside = n < lengths[:, None]
    # An entry that no token needs may hold anything: page 0 stands for it.
    page = block_table.long().repeat_interleave(PAGE, dim=1).masked_fill(~inside, 0)
    behind = ~inside[:, :, None, None]
    k, v = (pages[page, n % PAGE].masked_fill_(behind, 0.0) for pages in (k_pages, v_pages))
    return k.transpose(1, 2), v.transpose(1, 2), inside[:, None, None]


@implementation("decode_attention", "torch.naive", level="naive")
def naive(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    check_pages("decode_attention", q, k_pages, v_pages, block_table, lengths)
    if q.numel() == 0 or k_pages.numel() == 0:
        return q.new_zeros(q.shape)
    B, D = q.shape[0], q.shape[3]
    k, v, inside = gathered(k_pages, v_pages, block_table, lengths)
    grouped = q.reshape(B, k.shape[1], -1, D).float()  # the query heads of each key head
    scores = grouped @ k.float().mT / math.sqrt(D)
    scores = scores.masked_fill(~inside, -math.inf)
    # A sequence without tokens: the maximum has to be finite, and the sum is 0.  Otherwise it is at least 1.
    row_max = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = (scores - row_max).exp()
    row_sum = weights.sum(-1, keepdim=True)
    return (weights @ v.float() / row_sum.clamp(min=1.0)).to(q.dtype).reshape(q.shape)


@implementation("decode_attention", "torch.eager", level="vendor")
def eager(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    check_pages("decode_attention", q, k_pages, v_pages, block_table, lengths)
    if q.numel() == 0 or k_pages.numel() == 0:
        return q.new_zeros(q.shape)
    B, D = q.shape[0], q.shape[3]
    k, v, inside = gathered(k_pages, v_pages, block_table, lengths)
    # The query heads of a key head see the same tokens: they are as good as several queries of one head.
    grouped = aligned(q.reshape(B, k.shape[1], -1, D))
    with sdpa_kernel(BACKENDS[q.device.type]):
        o = scaled_dot_product_attention(grouped, k, v, attn_mask=inside)
    # A sequence without tokens has no defined result in every backend.
    return o.masked_fill((lengths == 0)[:, None, None, None], 0.0).reshape(q.shape)
