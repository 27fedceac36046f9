"""linear_gelu through cupy: ``x[M,K], w[K,N], bias[N] -> y[M,N]``, with ``kernels/linear_gelu.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_linear
from compare.registry import implementation
from cuda_impl.loader import kernel
from cuda_impl.rawkernel.matmul import (
    CTYPES,
    aligned,
    ceil_div,
    check_copy_engine,
    check_tensor_cores,
    cpp,
    launch_tma_store,
    tma_store,
)


def checked(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> tuple[int, int, int]:
    """M, N and K."""
    check_linear("linear_gelu", x, w, bias)
    check_tensor_cores(x)
    return x.shape[0], w.shape[1], x.shape[1]


def packed(bias: torch.Tensor) -> torch.Tensor:
    """``bias`` if it is contiguous and 16-byte aligned, else such a copy."""
    dense = bias.stride(0) == 1 and bias.data_ptr() % 16 == 0
    return bias if dense else bias.clone(memory_format=torch.contiguous_format)


@implementation("linear_gelu", "cupy.tensor_core", level="tensor_core")
def tensor_core(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """matmul's kernel with bias and GELU as its epilogue, in registers."""
    M, N, K = checked(x, w, bias)
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x, X_BY_ROWS, ldx = aligned(x)
    w, W_BY_ROWS, ldw = aligned(w)
    bias = packed(bias)
    BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES, BLOCKS = 128, 128, 32, 2, 2, 4, 2
    layouts = f"{CTYPES[x.dtype]}, {cpp(X_BY_ROWS)}, {cpp(W_BY_ROWS)}"
    tile = f"{BLOCK_M}, {BLOCK_N}, {BLOCK_K}, {WARPS_M}, {WARPS_N}, {STAGES}, {BLOCKS}"
    run = kernel("linear_gelu", f"linear_gelu_tensor_core_kernel<{layouts}, {tile}>", x.device)
    shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * x.element_size()
    pointers = (x.data_ptr(), w.data_ptr(), bias.data_ptr(), y.data_ptr())
    sizes = [np.int64(value) for value in (M, N, K, ldx, ldw)]
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    run((blocks,), (WARPS_M * WARPS_N * 32,), (*pointers, *sizes), shared_mem=shared_bytes)
    return y


@implementation(
    "linear_gelu", "cupy.unfused", level="hopper", algorithm="matmul, then bias and GELU", requires="sm_90a"
)
def unfused(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """matmul's tma_store, then bias and GELU in a separate kernel."""
    M, N, _ = checked(x, w, bias)
    y = tma_store(x, w)
    if y.numel() == 0:
        return y
    bias = packed(bias)
    THREADS, pack = 256, 16 // y.element_size()
    VEC = pack if N % pack == 0 else 1
    name = f"linear_gelu_unfused_kernel<{CTYPES[y.dtype]}, {VEC}, {THREADS}>"
    run = kernel("linear_gelu", name, y.device)
    blocks = ceil_div(M * N // VEC, THREADS)
    run((blocks,), (THREADS,), (bias.data_ptr(), y.data_ptr(), np.int64(M), np.int64(N)))
    return y


@implementation(
    "linear_gelu",
    "cupy.fused",
    level="hopper",
    algorithm="matmul with bias and GELU in its epilogue",
    requires="sm_90a",
)
def fused(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """matmul's tma_store with bias and GELU as its epilogue, in registers.

    Falls back to tensor_core where TMA cannot be used: rows of y that are not 16-byte aligned, or K = 0.
    """
    M, N, K = checked(x, w, bias)
    check_copy_engine(M, N, K)
    if K == 0 or N * x.element_size() % 16 != 0:
        return tensor_core(x, w, bias)
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    if y.numel() > 0:
        bias = packed(bias)
        launch_tma_store("linear_gelu", "linear_gelu_fused_kernel", x, w, y, (bias.data_ptr(),))
    return y
