"""reduce_sum: a sum per program, added by an atomic."""

import torch
import triton
import triton.language as tl

from compare.registry import implementation


@triton.jit
def add_all(x_ptr, y_ptr, stride, N, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n * stride, mask=n < N, other=0.0).to(tl.float32)
    tl.atomic_add(y_ptr, tl.sum(x, axis=0))


@implementation("reduce_sum", "triton.mine", level="tiled", deterministic=False)
def mine(x):
    N = x.numel()
    y = torch.zeros((), dtype=torch.float32, device=x.device)
    if N:
        add_all[(triton.cdiv(N, 1024),)](x, y, x.stride(0), N, BLOCK=1024)
    return y
