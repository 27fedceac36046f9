"""Task 1: the recurrence of online softmax (Milakov and Gimelshein 2018), in PyTorch."""

import torch

from compare.registry import implementation

CHUNK = 64


def include(
    seen_max: torch.Tensor, seen_sum: torch.Tensor, chunk: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum[M, 1] and sum[M, 1] of each row, after one more chunk[M, columns] of it."""
    new_max = torch.maximum(seen_max, chunk.amax(dim=1, keepdim=True))
    shift = new_max.masked_fill(new_max == -torch.inf, 0.0)
    old = seen_sum * (seen_max - shift).exp()
    return new_max, old + (chunk - shift).exp().sum(dim=1, keepdim=True)


@implementation("softmax", "torch.mine", level="naive")
def mine(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    seen_max = wide.new_full((x.shape[0], 1), -torch.inf)
    seen_sum = wide.new_zeros((x.shape[0], 1))
    for chunk in wide.split(CHUNK, dim=1):
        seen_max, seen_sum = include(seen_max, seen_sum, chunk)
    return ((wide - seen_max).exp() / seen_sum).to(x.dtype)
