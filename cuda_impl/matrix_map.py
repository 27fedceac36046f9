"""Tensor maps for TMA of ``x[M,N]``, row-major, of 8-bit or 16-bit elements: its layout in memory, and the
box that a copy moves."""

from __future__ import annotations

import functools

import numpy as np
import torch

LINE_BYTES = 128
"""Width of a box: the maximum of the 128-byte swizzle."""


def has_aligned_rows(x: torch.Tensor) -> bool:
    """Whether the rows of ``x[M,N]`` are contiguous, 16-byte aligned and apart, as TMA requires."""
    apart = x.stride(0) >= x.size(1) and x.stride(0) * x.element_size() % 16 == 0
    return x.stride(1) == 1 and apart and x.data_ptr() % 16 == 0


def matrix_map(x: torch.Tensor, box_rows: int) -> np.void:
    """The 128 bytes of a ``TensorMap`` of x, which a kernel takes by value.

    A copy moves a box of 128 bytes of ``box_rows`` rows, with 128-byte swizzle.

    Args:
        x: of int8, e4m3 or bf16; `has_aligned_rows` of it holds.
        box_rows: at most 256.

    Raises:
        RuntimeError: the driver refuses the map.
    """
    if x.is_meta:  # no memory, and perhaps no driver
        return np.zeros(1, "V128")[0]
    rows, columns = x.shape
    item_bytes, pitch_bytes = x.element_size(), x.stride(0) * x.element_size()
    if not x.is_cuda:
        box = [x.data_ptr(), item_bytes, columns, rows, pitch_bytes, box_rows]
        return np.array([*box, *(0,) * 10], dtype=np.int64).view("V128")[0]
    return _encoded(x.data_ptr(), item_bytes, columns, rows, pitch_bytes, box_rows)


@functools.lru_cache(maxsize=4096)
def _encoded(
    address: int, item_bytes: int, columns: int, rows: int, pitch_bytes: int, box_rows: int
) -> np.void:
    from cuda.bindings import driver

    types = driver.CUtensorMapDataType
    error, encoded = driver.cuTensorMapEncodeTiled(
        types.CU_TENSOR_MAP_DATA_TYPE_UINT8 if item_bytes == 1 else types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2,
        address,
        [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
        [driver.cuuint64_t(pitch_bytes)],
        [driver.cuuint32_t(LINE_BYTES // item_bytes), driver.cuuint32_t(box_rows)],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        what = f"{rows} rows of {columns}, {pitch_bytes} bytes apart"
        raise RuntimeError(f"no tensor map of {what}: {error.name}")
    return np.array([int(word) for word in encoded.opaque], dtype=np.uint64).view("V128")[0]
