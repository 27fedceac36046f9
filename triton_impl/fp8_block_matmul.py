"""fp8_block_matmul in Triton: ``a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N]``.

Variants; ``cuda_impl/kernels/fp8_block_matmul.cuh`` has the last under the same name:

* ``tiled``: one program per tile of c: a product of 128 of K, scaled and added to fp32 sums, per iteration
* ``persistent``: as many programs as are resident compute tile after tile, with TMA loads and stores

A product of e4m3 needs tensor cores that have it: sm_89.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.arguments import check_block_product
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.matmul import grouped_tile, scratch

BLOCK_K = tl.constexpr(128)
"""Of K, and of N, that share a scale."""


@triton.jit
def scales(scale_a_ptr, scale_b_ptr, block, M, tile_m, n, stride_am, stride_ak, stride_bn, stride_bk,
           BLOCK_M: tl.constexpr):  # fmt: skip
    """What a block's partial sums are multiplied with: a column.  A tile lies in one block of b."""
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    of_a = tl.load(scale_a_ptr + m * stride_am + block * stride_ak, mask=m < M, other=0.0)
    return of_a * tl.load(scale_b_ptr + n // BLOCK_K * stride_bn + block * stride_bk)


@triton.jit
def fp8_block_matmul_tiled_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sam, stride_sak, stride_sbn, stride_sbk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of c, in grouped order.  BLOCK_N divides 128."""
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n * stride_bn
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in range(tl.cdiv(K, BLOCK_K)):
        left = K - block * BLOCK_K
        a = tl.load(a_ptrs, mask=(m < M) & (k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n < N), other=0.0)
        scale = scales(
            scale_a_ptr, scale_b_ptr, block, M, tile_m, tile_n * BLOCK_N,
            stride_sam, stride_sak, stride_sbn, stride_sbk, BLOCK_M,
        )  # fmt: skip
        total += tl.dot(a, b) * scale
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    tl.store(c_ptr + m * N + n, total.to(tl.bfloat16), mask=(m < M) & (n < N))


@triton.jit
def fp8_block_matmul_persistent_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K, stride_a, stride_b,
    stride_sam, stride_sak, stride_sbn, stride_sbk, C_ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles are assigned round-robin.

    TMA loads and stores through descriptors, which know the matrix bounds and fill with zeros.  Rows of a and
    b are 16-byte aligned; rows of c, if C_ALIGNED.
    """
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_a, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [stride_b, 1], [BLOCK_N, BLOCK_K])
    if C_ALIGNED:
        c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile_m, tile_n = grouped_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for block in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([m, block * BLOCK_K])
            b = b_desc.load([n, block * BLOCK_K])
            scale = scales(
                scale_a_ptr, scale_b_ptr, block, M, tile_m, n,
                stride_sam, stride_sak, stride_sbn, stride_sbk, BLOCK_M,
            )  # fmt: skip
            total += tl.dot(a, b.T) * scale
        if C_ALIGNED:
            c_desc.store([m, n], total.to(tl.bfloat16))
        else:
            rows = m.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
            columns = n + tl.arange(0, BLOCK_N)[None, :]
            inside = (rows < M) & (columns < N)
            tl.store(c_ptr + rows * N + columns, total.to(tl.bfloat16), mask=inside)


def checked(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> tuple[int, int, int, torch.Tensor]:
    """M, N, K and an uninitialised c."""
    check_block_product("fp8_block_matmul", a, b, scale_a, scale_b)
    (M, K), N = a.shape, b.shape[0]
    return M, N, K, torch.empty((M, N), dtype=torch.bfloat16, device=a.device)


def tile_of(M: int, N: int, processors: int) -> dict[str, int]:
    """The largest tile of which there is one for each multiprocessor, else the smallest."""
    tiles = ((128, 128), (64, 128), (64, 64))
    enough = (t for t in tiles if triton.cdiv(M, t[0]) * triton.cdiv(N, t[1]) >= processors)
    BLOCK_M, BLOCK_N = next(enough, tiles[-1])
    return {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "GROUP_M": 8}


@implementation("fp8_block_matmul", "triton.tiled", level="tensor_core", requires="sm_89")
def tiled(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    M, N, K, c = checked(a, b, scale_a, scale_b)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    tile = tile_of(M, N, multiprocessors(a.device))
    grid = (triton.cdiv(M, tile["BLOCK_M"]) * triton.cdiv(N, tile["BLOCK_N"]),)
    strides = (*a.stride(), *b.stride(), *scale_a.stride(), *scale_b.stride())
    num_warps = 8 if tile["BLOCK_M"] == 128 else 4
    fp8_block_matmul_tiled_kernel[grid](
        a, b, scale_a, scale_b, c, M, N, K, *strides, **tile, num_warps=num_warps, num_stages=4
    )
    return c


def for_tma(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows are contiguous and 16-byte aligned, as TMA requires, else such a copy."""
    rows, columns = x.shape
    if x.stride(1) == 1 and x.stride(0) % 16 == 0 and x.stride(0) >= columns and x.data_ptr() % 16 == 0:
        return x
    padded = torch.empty((rows, triton.cdiv(columns, 16) * 16), dtype=x.dtype, device=x.device)
    return padded[:, :columns].copy_(x)


@implementation("fp8_block_matmul", "triton.persistent", level="hopper", requires="sm_90")
def persistent(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    M, N, K, c = checked(a, b, scale_a, scale_b)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    a, b = for_tma(a), for_tma(b)
    processors = multiprocessors(a.device)
    tile = tile_of(M, N, processors)
    programs = min(processors, triton.cdiv(M, tile["BLOCK_M"]) * triton.cdiv(N, tile["BLOCK_N"]))
    strides = (a.stride(0), b.stride(0), *scale_a.stride(), *scale_b.stride())
    triton.set_allocator(scratch)
    num_warps = 8 if tile["BLOCK_M"] == 128 else 4
    fp8_block_matmul_persistent_kernel[(programs,)](
        a, b, scale_a, scale_b, c, M, N, K, *strides, C_ALIGNED=N % 8 == 0, **tile,
        num_warps=num_warps, num_stages=4,
    )  # fmt: skip
    return c
