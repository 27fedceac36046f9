"""batched_matmul in CUDA: ``a[B,N,N], b[B,N,N] -> c[B,N,N]``, with ``kernels/batched_matmul.cuh``."""

from __future__ import annotations

from typing import NamedTuple

from compare.arguments import check_batched_squares
from compare.device import multiprocessors
from cuda_impl.buffers import Tensor, empty_like
from cuda_impl.launch import HALVES, Kernel, Launch, Plan, ceil_div, int32, int64, variant
from cuda_impl.launches.matmul import LAYOUTS
from cuda_impl.layouts import BOOLS, check_shared, check_tensor_cores, vector

LARGEST = 128
"""Maximum N: a block holds whole matrices."""


def checked(a: Tensor, b: Tensor) -> tuple[int, int, Tensor]:
    """B, N and an uninitialised c."""
    check_batched_squares("batched_matmul", a, b)
    return a.size(0), a.size(1), empty_like(a)


def rounded(N: int, step: int) -> int:
    """N, rounded up to whole steps, at least one; raises NotImplementedError above the maximum."""
    if N > LARGEST:
        raise NotImplementedError(
            f"N={N}: a block holds whole matrices of up to {LARGEST} rows; torch.eager takes any"
        )
    return ceil_div(max(N, 1), step) * step


MOST_THREADS = 1024


def threads_of(MATRICES: int, BLOCK_N: int) -> int:
    """Threads per block, one warp per 16 rows; raises NotImplementedError above the maximum."""
    threads = MATRICES * BLOCK_N * 2
    if threads > MOST_THREADS:
        raise NotImplementedError(
            f"MATRICES={MATRICES}: with tiles of {BLOCK_N} rows that is {threads} threads a block, which has "
            f"at most {MOST_THREADS}; take MATRICES={MOST_THREADS // (BLOCK_N * 2)} or fewer"
        )
    return threads


def is_packed(x: Tensor, by_rows: bool = True) -> bool:
    """Whether rows (or columns) are whole 16-byte vectors, aligned."""
    VEC, along = vector(x), 2 if by_rows else 1
    return (
        x.stride(along) == 1
        and x.size(1) % VEC == x.stride(3 - along) % VEC == x.stride(0) % VEC == 0
        and x.data_ptr() % 16 == 0
    )


class Lie(NamedTuple):
    PACKED: bool
    A_BY_ROWS: bool
    B_BY_ROWS: bool


def lie(a: Tensor, b: Tensor) -> Lie:
    """How both operands lie in memory."""
    A_BY_ROWS, B_BY_ROWS = a.stride(2) == 1, b.stride(2) == 1
    return Lie(is_packed(a, A_BY_ROWS) and is_packed(b, B_BY_ROWS), A_BY_ROWS, B_BY_ROWS)


NAIVE = Kernel("batched_matmul_naive_kernel<{T}, 256>")


@variant("batched_matmul", "naive", kernels=[NAIVE], level="naive", algorithm="a dot product per element")
def naive(a: Tensor, b: Tensor) -> Plan:
    """One element per thread."""
    B, N, c = checked(a, b)
    args = (a, b, c, *int64(B, N, *a.stride(), *b.stride()))
    return Plan(c, Launch(NAIVE(a.dtype), ceil_div(c.numel(), 256), 256, args))


TILED = Kernel("batched_matmul_tiled_kernel<{T}, {PACKED}, {ROWS}>", PACKED=BOOLS, ROWS=(4,))


