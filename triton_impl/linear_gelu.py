"""linear_gelu in Triton: ``x[M,K], w[K,N], bias[N] -> y[M,N]``, accumulated in fp32, GELU by tanh.

Variants, with the same names as in ``cuda_impl/kernels/linear_gelu.cuh``:

* ``tensor_core``: matmul's ``grouped`` kernel with bias and GELU as its epilogue, in registers
* ``unfused``: matmul's ``persistent`` kernel, then a kernel that reads and writes all of y again
* ``fused``: the persistent kernel with bias and GELU as its epilogue, in registers, or for small sizes
  matmul's ``split_k`` kernel, whichever has the least predicted time
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.arguments import check_linear
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, check_strides, grid_1d
from triton_impl.matmul import (
    SPLIT_K_TILES,
    by_split_k,
    fastest_tile,
    grouped_tile,
    matmul_persistent_kernel,
    matrix_for_tma,
)
from triton_impl.tma import allocate_descriptors_on, check_coordinates

LINEAR = tl.constexpr(-2.302208198)
"""-2 * log2(e) * (2 / pi)^(1/2)"""
CUBIC = tl.constexpr(-2.302208198 * 0.044715)


@triton.jit
def gelu(v):
    """``v / 2 * (1 + tanh(u))``, ``u = (2 / pi)^(1/2) * (v + 0.044715 * v^3)``, as ``v / (1 + e^(-2u))``."""
    return v / (1.0 + tl.exp2(v * (CUBIC * (v * v) + LINEAR)))


@triton.jit
def bias_gelu(sums, n, N, bias_ptr, stride_bias):
    """An epilogue, in place of matmul's ``no_epilogue``; ``n``: the columns."""
    bias = tl.load(bias_ptr + n.to(tl.int64) * stride_bias, mask=n < N, other=0.0).to(tl.float32)
    return gelu(sums + bias)


