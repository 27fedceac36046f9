"""matmul through cupy: ``a[M,K], b[K,N] -> c[M,N]``, with the kernels of ``kernels/matmul/``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_product
from compare.device import arch, capability, multiprocessors
from compare.registry import implementation
from cuda_impl.loader import kernel
from cuda_impl.tensor_map import tensor_map

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def checked(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int, int, torch.Tensor]:
    """M, N, K and an uninitialised c."""
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


@implementation("matmul", "cupy.naive", level="naive", algorithm="a dot product per element")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One element per thread; a warp's threads on consecutive rows: uncoalesced."""
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


@implementation("matmul", "cupy.coalesced", level="naive")
def coalesced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One element per thread; a warp's threads on consecutive columns: coalesced."""
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


@implementation("matmul", "cupy.shared", level="tiled")
def shared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One tile per block, from tiles in shared memory."""
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


@implementation("matmul", "cupy.blocktile", level="tiled")
def blocktile(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A tile per thread, in registers."""
    M, N, K, c = checked(a, b)
    if c.numel() == 0:
        return c
    BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N = 128, 128, 16, 8, 8
    tile = f"{BLOCK_M}, {BLOCK_N}, {BLOCK_K}, {THREAD_M}, {THREAD_N}"
    run = kernel("matmul", f"matmul_blocktile_kernel<{CTYPES[a.dtype]}, {tile}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    threads = BLOCK_M * BLOCK_N // (THREAD_M * THREAD_N)
    run((blocks,), (threads,), (*pointers, *sizes_and_strides(M, N, K, a, b)))
    return c


# --------------------------------------------------------------------------- 16-byte vectorized access


def aligned(x: torch.Tensor) -> tuple[torch.Tensor, bool, int]:
    """``x``, whether it is row-major (else column-major), and its leading stride.

    Its rows (or columns) are contiguous and 16-byte aligned; if they are not, such a copy is returned.
    """
    pack = 16 // x.element_size()
    by_rows = x.stride(1) == 1 or x.stride(0) != 1
    lines = x if by_rows else x.t()
    ld, length = lines.stride(0), lines.size(1)
    if lines.stride(1) == 1 and ld >= length and ld % pack == 0 and x.data_ptr() % 16 == 0:
        return x, by_rows, ld
    ld = ceil_div(length, pack) * pack
    padded = torch.empty((lines.size(0), ld), dtype=x.dtype, device=x.device)[:, :length]
    padded.copy_(lines)
    return padded if by_rows else padded.t(), by_rows, ld


def cpp(value: bool) -> str:
    return str(value).lower()


@implementation("matmul", "cupy.vectorized", level="tiled")
def vectorized(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A tile per thread, by accesses of 16 bytes."""
    M, N, K, c = checked(a, b)
    if c.numel() == 0:
        return c
    a, A_BY_ROWS, lda = aligned(a)
    b, B_BY_ROWS, ldb = aligned(b)
    BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N = 128, 128, 16, 8, 8
    layouts = f"{CTYPES[a.dtype]}, {cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}"
    tile = f"{BLOCK_M}, {BLOCK_N}, {BLOCK_K}, {THREAD_M}, {THREAD_N}"
    run = kernel("matmul", f"matmul_vectorized_kernel<{layouts}, {tile}>", a.device)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = [np.int64(value) for value in (M, N, K, lda, ldb)]
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    run((blocks,), (BLOCK_M * BLOCK_N // (THREAD_M * THREAD_N),), (*pointers, *sizes))
    return c


def launch_cp_async(
    variant: str, a: torch.Tensor, b: torch.Tensor, BLOCK_N: int, THREAD_N: int
) -> torch.Tensor:
    """``matmul_<variant>_kernel``, which prefetches tiles by cp.async, BLOCK_N columns of c wide."""
    M, N, K, c = checked(a, b)
    if a.dtype is not torch.float32:
        raise NotImplementedError("16-bit elements: cp.async cannot transpose less than 4 bytes")
    if c.numel() == 0:
        return c
    a, A_BY_ROWS, lda = aligned(a)
    b, B_BY_ROWS, ldb = aligned(b)
    BLOCK_M, BLOCK_K, THREAD_M = 128, 16, 8
    name = arch(a.device)
    STAGES = 2 if name is not None and capability(name) < 80 else 3  # sm_75: shared memory holds two
    tile = f"{BLOCK_M}, {BLOCK_N}, {BLOCK_K}, {THREAD_M}, {THREAD_N}, {STAGES}"
    run = kernel("matmul", f"matmul_{variant}_kernel<{cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}, {tile}>", a.device)
    shared_bytes = STAGES * BLOCK_K * (BLOCK_M + 4 + BLOCK_N + 4) * 4
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = [np.int64(value) for value in (M, N, K, lda, ldb)]
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    threads = BLOCK_M * BLOCK_N // (THREAD_M * THREAD_N)
    run((blocks,), (threads,), (*pointers, *sizes), shared_mem=shared_bytes)
    return c


@implementation("matmul", "cupy.cp_async", level="tiled")
def cp_async(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """cp.async prefetches the next tiles."""
    return launch_cp_async("cp_async", a, b, BLOCK_N=128, THREAD_N=8)


@implementation("matmul", "cupy.pipelined", level="tiled")
def pipelined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Shared memory is read one step ahead as well, by a thread with twice the columns."""
    return launch_cp_async("pipelined", a, b, BLOCK_N=256, THREAD_N=16)


def check_tensor_cores(x: torch.Tensor) -> None:
    """Raise NotImplementedError for a dtype that this GPU's tensor cores do not support."""
    if x.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")
    name = arch(x.device)
    if x.dtype is torch.bfloat16 and name is not None and capability(name) < 80:
        raise NotImplementedError(f"bf16: tensor cores multiply it from sm_80 on, this is {name}")


def warps_across(BLOCK_M: int, BLOCK_N: int, WARPS: int) -> int:
    """How many of a block's warps are side by side, so that a warp's share is about as high as wide."""
    across = (1 << i for i in range(WARPS.bit_length()))
    return min(across, key=lambda WARPS_N: abs(BLOCK_M * WARPS_N * WARPS_N - BLOCK_N * WARPS))


@implementation(
    "matmul",
    "cupy.tensor_core",
    level="tensor_core",
    tunable={
        "BLOCK_M": (64, 128, 256),
        "BLOCK_N": (32, 64, 128, 256),
        "BLOCK_K": (32, 64),
        "GROUP_M": (8,),
        "WARPS": (4, 8),
        "STAGES": (2, 3, 4, 5),
    },
    matches="triton.autotuned",
)
def tensor_core(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    BLOCK_M: int = 128,
    BLOCK_N: int = 128,
    BLOCK_K: int = 32,
    WARPS: int = 4,
    STAGES: int = 4,
) -> torch.Tensor:
    """One tile per warp, on tensor cores."""
    M, N, K, c = checked(a, b)
    check_tensor_cores(a)
    if c.numel() == 0:
        return c
    a, A_BY_ROWS, lda = aligned(a)
    b, B_BY_ROWS, ldb = aligned(b)
    WARPS_N = warps_across(BLOCK_M, BLOCK_N, WARPS)
    WARPS_M = WARPS // WARPS_N
    BLOCKS = 2 if BLOCK_M * BLOCK_N <= 128 * 128 and WARPS == 4 else 1  # per multiprocessor, by registers
    layouts = f"{CTYPES[a.dtype]}, {cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}"
    tile = f"{BLOCK_M}, {BLOCK_N}, {BLOCK_K}, {WARPS_M}, {WARPS_N}, {STAGES}, {BLOCKS}"
    run = kernel("matmul", f"matmul_tensor_core_kernel<{layouts}, {tile}>", a.device)
    shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * a.element_size()
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = [np.int64(value) for value in (M, N, K, lda, ldb)]
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    run((blocks,), (WARPS_M * WARPS_N * 32,), (*pointers, *sizes), shared_mem=shared_bytes)
    return c


# --------------------------------------------------------------------------- Hopper's own units

PIECE = 64
"""Tiles consist of pieces of 64 x 64 elements, whose rows of 128 bytes TMA swizzles."""
WARPGROUP = 128
CONSUMERS = 2
PERMUTED_BYTES = 1024
"""Alignment of swizzled tiles; dynamic shared memory may lack it."""
MOST = (1 << 31) - 512
"""Maximum M, N and K: coordinates, up to the end of the last tile, are 32-bit."""


def check_copy_engine(M: int, N: int, K: int) -> None:
    if max(M, N, K) > MOST:
        raise NotImplementedError(f"M={M}, N={N}, K={K}: at most {MOST} of each")


def operand_map(x: torch.Tensor, along_k: bool, by_rows: bool, ld: int, BLOCK: int) -> np.void:
    """The tensor map of an operand with tiles of BLOCK along M or N by 64 along K."""
    return tensor_map(x, by_rows, ld, BLOCK if along_k else PIECE)


def tile_ring_bytes(BLOCK_M: int, BLOCK_N: int, STAGES: int) -> int:
    return STAGES * (BLOCK_M + BLOCK_N) * PIECE * 2 + PERMUTED_BYTES


@implementation("matmul", "cupy.wgmma", level="hopper", requires="sm_90a")
def wgmma(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One tile per warpgroup, fetched by TMA."""
    M, N, K, c = checked(a, b)
    check_tensor_cores(a)
    check_copy_engine(M, N, K)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    a, A_BY_ROWS, lda = aligned(a)
    b, B_BY_ROWS, ldb = aligned(b)
    BLOCK_M, BLOCK_N, STAGES = 128, 128, 3
    layouts = f"{CTYPES[a.dtype]}, {cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}"
    run = kernel("matmul", f"matmul_wgmma_kernel<{layouts}, {STAGES}>", a.device)
    a_map = operand_map(a, A_BY_ROWS, A_BY_ROWS, lda, BLOCK_M)
    b_map = operand_map(b, not B_BY_ROWS, B_BY_ROWS, ldb, BLOCK_N)
    sizes = (np.int32(M), np.int32(N), np.int32(K))
    blocks = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES)
    run((blocks,), (WARPGROUP,), (a_map, b_map, c.data_ptr(), *sizes), shared_mem=shared_bytes)
    return c


def launch_specialized(
    variant: str,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    persistent: bool,
    CLUSTER: int = 1,
    BLOCK_N: int = 256,
    STAGES: int = 4,
) -> torch.Tensor:
    """One producer and two consumer warpgroups per block; a block has one tile, or several if ``persistent``.

    Args:
        variant: of ``matmul_<variant>_kernel``.
        persistent: one block per multiprocessor, else one per tile.
        CLUSTER: blocks in one column of tiles, which share a tile of b.
        BLOCK_N: columns of a tile.
        STAGES: pipeline stages, each with a tile of a and of b.
    """
    M, N, K, c = checked(a, b)
    check_tensor_cores(a)
    check_copy_engine(M, N, K)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    a, A_BY_ROWS, lda = aligned(a)
    b, B_BY_ROWS, ldb = aligned(b)
    BLOCK_M = CONSUMERS * PIECE
    layouts = f"{CTYPES[a.dtype]}, {cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}"
    run = kernel("matmul", f"matmul_{variant}_kernel<{layouts}, {BLOCK_N}, {STAGES}>", a.device)
    a_map = operand_map(a, A_BY_ROWS, A_BY_ROWS, lda, BLOCK_M)
    b_map = operand_map(b, not B_BY_ROWS, B_BY_ROWS, ldb, BLOCK_N // CLUSTER)
    sizes = (np.int32(M), np.int32(N), np.int32(K))
    blocks = CLUSTER * ceil_div(M, CLUSTER * BLOCK_M) * ceil_div(N, BLOCK_N)
    if persistent:
        blocks = min(blocks, multiprocessors(a.device) // CLUSTER * CLUSTER)
    threads = (1 + CONSUMERS) * WARPGROUP
    shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES)
    run((blocks,), (threads,), (a_map, b_map, c.data_ptr(), *sizes), shared_mem=shared_bytes)
    return c


@implementation(
    "matmul",
    "cupy.specialized",
    level="hopper",
    requires="sm_90a",
    tunable={
        "BLOCK_M": (128,),
        "BLOCK_N": (64, 128, 192, 256),
        "BLOCK_K": (64,),
        "WARPS": (8,),
        "STAGES": (2, 3, 4),
    },
    matches="triton.autotuned",
)
def specialized(a: torch.Tensor, b: torch.Tensor, *, BLOCK_N: int = 256, STAGES: int = 4) -> torch.Tensor:
    """One producer warp, eight consumer warps."""
    return launch_specialized("specialized", a, b, persistent=False, BLOCK_N=BLOCK_N, STAGES=STAGES)


@implementation(
    "matmul", "cupy.persistent", level="hopper", algorithm="tiles by persistent blocks", requires="sm_90a"
)
def persistent(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Persistent: one block per multiprocessor, round-robin tile scheduling."""
    return launch_specialized("persistent", a, b, persistent=True)


@implementation("matmul", "cupy.multicast", level="hopper", requires="sm_90a")
def multicast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """TMA multicast: two blocks share their loads of b."""
    return launch_specialized("multicast", a, b, persistent=True, CLUSTER=2)


def cluster_shape(BLOCK_N: int) -> tuple[int, int]:
    """A cluster's blocks along M and N: they share b if half a tile of it is whole pieces, else a."""
    return (2, 1) if BLOCK_N % (2 * PIECE) == 0 else (1, 2)


def tile_for(M: int, N: int, processors: int) -> tuple[int, int]:
    """BLOCK_N and STAGES of the tile with which the last multiprocessor finishes first.

    A tile costs its width plus about 96 columns for prologue and epilogue, times the number of tiles that a
    cluster processes in sequence.
    """
    clusters = max(processors // 2, 1)

    def columns(BLOCK_N: int) -> int:
        CLUSTER_M, CLUSTER_N = cluster_shape(BLOCK_N)
        turns = ceil_div(ceil_div(M, CLUSTER_M * 128) * ceil_div(N, CLUSTER_N * BLOCK_N), clusters)
        return turns * (BLOCK_N + 96)

    return min((256, 4), (192, 4), (64, 8), key=lambda tile: columns(tile[0]))


def launch_tma_store(
    source: str, name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, more: tuple[int, ...] = ()
) -> None:
    """Launch a kernel that works as ``tma_store``: clusters of two blocks, persistent, TMA stores.

    Args:
        source: the op whose file has the kernel.
        name: the kernel, without its template arguments.
        a: the left operand; neither K nor c is empty.
        b: the right operand.
        c: the output. Its rows are 16-byte aligned.
        more: addresses that the kernel takes after the maps.
    """
    (M, K), N = a.shape, b.shape[1]
    a, A_BY_ROWS, lda = aligned(a)
    b, B_BY_ROWS, ldb = aligned(b)
    BLOCK_M, CLUSTER = 128, 2
    processors = multiprocessors(a.device)
    BLOCK_N, STAGES = tile_for(M, N, processors)
    CLUSTER_M, CLUSTER_N = cluster_shape(BLOCK_N)
    layouts = f"{CTYPES[a.dtype]}, {cpp(A_BY_ROWS)}, {cpp(B_BY_ROWS)}"
    run = kernel(source, f"{name}<{layouts}, {BLOCK_N}, {STAGES}>", a.device, overlap=True)
    a_map = operand_map(a, A_BY_ROWS, A_BY_ROWS, lda, BLOCK_M // CLUSTER_N)
    b_map = operand_map(b, not B_BY_ROWS, B_BY_ROWS, ldb, BLOCK_N // CLUSTER_M)
    c_map = tensor_map(c, True, N, 16)
    sizes = (np.int32(M), np.int32(N), np.int32(K))
    tiles = ceil_div(M, CLUSTER_M * BLOCK_M) * ceil_div(N, CLUSTER_N * BLOCK_N)
    blocks = CLUSTER * min(tiles, max(processors // CLUSTER, 1))
    pieces = BLOCK_N // PIECE
    places = 2 if pieces % 2 == 0 else pieces  # buffers of 16 x 64 elements of c per consumer warp
    shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES) + 4 * CONSUMERS * places * 16 * PIECE * 2
    threads = (1 + CONSUMERS) * WARPGROUP
    run((blocks,), (threads,), (a_map, b_map, c_map, *more, *sizes), shared_mem=shared_bytes)


@implementation("matmul", "cupy.tma_store", level="hopper", requires="sm_90a")
def tma_store(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """TMA stores c.  Falls back to multicast if rows of c are not 16-byte aligned."""
    M, N, K, c = checked(a, b)
    check_tensor_cores(a)
    check_copy_engine(M, N, K)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    if N * c.element_size() % 16 != 0:
        return multicast(a, b)
    launch_tma_store("matmul", "matmul_tma_store_kernel", a, b, c)
    return c
