"""fp8_block_matmul in plain PyTorch.

a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N]

    naive  a product in fp32 for each 128 of K, scaled and added: each reads and writes all of c
    eager  the library call: cuBLAS, with scales of 1 x 128 and 128 x 128
"""

import torch

from compare.arguments import check_block_product
from compare.registry import implementation

BLOCK = 128


@implementation("fp8_block_matmul", "torch.naive", level="naive")
def naive(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    check_block_product("fp8_block_matmul", a, b, scale_a, scale_b)
    return _by_blocks(a, b, scale_a, scale_b)


def _by_blocks(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    N = b.shape[0]
    c = torch.zeros((a.shape[0], N), dtype=torch.float32, device=a.device)
    block_of_column = torch.arange(N, device=a.device) // BLOCK
    for block in range(scale_a.shape[1]):
        k = slice(block * BLOCK, (block + 1) * BLOCK)
        scale = scale_a[:, block, None] * scale_b[block_of_column, block]
        c += (a[:, k].float() @ b[:, k].float().t()) * scale
    return c.to(torch.bfloat16)


@implementation("fp8_block_matmul", "torch.eager", level="vendor", requires="sm_90")
def eager(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    check_block_product("fp8_block_matmul", a, b, scale_a, scale_b)
    if a.device.type == "cpu":  # PyTorch has no such product there
        return _by_blocks(a, b, scale_a, scale_b)
    (M, K), N = a.shape, b.shape[0]
    if M * N * K == 0:
        return torch.zeros((M, N), dtype=torch.bfloat16, device=a.device)
    if K % 16 or N % 16:
        raise NotImplementedError(f"N={N}, K={K}: cuBLAS takes multiples of 16")
    # cuBLAS reads a column of scale_a, and rows of scale_b a multiple of four apart.
    by_columns = scale_a.t().contiguous().t()
    blocks = scale_b.shape[1]
    padded = scale_b.new_empty((scale_b.shape[0], -(-blocks // 4) * 4))[:, :blocks]
    of_b = scale_b if scale_b.stride() == padded.stride() else padded.copy_(scale_b)
    try:
        return torch._scaled_mm(
            a.contiguous(), b.contiguous().t(), by_columns, of_b.t(), out_dtype=torch.bfloat16
        )
    except (RuntimeError, ValueError) as refusal:
        raise NotImplementedError(str(refusal).partition("\n")[0]) from refusal
