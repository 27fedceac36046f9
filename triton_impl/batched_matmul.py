"""batched_matmul in Triton: ``a[B,N,N], b[B,N,N] -> c[B,N,N]``, accumulated in fp32.

Variants, slow to fast; ``cuda_impl/kernels/batched_matmul.cuh`` has the same under the same names:

* ``naive``: one program per matrix, one term of every sum per iteration, straight from global memory
* ``tiled``: a program computes one or a few whole matrices; no tensor cores
* ``tensor_core``: as tiled, on tensor cores
* ``pipelined``: as tensor_core, persistent: loads of the next groups overlap with multiplication

``tl.arange`` takes only powers of two, so a matrix occupies a tile of BLOCK_N x BLOCK_N with padding.  For N
= 48 in 64, 56% of the elements and 42% of the products are useful.  The padding is masked: it costs
instructions, registers and shared memory, but no memory traffic.  `useful_share` computes it.

Every kernel takes all strides of a and b; c is contiguous.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from compare.arguments import check_batched_squares
from compare.device import multiprocessors, shared_bytes_of_a_block
from compare.registry import implementation
from triton_impl.counts import cdiv, grid_1d, next_power_of_2


@triton.jit
def batched_matmul_naive_kernel(
    a_ptr, b_ptr, c_ptr, N,
    stride_ab, stride_ai, stride_aj, stride_bb, stride_bi, stride_bj,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: one program per matrix.  Each term is the outer product of a column of a and a row of b."""
    matrix = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK_N)[:, None].to(tl.int64)  # 64-bit: strides are arbitrary
    j = tl.arange(0, BLOCK_N)[None, :].to(tl.int64)
    a_ptrs = a_ptr + matrix * stride_ab + i * stride_ai
    b_ptrs = b_ptr + matrix * stride_bb + j * stride_bj
    total = tl.zeros([BLOCK_N, BLOCK_N], tl.float32)
    for _ in range(N):
        a = tl.load(a_ptrs, mask=i < N, other=0.0).to(tl.float32)
        b = tl.load(b_ptrs, mask=j < N, other=0.0).to(tl.float32)
        total += a * b
        a_ptrs += stride_aj
        b_ptrs += stride_bi
    c_ptrs = c_ptr + (matrix * N + i) * N + j
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=(i < N) & (j < N))


@triton.jit
def matrices(group, MATRICES: tl.constexpr):
    """Numbers of the matrices of ``group`` (64-bit): one, whose rows all warps share, or one a warp."""
    return group if MATRICES == 1 else group * MATRICES + tl.arange(0, MATRICES)


@triton.jit
def addresses(ptr, matrix, i, j, stride_b, stride_i, stride_j, VEC: tl.constexpr, MATRICES: tl.constexpr):
    """Of rows i and columns j.  Each run of addresses starts at a multiple of VEC: so many are one access."""
    of_matrix = tl.multiple_of(matrix * stride_b, VEC)
    of_i = tl.multiple_of(i.to(tl.int64) * stride_i, VEC)  # 64-bit: strides are arbitrary
    of_j = tl.multiple_of(j.to(tl.int64) * stride_j, VEC)
    if MATRICES == 1:
        ptrs = ptr + of_matrix + of_i[:, None] + of_j[None, :]
    else:
        ptrs = ptr + of_matrix[:, None, None] + of_i[None, :, None] + of_j[None, None, :]
    return ptrs


@triton.jit
def inside(matrix, i, j, B, N, MATRICES: tl.constexpr):
    """Which of these rows and columns there are."""
    if MATRICES == 1:
        mask = (i < N)[:, None] & (j < N)[None, :] & (matrix < B)
    else:
        mask = (i < N)[None, :, None] & (j < N)[None, None, :] & (matrix < B)[:, None, None]
    return mask


