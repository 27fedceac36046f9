"""Layouts in memory that kernels take, and copies into them; part of launch tables."""

from __future__ import annotations

import torch

from compare.device import arch, capability, shared_bytes_of_a_block
from cuda_impl.buffers import Tensor, copied
from cuda_impl.launch import ceil_div

BOOLS = (True, False)
"""The choices of a template argument such as A_BY_ROWS."""


def vector(x: Tensor) -> int:
    """Elements of 16 bytes."""
    return 16 // x.element_size()


def contiguous(x: Tensor) -> Tensor:
    """``x``; a copy if it is not contiguous."""
    expected = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if size != 1 and stride != expected and x.numel() > 0:
            return copied(x)
        expected *= size
    return x


def packed(x: Tensor) -> Tensor:
    """The vector ``x[N]``; a copy if it is not contiguous and 16-byte aligned."""
    return x if x.stride(0) == 1 and x.data_ptr() % 16 == 0 else copied(x)


# --------------------------------------------------------------------------- rows of x[M,N]


def VECS(T: torch.dtype) -> tuple[int, int]:
    """Elements per access: 16 bytes' worth, or 1."""
    return 16 // T.itemsize, 1


def contiguous_rows(x: Tensor) -> Tensor:
    """``x`` with contiguous rows, in any number of dimensions; a copy if they are not."""
    return x if x.stride(-1) == 1 or x.size(-1) <= 1 else copied(x)


def in_vectors(x: Tensor) -> bool:
    """Whether all rows of x, and of a contiguous output, are whole 16-byte vectors: `Parts` in common.cuh."""
    VEC = vector(x)
    return x.data_ptr() % 16 == 0 and x.stride(0) % VEC == 0 and x.size(1) % VEC == 0


def as_output(x: Tensor) -> Tensor:
    """``x`` if its rows start as far from 16-byte boundaries as a contiguous output's, else a copy."""
    apart = (x.stride(0) - x.size(1)) % vector(x)
    return x if x.data_ptr() % 16 == 0 and apart == 0 else copied(x)


PACKED_SHAPES = ((4, 128), (8, 128), (8, 256), (8, 512), (8, 1024))
"""VECTORS and THREADS of a row that stays in registers as loaded."""


def packed_shape(x: Tensor) -> tuple[int, int]:
    """The smallest of `PACKED_SHAPES` that holds a row of ``x[M,N]``.

    Raises:
        NotImplementedError: the row is longer.
    """
    N, VEC = x.size(1), vector(x)
    for VECTORS, THREADS in PACKED_SHAPES:
        if ceil_div(N, VEC) <= VECTORS * THREADS:
            return VECTORS, THREADS
    most = PACKED_SHAPES[-1][0] * PACKED_SHAPES[-1][1] * VEC
    raise NotImplementedError(f"N={N}: registers hold rows of up to {most} such columns")


LINE_BYTES = 128
"""As in ``kernels/line.cuh``. An unaligned slice has a line more of shared memory than it fills."""
MOST_SLICE_BYTES = 208 * 1024
"""Of a row in a block's shared memory, of 227 KB."""


def slice_of_row(x: Tensor, CLUSTER: int) -> int:
    """Bytes of a row of ``x[M,N]`` that each of CLUSTER blocks has in shared memory: whole lines.

    Raises:
        NotImplementedError: the row is longer than they hold.
    """
    N, size = x.size(1), x.element_size()
    slice_bytes = ceil_div(N * size, CLUSTER * LINE_BYTES) * LINE_BYTES
    if slice_bytes > MOST_SLICE_BYTES:
        most = CLUSTER * MOST_SLICE_BYTES // size
        raise NotImplementedError(f"N={N}: the shared memory of {CLUSTER} blocks holds {most} columns")
    return slice_bytes


def has_aligned_rows(x: Tensor) -> bool:
    """Whether rows are contiguous, 16-byte aligned and apart, as TMA requires."""
    apart = x.stride(0) >= x.size(1) and x.stride(0) * x.element_size() % 16 == 0
    return x.stride(1) == 1 and apart and x.data_ptr() % 16 == 0


def padded(x: Tensor) -> Tensor:
    """``x`` if `has_aligned_rows`, else such a copy."""
    pitch = ceil_div(x.size(1), vector(x)) * vector(x)
    return x if has_aligned_rows(x) else copied(x, (pitch, 1))


def aligned(x: Tensor) -> tuple[Tensor, bool, int]:
    """``x``, whether it is row-major (else column-major), and its leading stride.

    Its rows (or columns) are contiguous and 16-byte aligned; if they are not, such a copy is returned, whose
    rows start on lines of 128 bytes: a box of TMA then touches no further line.
    """
    by_rows = x.stride(1) == 1 or x.stride(0) != 1
    line = 0 if by_rows else 1
    ld, length = x.stride(line), x.size(1 - line)
    if x.stride(1 - line) == 1 and ld >= length and ld % vector(x) == 0 and x.data_ptr() % 16 == 0:
        return x, by_rows, ld
    ld = ceil_div(length, 8 * vector(x)) * 8 * vector(x)
    return copied(x, (ld, 1) if by_rows else (1, ld)), by_rows, ld


# --------------------------------------------------------------------------- heads of x[B,S,H,D]

HEAD_SIZES = (64, 128)
"""Those that kernels are built for."""


def readable(x: Tensor, alignment: int = 1) -> Tensor:
    """``x``; a contiguous copy unless heads are contiguous and aligned to so many elements."""
    steps = (*x.stride()[:3], x.data_ptr() // x.element_size())
    good = x.stride(3) == 1 and all(step % alignment == 0 for step in steps)
    return x if good else copied(x)


def for_tma(x: Tensor) -> Tensor:
    """``x`` if its rows of D are contiguous, 16-byte aligned and apart, as TMA requires, else a copy."""
    rows = [stride for stride, size in zip(x.stride()[:3], x.shape[:3], strict=True) if size > 1]
    good = x.stride(3) == 1 and all(stride > 0 and stride % vector(x) == 0 for stride in rows)
    return x if good and x.data_ptr() % 16 == 0 else copied(x)


# --------------------------------------------------------------------------- limits

MOST_PRODUCTS = 1 << 37


def check_products(M: int, N: int, K: int) -> None:
    """Raise NotImplementedError for a product that takes a kernel with a thread per element seconds."""
    if M * N * K > MOST_PRODUCTS:
        raise NotImplementedError(f"M*N*K={M * N * K}: it would take seconds, at most {MOST_PRODUCTS}")


def check_tensor_cores(x: Tensor) -> None:
    """Raise NotImplementedError for a dtype that this GPU's tensor cores do not support."""
    if x.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")
    name = arch(x.device)
    if x.dtype is torch.bfloat16 and name is not None and capability(name) < 80:
        raise NotImplementedError(f"bf16: tensor cores multiply it from sm_80 on, this is {name}")


def check_shared(x: Tensor, shared_bytes: int, choice: str, static_bytes: int = 0) -> int:
    """``shared_bytes``; raises NotImplementedError if x's GPU has less for a block, beside static ones.

    Args:
        x: a tensor on the GPU.
        shared_bytes: dynamic shared memory per block.
        choice: what needs so many, ``STAGES=4``.
        static_bytes: what the kernel declares itself.
    """
    most = shared_bytes_of_a_block(x.device) - static_bytes
    if shared_bytes > most:
        raise NotImplementedError(
            f"{choice}: {shared_bytes} bytes of shared memory a block, and this GPU has {most}; torch.eager "
            "takes any"
        )
    return shared_bytes