@triton.jit
def linear_gelu_tensor_core_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, stride_xm, stride_xk, stride_wk, stride_wn, stride_bias,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: one program per tile of y, in grouped order (GROUP_M rows of tiles)."""
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + m * stride_xm + k[None, :] * stride_xk
    w_ptrs = w_ptr + k[:, None] * stride_wk + n * stride_wn
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, K, BLOCK_K):
        left = K - begin
        x = tl.load(x_ptrs, mask=(m < M) & (k[None, :] < left), other=0.0)
        w = tl.load(w_ptrs, mask=(k[:, None] < left) & (n < N), other=0.0)
        total = tl.dot(x, w, total)
        x_ptrs += BLOCK_K * stride_xk
        w_ptrs += BLOCK_K * stride_wk
    bias = tl.load(bias_ptr + n * stride_bias, mask=n < N, other=0.0).to(tl.float32)
    y = gelu(total + bias).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + m * N + n, y, mask=(m < M) & (n < N))


@triton.jit
def linear_gelu_unfused_kernel(
    bias_ptr, y_ptr, M, N, stride_bias, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Grid: one program per tile of y, row by row; y is overwritten."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0).to(tl.int64)
    m = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    sums = tl.load(y_ptr + m * N + n, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + n * stride_bias, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + m * N + n, gelu(sums + bias).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def linear_gelu_fused_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, stride_x, stride_w, stride_bias,
    X_BY_ROWS: tl.constexpr, W_BY_ROWS: tl.constexpr, Y_ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles are assigned round-robin.

    matmul's persistent kernel with another epilogue: bias and GELU are applied in registers, one half of the
    tile at a time.  The stores overlap with the next tile's first loads.
    """
    if X_BY_ROWS:
        x_desc = tl.make_tensor_descriptor(x_ptr, [M, K], [stride_x, 1], [BLOCK_M, BLOCK_K])
    else:
        x_desc = tl.make_tensor_descriptor(x_ptr, [K, M], [stride_x, 1], [BLOCK_K, BLOCK_M])
    if W_BY_ROWS:
        w_desc = tl.make_tensor_descriptor(w_ptr, [K, N], [stride_w, 1], [BLOCK_K, BLOCK_N])
    else:
        w_desc = tl.make_tensor_descriptor(w_ptr, [N, K], [stride_w, 1], [BLOCK_N, BLOCK_K])
    if Y_ALIGNED:
        y_desc = tl.make_tensor_descriptor(y_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])

    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            x = x_desc.load([m, k]) if X_BY_ROWS else x_desc.load([k, m]).T
            w = w_desc.load([k, n]) if W_BY_ROWS else w_desc.load([n, k]).T
            total = tl.dot(x, w, total)
        halves = tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1])
        left, right = tl.split(halves)
        columns = n + tl.arange(0, BLOCK_N // 2)[None, :]
        next_columns = columns + BLOCK_N // 2
        bias_ptrs = bias_ptr + columns.to(tl.int64) * stride_bias
        bias = tl.load(bias_ptrs, mask=columns < N, other=0.0).to(tl.float32)
        next_ptrs = bias_ptrs + BLOCK_N // 2 * stride_bias
        next_bias = tl.load(next_ptrs, mask=next_columns < N, other=0.0).to(tl.float32)
        left = gelu(left + bias).to(y_ptr.dtype.element_ty)
        if Y_ALIGNED:
            y_desc.store([m, n], left)
            right = gelu(right + next_bias).to(y_ptr.dtype.element_ty)
            y_desc.store([m, n + BLOCK_N // 2], right)
        else:
            rows = m.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
            y_ptrs = y_ptr + rows * N + columns
            tl.store(y_ptrs, left, mask=(rows < M) & (columns < N))
            right = gelu(right + next_bias).to(y_ptr.dtype.element_ty)
            tl.store(y_ptrs + BLOCK_N // 2, right, mask=(rows < M) & (next_columns < N))


def checked(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> tuple[int, int, int, torch.Tensor]:
    """M, N, K and an uninitialised y."""
    check_linear("linear_gelu", x, w, bias)
    (M, K), N = x.shape, w.shape[1]
    check_counts(M=M, N=N, K=K)
    check_strides(N, stride_bias=bias.stride(0))
    return M, N, K, torch.empty((M, N), dtype=x.dtype, device=x.device)


@implementation("linear_gelu", "triton.tensor_core", level="tensor_core")
def tensor_core(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    M, N, K, y = checked(x, w, bias)
    if y.numel() == 0:
        return y
    check_strides(K, stride_xk=x.stride(1), stride_wk=w.stride(0))
    tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32}
    grid = (cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"]),)
    strides = (*x.stride(), *w.stride(), bias.stride(0))
    linear_gelu_tensor_core_kernel[grid](
        x, w, bias, y, M, N, K, *strides, **tile, GROUP_M=8, num_warps=8, num_stages=4
    )
    return y


def persistent_launch(x: torch.Tensor, w: torch.Tensor, M: int, N: int) -> tuple[int, dict[str, int]]:
    """The number of programs, and the tile with its warps and stages: as for matmul's persistent variant."""
    tile = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}
    tiles = cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"])
    return min(multiprocessors(x.device), tiles), {**tile, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}


def operands(
    x: torch.Tensor, w: torch.Tensor, aligned: tuple[int, int] = (16, 16)
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[int, int], tuple[bool, bool]]:
    """x and w as TMA takes them, aligned to so many bytes, their leading strides, and whether row-major."""
    check_coordinates(M=x.shape[0], N=w.shape[1], K=x.shape[1])
    (x, X_BY_ROWS, ldx), (w, W_BY_ROWS, ldw) = map(matrix_for_tma, (x, w), aligned)
    allocate_descriptors_on(x.device)
    return (x, w), (ldx, ldw), (X_BY_ROWS, W_BY_ROWS)


@implementation(
    "linear_gelu", "triton.unfused", level="hopper", algorithm="matmul, then bias and GELU", requires="sm_90"
)
def unfused(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    M, N, K, y = checked(x, w, bias)
    if y.numel() == 0:
        return y
    if K == 0:
        y.zero_()  # TMA does not take an empty matrix
    else:
        (x, w), strides, by_rows = operands(x, w)
        programs, tile = persistent_launch(x, w, M, N)
        Y_ALIGNED = N * y.element_size() % 16 == 0
        matmul_persistent_kernel[(programs,)](
            x, w, y, M, N, K, *strides, *by_rows, C_ALIGNED=Y_ALIGNED, FLATTEN=True, **tile
        )
    BLOCK_M, BLOCK_N = 4, 1024
    grid = grid_1d(cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N))
    linear_gelu_unfused_kernel[grid](
        bias, y, M, N, bias.stride(0), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=8
    )
    return y


TILES = tuple(tile for tile in SPLIT_K_TILES if tile.BLOCK_M < 128 or tile.BLOCK_N == 256)
"""Of split_k's kernel, and that of `persistent_launch`."""


@implementation(
    "linear_gelu",
    "triton.fused",
    level="hopper",
    algorithm="matmul with bias and GELU in its epilogue",
    requires="sm_90",
)
def fused(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    M, N, K, y = checked(x, w, bias)
    if y.numel() == 0:
        return y
    if K == 0:
        return tensor_core(x, w, bias)  # TMA does not take an empty matrix
    (x, w), strides, by_rows = operands(x, w)
    chosen, aligned = fastest_tile(TILES, M, N, K, strides, by_rows, multiprocessors(x.device))
    if 128 in aligned:
        (x, w), strides, by_rows = operands(x, w, aligned)
    if chosen.BLOCK_M < 128:
        return by_split_k(x, w, y, chosen, bias_gelu, bias)
    programs, tile = persistent_launch(x, w, M, N)
    Y_ALIGNED = N * y.element_size() % 16 == 0
    linear_gelu_fused_kernel[(programs,)](
        x, w, bias, y, M, N, K, *strides, bias.stride(0), *by_rows, Y_ALIGNED, **tile
    )
    return y
