"""Tensor maps for TMA, and their one encoder: a tensor's layout in memory, and the box that a copy moves."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from cuda_impl.buffers import Tensor
from cuda_impl.launch import Mapped

LINE_BYTES = 128
"""Width of a box: the maximum of the 128-byte swizzle, which puts 8 rows' vectors in 8 different banks."""
SWIZZLE_ALIGNMENT = 1024
"""Of swizzled tiles, in bytes; dynamic shared memory may lack it."""

MOST = (1 << 31) - 512
"""Maximum size of a tiled dimension: coordinates, up to the end of the last tile, are 32-bit."""


def check_coordinates(**sizes: int) -> None:
    """Raise NotImplementedError for sizes beyond the coordinates of TMA."""
    if max(sizes.values()) > MOST:
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise NotImplementedError(f"{given}: at most {MOST} of each")


def matrix_map(
    x: Tensor, box_rows: int, *, box_columns: int = 0, by_rows: bool = True, ld: int = 0
) -> Mapped:
    """Of ``x[M,N]``, whose rows (or columns) are contiguous, 16-byte aligned and ``ld`` elements apart.

    A copy moves a box of 128 bytes of ``box_rows`` rows (columns).

    Args:
        x: of 8-bit or 16-bit elements.
        box_rows: at most 256.
        box_columns: of a box of 64 bytes, with 64-byte swizzle.
        by_rows: whether x is row-major.
        ld: its leading stride; 0: that of rows.
    """
    rows, columns = x.shape if by_rows else x.shape[::-1]
    pitch_bytes = (ld or x.stride(0)) * x.element_size()
    columns_of_box = box_columns or LINE_BYTES // x.element_size()
    return _mapped(x, (columns, rows), (pitch_bytes,), (columns_of_box, box_rows))


def matrices_map(x: Tensor, box_rows: int, *, by_rows: bool, ld: int, step: int) -> Mapped:
    """Of ``x[G,M,N]``, matrices as `matrix_map` takes them, ``step`` elements apart.

    A copy moves a box of 128 bytes of ``box_rows`` rows (columns) of one matrix.
    """
    G, rows, columns = x.shape if by_rows else (x.shape[0], *x.shape[:0:-1])
    s = x.element_size()
    return _mapped(x, (columns, rows, G), (ld * s, step * s), (LINE_BYTES // s, box_rows, 1))


def heads_map(x: Tensor, rows: int) -> Mapped:
    """Of ``x[B,S,H,D]`` as `cuda_impl.layouts.for_tma` returns it, of 16-bit elements.

    Its dimensions are D % 64, S, D / 64, H and B.  A copy moves a box of 64, ``rows``, D / 64, 1 and 1: rows
    of one head, as D / 64 pieces with 128-byte swizzle.
    """
    B, S, H, D = x.shape
    PIECE = LINE_BYTES // 2
    # The stride of a dimension of one element is never used; any multiple of 16 bytes will do.
    steps = zip(x.stride()[:3], (B, S, H), strict=True)
    b, s, h = (stride * 2 if size > 1 else LINE_BYTES for stride, size in steps)
    return _mapped(x, (PIECE, S, D // PIECE, H, B), (s, LINE_BYTES, h, b), (PIECE, rows, D // PIECE, 1, 1))


def _mapped(x: Tensor, sizes: Sequence[int], pitches: Sequence[int], box: Sequence[int]) -> Mapped:
    encode = {"cuda": _encoded, "meta": _nothing}.get(x.device.type, _for_host)
    layout = x.dtype, tuple(sizes), tuple(pitches), tuple(box)
    return Mapped(x, functools.lru_cache(maxsize=256)(functools.partial(encode, *layout)))


_Sizes = tuple[int, ...]


def _nothing(dtype: torch.dtype, sizes: _Sizes, pitches: _Sizes, box: _Sizes, address: int) -> np.void:
    """Meta tensors have no memory, and their machine perhaps no driver."""
    return np.zeros(1, "V128")[0]


def _for_host(dtype: torch.dtype, sizes: _Sizes, pitches: _Sizes, box: _Sizes, address: int) -> np.void:
    """``host::Map`` of host/tensor_map.h."""
    words = (address, dtype.itemsize, *_five(sizes), *_five(pitches)[:4], *_five(box))
    return np.array(words, dtype=np.int64).view("V128")[0]


def _five(sizes: _Sizes) -> _Sizes:
    return (*sizes, *(1,) * (5 - len(sizes)))


def _encoded(dtype: torch.dtype, sizes: _Sizes, pitches: _Sizes, box: _Sizes, address: int) -> np.void:
    """As the driver encodes it.

    Raises:
        RuntimeError: the driver refuses the map.
    """
    from cuda.bindings import driver

    types = driver.CUtensorMapDataType
    of_halves = {
        torch.float16: types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        torch.bfloat16: types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    }
    swizzles = driver.CUtensorMapSwizzle
    line_bytes = box[0] * dtype.itemsize
    swizzle = swizzles.CU_TENSOR_MAP_SWIZZLE_64B if line_bytes == 64 else swizzles.CU_TENSOR_MAP_SWIZZLE_128B
    error, encoded = driver.cuTensorMapEncodeTiled(
        of_halves.get(dtype, types.CU_TENSOR_MAP_DATA_TYPE_UINT8),
        len(sizes),
        address,
        list(map(driver.cuuint64_t, sizes)),
        list(map(driver.cuuint64_t, pitches)),
        list(map(driver.cuuint32_t, box)),
        [driver.cuuint32_t(1)] * len(sizes),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle,
        # 256 bytes would fetch more than a box needs where rows do not start on lines: up to a fifth slower.
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        what = f"sizes {sizes}, strides of {pitches} bytes, box {box}"
        raise RuntimeError(f"no tensor map of {what}: {error.name}")
    return np.array([int(word) for word in encoded.opaque], dtype=np.uint64).view("V128")[0]
