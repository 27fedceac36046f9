"""matmul through cupy: ``a[M,K], b[K,N] -> c[M,N]``, with the kernels of ``kernels/matmul.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_product
from compare.device import arch, capability
from compare.registry import implementation
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def checked(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int, int, torch.Tensor]:
    """M, N, K and an empty c."""
    check_product("matmul", a, b)
    (M, K), N = a.shape, b.shape[1]
    return M, N, K, torch.empty((M, N), dtype=a.dtype, device=a.device)


# --------------------------------------------------------------------------- any strides, element by element

MOST_PRODUCTS = 1 << 37


def check_slow(products: int) -> None:
    if products > MOST_PRODUCTS:
        raise NotImplementedError(f"M*N*K={products}: it would take seconds, at most {MOST_PRODUCTS}")


def sizes_and_strides(M: int, N: int, K: int, a: torch.Tensor, b: torch.Tensor) -> list[np.int64]:
    return [np.int64(value) for value in (M, N, K, *a.stride(), *b.stride())]


@implementation("matmul", "cupy.naive", rung="naive")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A thread an element; a warp's threads below each other."""
    M, N, K, c = checked(a, b)
    check_slow(M * N * K)
    if c.numel() == 0:
        return c
    THREADS = 256
    run = kernel("matmul", f"matmul_naive_kernel<{CTYPES[a.dtype]}, {THREADS}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    blocks = ceil_div(M, 32) * ceil_div(N, THREADS // 32)
    run((blocks,), (THREADS,), (*pointers, *sizes_and_strides(M, N, K, a, b)))
    return c


@implementation("matmul", "cupy.coalesced", rung="naive")
def coalesced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A thread an element; a warp's threads beside each other."""
    M, N, K, c = checked(a, b)
    check_slow(M * N * K)
    if c.numel() == 0:
        return c
    THREADS = 256
    run = kernel("matmul", f"matmul_coalesced_kernel<{CTYPES[a.dtype]}, {THREADS}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    blocks = ceil_div(M, THREADS // 32) * ceil_div(N, 32)
    run((blocks,), (THREADS,), (*pointers, *sizes_and_strides(M, N, K, a, b)))
    return c


@implementation("matmul", "cupy.shared", rung="tiled")
def shared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A block a tile, from tiles in shared memory."""
    M, N, K, c = checked(a, b)
    check_slow(M * N * K)
    if c.numel() == 0:
        return c
    BLOCK = 32
    run = kernel("matmul", f"matmul_shared_kernel<{CTYPES[a.dtype]}, {BLOCK}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    blocks = ceil_div(M, BLOCK) * ceil_div(N, BLOCK)
    run((blocks,), (BLOCK * BLOCK,), (*pointers, *sizes_and_strides(M, N, K, a, b)))
    return c


# --------------------------------------------------------------------------- 16 bytes at a time


def aligned(x: torch.Tensor) -> tuple[torch.Tensor, bool, int]:
    """``x``, whether it lies by rows (else by columns), and how far apart these are.

    Rows (columns) are dense and start on 16-byte boundaries; where they do not, it is a copy whose rows do.
    """
    pack = 16 // x.element_size()
    if x.data_ptr() % 16 == 0:
        if x.stride(1) == 1 and x.stride(0) % pack == 0:
            return x, True, x.stride(0)
        if x.stride(0) == 1 and x.stride(1) % pack == 0:
            return x, False, x.stride(1)
    rows, columns = x.shape
    pitch = ceil_div(columns, pack) * pack
    padded = torch.empty((rows, pitch), dtype=x.dtype, device=x.device)
    padded[:, :columns].copy_(x)
    return padded, True, pitch


def cpp(value: bool) -> str:
    return str(value).lower()


def tile_bytes(by_lines_of_k: bool, BLOCK: int, BLOCK_K: int, item_bytes: int) -> int:
    """Of a tile of the register rung, with a pack more at the end of each line along K."""
    return BLOCK * (BLOCK_K * item_bytes + 16) if by_lines_of_k else BLOCK * BLOCK_K * item_bytes


@implementation("matmul", "cupy.register", rung="tiled")
def register(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A thread a tile, copies on their way meanwhile."""
    M, N, K, c = checked(a, b)
    if c.numel() == 0:
        return c
    a, A_BY_ROWS, lda = aligned(a)
    b, B_BY_ROWS, ldb = aligned(b)
    BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, STAGES, BLOCKS = 128, 128, 8, 8, 2, 2
    BLOCK_K = 64 // a.element_size()
    layouts = f"{CTYPES[a.dtype]}, {cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}"
    tile = f"{BLOCK_M}, {BLOCK_N}, {BLOCK_K}, {THREAD_M}, {THREAD_N}, {STAGES}, {BLOCKS}"
    run = kernel("matmul", f"matmul_register_kernel<{layouts}, {tile}>", a.device)
    shared_bytes = STAGES * (
        tile_bytes(A_BY_ROWS, BLOCK_M, BLOCK_K, a.element_size())
        + tile_bytes(not B_BY_ROWS, BLOCK_N, BLOCK_K, a.element_size())
    )
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = [np.int64(value) for value in (M, N, K, lda, ldb)]
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    threads = BLOCK_M * BLOCK_N // (THREAD_M * THREAD_N)
    run((blocks,), (threads,), (*pointers, *sizes), shared_mem=shared_bytes)
    return c


def check_tensor_cores(x: torch.Tensor) -> None:
    """Refuse what the tensor cores of this GPU cannot multiply."""
    if x.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")
    name = arch(x.device)
    if x.dtype is torch.bfloat16 and name is not None and capability(name) < 80:
        raise NotImplementedError(f"bf16: tensor cores multiply it from sm_80 on, this is {name}")


@implementation("matmul", "cupy.tensor_core", rung="tensor_core")
def tensor_core(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A warp a tile, by tensor cores."""
    M, N, K, c = checked(a, b)
    check_tensor_cores(a)
    if c.numel() == 0:
        return c
    a, A_BY_ROWS, lda = aligned(a)
    b, B_BY_ROWS, ldb = aligned(b)
    BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES, BLOCKS = 128, 128, 32, 2, 2, 3, 2
    layouts = f"{CTYPES[a.dtype]}, {cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}"
    tile = f"{BLOCK_M}, {BLOCK_N}, {BLOCK_K}, {WARPS_M}, {WARPS_N}, {STAGES}, {BLOCKS}"
    run = kernel("matmul", f"matmul_tensor_core_kernel<{layouts}, {tile}>", a.device)
    shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * a.element_size()
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = [np.int64(value) for value in (M, N, K, lda, ldb)]
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    run((blocks,), (WARPS_M * WARPS_N * 32,), (*pointers, *sizes), shared_mem=shared_bytes)
    return c
