"""What attention's host code shares for ``x[B,S,H,D]``: copies where a kernel needs other strides, shared
memory's limit, and tensor maps for TMA, with the layout in memory and the box of a head that a copy moves."""

from __future__ import annotations

import functools

import numpy as np
import torch

from compare.device import shared_bytes_of_a_block

PIECE = 64
"""Elements of D that a row of a swizzled box holds: 128 bytes, the maximum."""
SWIZZLED_BYTES = 1024
"""Alignment of swizzled tiles; dynamic shared memory may lack it."""


def check_shared(x: torch.Tensor, shared_bytes: int, choice: str, static_bytes: int = 0) -> int:
    """``shared_bytes``; raises NotImplementedError if x's GPU has less for a block, beside static ones.

    Args:
        choice: what needs so many, ``STAGES=4``.
    """
    most = shared_bytes_of_a_block(x.device) - static_bytes
    if shared_bytes > most:
        raise NotImplementedError(
            f"{choice}: {shared_bytes} bytes of shared memory a block, and this GPU has {most}; torch.eager "
            "takes any"
        )
    return shared_bytes


def for_tma(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows of D are contiguous, 16-byte aligned and apart, as TMA requires, else a copy."""
    vector = 16 // x.element_size()
    rows = [stride for stride, size in zip(x.stride()[:3], x.shape[:3], strict=True) if size > 1]
    good = x.stride(3) == 1 and all(stride > 0 and stride % vector == 0 for stride in rows)
    return x if good and x.data_ptr() % 16 == 0 else x.clone(memory_format=torch.contiguous_format)


def readable(x: torch.Tensor, alignment: int = 1) -> torch.Tensor:
    """x, or a contiguous copy unless heads are contiguous and aligned to so many elements."""
    steps = (*x.stride()[:3], x.data_ptr() // x.element_size())
    good = x.stride(3) == 1 and all(step % alignment == 0 for step in steps)
    return x if good else x.clone(memory_format=torch.contiguous_format)


def heads_map(x: torch.Tensor, rows: int) -> np.void:
    """The 128 bytes of a ``TensorMap`` of x, which a kernel takes by value.

    Its dimensions are D % 64, S, D / 64, H and B. A copy moves a box of 64, ``rows``, D / 64, 1 and 1: rows
    of one head, as D / 64 pieces with 128-byte swizzle.

    Args:
        x: ``x[B,S,H,D]`` as returned by `for_tma`, of 16-bit elements.
        rows: of the box, at most 256.

    Raises:
        RuntimeError: the driver refuses the map.
    """
    if x.is_meta:  # no memory, and perhaps no driver
        return np.zeros(1, "V128")[0]
    B, S, H, D = x.shape
    # The stride of a dimension of one element is never used; any multiple of 16 bytes will do.
    steps = zip(x.stride()[:3], (B, S, H), strict=True)
    b, s, h = (stride * 2 if size > 1 else 2 * PIECE for stride, size in steps)
    sizes, strides = (PIECE, S, D // PIECE, H, B), (s, 2 * PIECE, h, b)
    if not x.is_cuda:
        box = np.array([x.data_ptr(), *sizes, *strides, rows, D // PIECE, *(0,) * 4], dtype=np.int64)
        return box.view("V128")[0]
    return _encoded(x.data_ptr(), x.dtype is torch.bfloat16, sizes, strides, rows)


@functools.lru_cache(maxsize=4096)
def _encoded(
    address: int, bf16: bool, sizes: tuple[int, ...], strides: tuple[int, ...], rows: int
) -> np.void:
    from cuda.bindings import driver

    types = driver.CUtensorMapDataType
    error, encoded = driver.cuTensorMapEncodeTiled(
        types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 if bf16 else types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        5,
        address,
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(size) for size in (PIECE, rows, sizes[2], 1, 1)],
        [driver.cuuint32_t(1)] * 5,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"no tensor map of sizes {sizes} and strides {strides} bytes: {error.name}")
    return np.array([int(word) for word in encoded.opaque], dtype=np.uint64).view("V128")[0]
