"""Tensor maps for TMA: a matrix's layout in memory, and the box that a copy moves."""

from __future__ import annotations

import functools

import numpy as np
import torch

LINE_BYTES = 128
"""Width of a box: the maximum of the 128-byte swizzle, which puts 8 rows' vectors in 8 different banks."""


def tensor_map(x: torch.Tensor, by_rows: bool, ld: int, box_lines: int) -> np.void:
    """The 128 bytes of a ``TensorMap``, which a kernel takes by value.

    Args:
        x: a matrix of 16-bit elements. Its rows (or columns) are contiguous and 16-byte aligned.
        by_rows: whether it is row-major.
        ld: elements from one row (column) to the next.
        box_lines: rows (columns) that a copy moves, 64 elements of each.

    Raises:
        RuntimeError: the driver refuses the map.
    """
    if x.is_meta:  # no memory, and perhaps no driver
        return np.zeros(1, "V128")[0]
    lines, length = x.shape if by_rows else x.shape[::-1]
    return _encoded(x.data_ptr(), x.dtype is torch.bfloat16, lines, length, ld * 2, box_lines)


@functools.lru_cache(maxsize=4096)
def _encoded(address: int, bf16: bool, lines: int, length: int, pitch_bytes: int, box_lines: int) -> np.void:
    from cuda.bindings import driver

    types = driver.CUtensorMapDataType
    error, encoded = driver.cuTensorMapEncodeTiled(
        types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 if bf16 else types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        2,
        address,
        [driver.cuuint64_t(length), driver.cuuint64_t(lines)],
        [driver.cuuint64_t(pitch_bytes)],
        [driver.cuuint32_t(LINE_BYTES // 2), driver.cuuint32_t(box_lines)],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        what = f"{lines} lines of {length}, {pitch_bytes} bytes apart"
        raise RuntimeError(f"no tensor map for {what}: {error.name}")
    return np.array([int(word) for word in encoded.opaque], dtype=np.uint64).view("V128")[0]