@triton.jit
def batched_matmul_tiled_kernel(
    a_ptr, b_ptr, c_ptr, B, N,
    stride_ab, stride_ai, stride_aj, stride_bb, stride_bi, stride_bj,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, MATRICES: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Grid: one program per MATRICES matrices, multiplied in fp32.

    In fp32 ``tl.dot`` keeps its operands in registers: BLOCK_K columns of a and rows of b at a time.
    """
    N = N // VEC * VEC
    matrix = matrices(tl.program_id(0).to(tl.int64), MATRICES)
    i = tl.arange(0, BLOCK_N)
    c_ptrs = addresses(c_ptr, matrix, i, i, N * N, N, 1, VEC, MATRICES)
    c = tl.zeros(c_ptrs.shape, tl.float32)
    for first in range(0, BLOCK_K if BLOCK_K == BLOCK_N else N, BLOCK_K):  # no loop if once is enough
        k = first + tl.arange(0, BLOCK_K)
        a_ptrs = addresses(a_ptr, matrix, i, k, stride_ab, stride_ai, stride_aj, VEC, MATRICES)
        b_ptrs = addresses(b_ptr, matrix, k, i, stride_bb, stride_bi, stride_bj, VEC, MATRICES)
        a = tl.load(a_ptrs, mask=inside(matrix, i, k, B, N, MATRICES), other=0.0)
        b = tl.load(b_ptrs, mask=inside(matrix, k, i, B, N, MATRICES), other=0.0)
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), c, input_precision="ieee")
    tl.store(c_ptrs, c.to(c_ptr.dtype.element_ty), mask=inside(matrix, i, i, B, N, MATRICES))


@triton.jit
def multiply_group(
    a_ptr, b_ptr, c_ptr, B, N,
    stride_ab, stride_ai, stride_aj, stride_bb, stride_bi, stride_bj,
    group, BLOCK_N: tl.constexpr, MATRICES: tl.constexpr, FULL: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Multiply MATRICES consecutive matrices on tensor cores: those of number ``group`` (64-bit).

    All matrices are square and of one size: i serves as row and column of a, b and c.  FULL: matrices fill
    their tiles and the last group is complete, so that no access is masked.
    """
    N = N // VEC * VEC
    matrix = matrices(group, MATRICES)
    i = tl.arange(0, BLOCK_N)
    a_ptrs = addresses(a_ptr, matrix, i, i, stride_ab, stride_ai, stride_aj, VEC, MATRICES)
    b_ptrs = addresses(b_ptr, matrix, i, i, stride_bb, stride_bi, stride_bj, VEC, MATRICES)
    c_ptrs = addresses(c_ptr, matrix, i, i, N * N, N, 1, VEC, MATRICES)
    mask = inside(matrix, i, i, B, N, MATRICES)
    if FULL:
        a, b = tl.load(a_ptrs), tl.load(b_ptrs)
    else:
        a, b = tl.load(a_ptrs, mask=mask, other=0.0), tl.load(b_ptrs, mask=mask, other=0.0)
    c = tl.dot(a, b, input_precision="ieee").to(c_ptr.dtype.element_ty)
    if FULL:
        tl.store(c_ptrs, c)
    else:
        tl.store(c_ptrs, c, mask=mask)


@triton.jit
def batched_matmul_tensor_core_kernel(
    a_ptr, b_ptr, c_ptr, B, N,
    stride_ab, stride_ai, stride_aj, stride_bb, stride_bi, stride_bj,
    BLOCK_N: tl.constexpr, MATRICES: tl.constexpr, FULL: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Grid: one program per MATRICES matrices, multiplied on tensor cores."""
    multiply_group(
        a_ptr, b_ptr, c_ptr, B, N, stride_ab, stride_ai, stride_aj, stride_bb, stride_bi, stride_bj,
        tl.program_id(0).to(tl.int64), BLOCK_N, MATRICES, FULL, VEC,
    )  # fmt: skip


@triton.jit
def batched_matmul_pipelined_kernel(
    a_ptr, b_ptr, c_ptr, B, N,
    stride_ab, stride_ai, stride_aj, stride_bb, stride_bi, stride_bj,
    BLOCK_N: tl.constexpr, MATRICES: tl.constexpr, FULL: tl.constexpr, VEC: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: persistent, a few programs per multiprocessor; groups of MATRICES matrices are assigned
    round-robin.

    The compiler pipelines the loop with STAGES stages: the next groups are loaded into shared memory while
    one is multiplied.
    """
    first = tl.program_id(0).to(tl.int64)
    for group in tl.range(first, (B - 1) // MATRICES + 1, tl.num_programs(0), num_stages=STAGES):
        multiply_group(
            a_ptr, b_ptr, c_ptr, B, N, stride_ab, stride_ai, stride_aj, stride_bb, stride_bi, stride_bj,
            tl.cast(group, tl.int64), BLOCK_N, MATRICES, FULL, VEC,
        )  # fmt: skip


LARGEST = 128
"""Maximum N: a program holds whole matrices."""


def block_of(N: int) -> int:
    """BLOCK_N: N rounded up to a power of two, at least the 16 that ``tl.dot`` requires."""
    return max(16, next_power_of_2(N))


def useful_share(N: int, BLOCK_N: int) -> tuple[float, float]:
    """Useful share of a BLOCK_N x BLOCK_N tile for an N x N matrix: of its elements, and of its products.

    Elements addressed, masked and held: (N / BLOCK_N)^2.  Products computed by tensor cores: (N / BLOCK_N)^3.
    Masked elements are not fetched, so memory traffic has no such loss.
    """
    return (N / BLOCK_N) ** 2, (N / BLOCK_N) ** 3


def group_of(N: int) -> tuple[int, int]:
    """MATRICES and num_warps: matrices that fit a warp are processed one per warp."""
    return (4, 4) if block_of(N) <= 32 else (1, 4 if block_of(N) == 64 else 8)


def is_full(B: int, N: int, MATRICES: int) -> bool:
    """Whether matrices fill their tiles and all groups are complete."""
    return block_of(N) == N and B % MATRICES == 0


def known_multiple(a: torch.Tensor, b: torch.Tensor) -> int:
    """VEC: elements of at most 16 bytes, of which N and all strides but 1 are multiples."""
    strides = [stride for stride in (*a.stride(), *b.stride()) if stride != 1]
    return math.gcd(a.size(1), 16 // a.element_size(), *strides)


def check_size(N: int) -> None:
    if N > LARGEST:
        raise NotImplementedError(
            f"N={N}: a program holds whole matrices of up to {LARGEST} rows; torch.eager takes any"
        )


def operand_bytes(N: int, MATRICES: int, element_bytes: int) -> int:
    """Bytes of a group's tiles of a and b, which ``tl.dot`` reads from shared memory."""
    return 2 * MATRICES * block_of(N) ** 2 * element_bytes


def check_shared(a: torch.Tensor, shared_bytes: int) -> None:
    """Raise NotImplementedError if a block needs more shared memory than this GPU allows."""
    most = shared_bytes_of_a_block(a.device)
    if shared_bytes > most:
        raise NotImplementedError(
            f"N={a.size(1)}: {shared_bytes} bytes of shared memory a block, and this GPU has {most}; fewer "
            "or smaller matrices a program take less, and torch.eager takes any"
        )


def check_tensor_cores(a: torch.Tensor) -> None:
    if a.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")


@implementation("batched_matmul", "triton.naive", level="naive", algorithm="a dot product per element")
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_batched_squares("batched_matmul", a, b)
    c = torch.empty_like(a, memory_format=torch.contiguous_format)
    if c.numel() == 0:
        return c
    B, N, _ = a.shape
    check_size(N)
    batched_matmul_naive_kernel[grid_1d(B)](
        a, b, c, N, *a.stride(), *b.stride(), BLOCK_N=block_of(N), num_warps=group_of(N)[1]
    )
    return c


@implementation("batched_matmul", "triton.tiled", level="tiled")
def tiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check_batched_squares("batched_matmul", a, b)
    c = torch.empty_like(a, memory_format=torch.contiguous_format)
    if c.numel() == 0:
        return c
    B, N, _ = a.shape
    check_size(N)
    MATRICES, BLOCK_N = group_of(N)[0], block_of(N)
    batched_matmul_tiled_kernel[grid_1d(cdiv(B, MATRICES))](
        a, b, c, B, N, *a.stride(), *b.stride(), BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_N if BLOCK_N <= 32 else 16,
        MATRICES=MATRICES, VEC=known_multiple(a, b), num_warps=4,
    )  # fmt: skip
    return c


TUNABLE = {"MATRICES": (1, 2, 4, 8), "WARPS": (1, 2, 4, 8)}


@implementation("batched_matmul", "triton.tensor_core", level="tensor_core", tunable=TUNABLE)
def tensor_core(a: torch.Tensor, b: torch.Tensor, *, MATRICES: int = 0, WARPS: int = 0) -> torch.Tensor:
    """MATRICES and WARPS of 0 are chosen by N."""
    check_batched_squares("batched_matmul", a, b)
    check_tensor_cores(a)
    c = torch.empty_like(a, memory_format=torch.contiguous_format)
    if c.numel() == 0:
        return c
    B, N, _ = a.shape
    check_size(N)
    MATRICES, WARPS = MATRICES or group_of(N)[0], WARPS or group_of(N)[1]
    check_shared(a, operand_bytes(N, MATRICES, a.element_size()))
    grid = grid_1d(cdiv(B, MATRICES))
    batched_matmul_tensor_core_kernel[grid](
        a, b, c, B, N, *a.stride(), *b.stride(),
        BLOCK_N=block_of(N), MATRICES=MATRICES, FULL=is_full(B, N, MATRICES), VEC=known_multiple(a, b),
        num_warps=WARPS,
    )  # fmt: skip
    return c


@implementation(
    "batched_matmul", "triton.pipelined", level="tensor_core", tunable={**TUNABLE, "STAGES": (2, 3, 4)}
)
def pipelined(
    a: torch.Tensor, b: torch.Tensor, *, MATRICES: int = 0, WARPS: int = 0, STAGES: int = 3
) -> torch.Tensor:
    """MATRICES and WARPS of 0 are chosen by N."""
    check_batched_squares("batched_matmul", a, b)
    check_tensor_cores(a)
    c = torch.empty_like(a, memory_format=torch.contiguous_format)
    if c.numel() == 0:
        return c
    B, N, _ = a.shape
    check_size(N)
    MATRICES, WARPS = MATRICES or group_of(N)[0], WARPS or group_of(N)[1]
    check_shared(a, operand_bytes(N, MATRICES, a.element_size()))
    # As many programs as fit in shared memory: operands of STAGES groups, and the output tiles of c.
    # A multiprocessor has 1 KB more than a block may use, and reserves 1 KB per block.
    room, group_bytes = shared_bytes_of_a_block(a.device), operand_bytes(N, MATRICES, a.element_size())
    STAGES = max(min(STAGES, (room - group_bytes // 2) // group_bytes), 1)
    most = (room + 1024) // (STAGES * group_bytes + group_bytes // 2 + 1024)
    programs = multiprocessors(a.device) * max(1, min(most, 32 // WARPS))
    grid = (min(programs, cdiv(B, MATRICES)),)
    batched_matmul_pipelined_kernel[grid](
        a, b, c, B, N, *a.stride(), *b.stride(),
        BLOCK_N=block_of(N), MATRICES=MATRICES, FULL=is_full(B, N, MATRICES), VEC=known_multiple(a, b),
        STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return c