@variant("batched_matmul", "tiled", kernels=[TILED], level="tiled", tunable={"ROWS": (4, 8)})
def tiled(a: Tensor, b: Tensor, *, ROWS: int = 4) -> Plan:
    """Whole matrices in shared memory, ROWS x 4 elements per thread."""
    B, N, c = checked(a, b)
    side = rounded(N, ROWS)
    each = side // ROWS * side // 4  # threads per matrix
    matrices = max(128 // each, 1)  # 128 threads, at least one matrix
    shared_bytes = check_shared(a, 2 * matrices * side * (side + 4) * 4, f"N={N}")
    run = TILED(a.dtype, PACKED=is_packed(a) and is_packed(b), ROWS=ROWS)
    args = (a, b, c, *int64(B), *int32(N, matrices), *int64(*a.stride(), *b.stride()))
    return Plan(c, Launch(run, ceil_div(B, matrices), matrices * each, args, shared_bytes))


def matrices_of(BLOCK_N: int) -> int:
    """MATRICES per block: 4 to 8 warps, with 16 rows each."""
    return ceil_div(64, BLOCK_N)


def group_bytes(MATRICES: int, BLOCK_N: int) -> int:
    """Bytes of a group's tiles of a and b."""
    return 2 * MATRICES * BLOCK_N * BLOCK_N * 2


TILES = [(BLOCK_N, matrices_of(BLOCK_N)) for BLOCK_N in range(16, LARGEST + 1, 16)]
TENSOR_CORE = Kernel(
    "batched_matmul_tensor_core_kernel<{T}, {A_BY_ROWS}, {B_BY_ROWS}, {TILE}>", HALVES, **LAYOUTS, TILE=TILES
)
ANY_LAYOUT = Kernel("batched_matmul_any_layout_kernel<{T}, {TILE}>", HALVES, TILE=TILES)


@variant(
    "batched_matmul",
    "tensor_core",
    kernels=[TENSOR_CORE, ANY_LAYOUT],
    level="tensor_core",
    tunable={"MATRICES": (1, 2, 4, 8)},
)
def tensor_core(a: Tensor, b: Tensor, *, MATRICES: int = 0) -> Plan:
    """Whole matrices in shared memory, 16 rows per warp; MATRICES of 0 are chosen by N."""
    B, N, c = checked(a, b)
    check_tensor_cores(a)
    BLOCK_N = rounded(N, 16)
    MATRICES = MATRICES or matrices_of(BLOCK_N)
    threads = threads_of(MATRICES, BLOCK_N)
    shared_bytes = check_shared(a, group_bytes(MATRICES, BLOCK_N), f"N={N}, MATRICES={MATRICES}")
    of, TILE = lie(a, b), (BLOCK_N, MATRICES)
    run = ANY_LAYOUT(a.dtype, TILE=TILE)
    if of.PACKED:
        run = TENSOR_CORE(a.dtype, A_BY_ROWS=of.A_BY_ROWS, B_BY_ROWS=of.B_BY_ROWS, TILE=TILE)
    args = (a, b, c, *int64(B), *int32(N), *int64(*a.stride(), *b.stride()))
    return Plan(c, Launch(run, ceil_div(B, MATRICES), threads, args, shared_bytes))


def blocks_of(MATRICES: int, BLOCK_N: int, STAGES: int) -> int:
    """BLOCKS per multiprocessor, limited by 227 KB of shared memory and by the registers of 1536 threads."""
    shared_bytes = STAGES * group_bytes(MATRICES, BLOCK_N)
    return max(min((227 << 10) // (shared_bytes + 1024), 1536 // threads_of(MATRICES, BLOCK_N)), 1)


PIPELINED = Kernel(
    "batched_matmul_pipelined_kernel<{T}, {A_BY_ROWS}, {B_BY_ROWS}, {TILE}>",
    HALVES,
    **LAYOUTS,
    TILE=[(BLOCK_N, MATRICES, 3, blocks_of(MATRICES, BLOCK_N, 3)) for BLOCK_N, MATRICES in TILES],
)


@variant(
    "batched_matmul",
    "pipelined",
    kernels=[ANY_LAYOUT, PIPELINED],
    level="tensor_core",
    tunable={"MATRICES": (1, 2, 4, 8), "STAGES": (2, 3, 4)},
)
def pipelined(a: Tensor, b: Tensor, *, MATRICES: int = 0, STAGES: int = 3) -> Plan:
    """Persistent: the next groups are prefetched while one is multiplied; MATRICES of 0 are chosen by N."""
    B, N, c = checked(a, b)
    check_tensor_cores(a)
    BLOCK_N, of = rounded(N, 16), lie(a, b)
    if not of.PACKED:
        return tensor_core.plan(a, b, MATRICES=MATRICES)
    MATRICES = MATRICES or matrices_of(BLOCK_N)
    threads = threads_of(MATRICES, BLOCK_N)
    BLOCKS = blocks_of(MATRICES, BLOCK_N, STAGES)
    sizes = f"N={N}, MATRICES={MATRICES}, STAGES={STAGES}"
    shared_bytes = check_shared(a, STAGES * group_bytes(MATRICES, BLOCK_N), sizes)
    TILE = (BLOCK_N, MATRICES, STAGES, BLOCKS)
    run = PIPELINED(a.dtype, A_BY_ROWS=of.A_BY_ROWS, B_BY_ROWS=of.B_BY_ROWS, TILE=TILE)
    args = (a, b, c, *int64(B), *int32(N), *int64(*a.stride(), *b.stride()))
    blocks = min(ceil_div(B, MATRICES), BLOCKS * multiprocessors(a.device))
    return Plan(c, Launch(run, blocks, threads, args, shared_bytes))
