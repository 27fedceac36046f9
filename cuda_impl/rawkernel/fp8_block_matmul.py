"""fp8_block_matmul through cupy: ``a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N]``.

With the kernels of ``kernels/fp8_block_matmul/``.
"""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_block_product
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.heads_map import heads_map
from cuda_impl.loader import kernel

BLOCK_K = 128
CONSUMERS, WARPGROUP, GROUP_M = 2, 128, 64
PERMUTED_BYTES = 1024
"""Alignment of swizzled tiles; dynamic shared memory may lack it."""
MOST = (1 << 31) - 512
"""Maximum M and N: coordinates, up to the end of the last tile, are 32-bit."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def operand(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows are contiguous, 16-byte aligned and whole blocks of 128, else such a copy."""
    rows, K = x.shape
    apart = x.stride(0) >= K and x.stride(0) % 16 == 0
    if x.stride(1) == 1 and apart and K % BLOCK_K == 0 and x.data_ptr() % 16 == 0:
        return x
    padded = x.new_zeros((rows, ceil_div(K, BLOCK_K) * BLOCK_K))
    padded[:, :K].copy_(x)
    return padded


def block_map(x: torch.Tensor, rows: int) -> np.void:
    """The tensor map of an operand: a copy moves a block of 128 of K of so many rows.

    TMA moves bytes: as 64 elements of 16 bits a block is what `heads_map` calls a head.
    """
    return heads_map(x.view(torch.float16).unflatten(1, (-1, BLOCK_K // 2))[None], rows)


def tile_of(M: int, N: int, processors: int) -> tuple[int, int, int]:
    """BLOCK_N, WAVES and STAGES: the largest tile of which there is one for each multiprocessor, else the
    smallest."""
    for BLOCK_N, WAVES, STAGES in ((128, 2, 4), (128, 1, 6)):
        if ceil_div(M, CONSUMERS * GROUP_M * WAVES) * ceil_div(N, BLOCK_N) >= processors:
            return BLOCK_N, WAVES, STAGES
    return 64, 1, 8


def launch(
    variant: str,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    persistent: bool,
) -> torch.Tensor:
    check_block_product("fp8_block_matmul", a, b, scale_a, scale_b)
    (M, K), N = a.shape, b.shape[0]
    if max(M, N) > MOST:
        raise NotImplementedError(f"M={M}, N={N}: at most {MOST} of each")
    c = torch.empty((M, N), dtype=torch.bfloat16, device=a.device)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    a, b, scale_a, scale_b = operand(a), operand(b), scale_a.contiguous(), scale_b.contiguous()
    processors = multiprocessors(a.device)
    BLOCK_N, WAVES, STAGES = tile_of(M, N, processors)
    BLOCK_M = CONSUMERS * GROUP_M * WAVES
    run = kernel(
        "fp8_block_matmul", f"fp8_block_matmul_{variant}_kernel<{BLOCK_N}, {WAVES}, {STAGES}>", a.device
    )
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    if persistent:
        blocks = min(blocks, processors)
    maps = block_map(a, BLOCK_M), block_map(b, BLOCK_N)
    pointers = scale_a.data_ptr(), scale_b.data_ptr(), c.data_ptr()
    sizes = np.int32(M), np.int32(N), np.int32(ceil_div(K, BLOCK_K))
    shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K + PERMUTED_BYTES
    threads = (1 + CONSUMERS) * WARPGROUP
    run((blocks,), (threads,), (*maps, *pointers, *sizes), shared_mem=shared_bytes)
    return c


@implementation("fp8_block_matmul", "cupy.specialized", level="hopper", requires="sm_90a", emulated=True)
def specialized(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """A producer and two consumer warpgroups; one block per tile."""
    return launch("specialized", a, b, scale_a, scale_b, persistent=False)


@implementation("fp8_block_matmul", "cupy.persistent", level="hopper", requires="sm_90a", emulated=True)
def persistent(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """One block per multiprocessor; the producer prefetches the next tile."""
    return launch("persistent", a, b, scale_a, scale_b, persistent=True)
