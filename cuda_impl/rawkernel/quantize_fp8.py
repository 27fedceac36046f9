"""quantize_fp8 through cupy: ``x[M,K] -> values[M,K], scales[M,K/group]``.

With the kernels of ``kernels/quantize_fp8.cuh``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from compare.arguments import check_groups
from compare.registry import implementation
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Groups(NamedTuple):
    """The arguments, the outputs, and how many groups there are."""

    x: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor
    columns: int
    """Of a group."""
    of_row: int
    """Groups of a row."""


def checked(x: torch.Tensor, group: int) -> Groups:
    """The arguments, copied where rows are not contiguous, and uninitialised outputs.

    Raises:
        NotImplementedError: there are too many groups.
    """
    check_groups("quantize_fp8", x, group)
    M, K = x.shape
    x = x if x.stride(1) == 1 or K <= 1 else x.contiguous()
    columns = min(group or K, K)
    of_row = ceil_div(K, max(columns, 1)) if group else 1
    if M * of_row >= 1 << 31:
        raise NotImplementedError(f"{M * of_row} groups: they are counted in 32 bits")
    values = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    shape = (M, of_row) if group else (M,)
    return Groups(x, values, torch.empty(shape, dtype=torch.float32, device=x.device), columns, of_row)


def launch(g: Groups, name: str, shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    PACKS, THREADS, BLOCK_M = shape
    count = g.x.size(0) * g.of_row
    if count > 0:
        template = f"{CTYPES[g.x.dtype]}, {PACKS}, {THREADS}, {BLOCK_M}"
        run = kernel("quantize_fp8", f"quantize_fp8_{name}_kernel<{template}>", g.x.device)
        pointers = g.x.data_ptr(), g.values.data_ptr(), g.scales.data_ptr()
        sizes = np.uint32(count), np.int64(g.x.size(1)), np.int64(g.x.stride(0))
        of_group = np.int32(g.columns), np.uint32(g.of_row)
        run((ceil_div(count, BLOCK_M),), (THREADS,), (*pointers, *sizes, *of_group))
    return g.values, g.scales


def too_long(columns: int, most: int) -> NotImplementedError:
    return NotImplementedError(f"groups of {columns} columns: registers hold up to {most}")


ONEPASS_COLUMNS = 32768


def onepass_shape(columns: int) -> tuple[int, int, int]:
    """PACKS, THREADS and BLOCK_M for groups of so many columns."""
    if columns > ONEPASS_COLUMNS:
        raise too_long(columns, ONEPASS_COLUMNS)
    if columns <= 256:
        return 8, 128, 4  # one group per warp
    return 8 if columns <= 8192 else 32, 256 if columns <= 2048 else 1024, 1


@implementation(
    "quantize_fp8", "cupy.onepass", level="tiled", algorithm="group in registers: maximum, division, e4m3"
)
def onepass(x: torch.Tensor, *, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A group stays in registers: up to 32768 columns."""
    g = checked(x, group)
    return launch(g, "onepass", onepass_shape(g.columns))


VECTORIZED_BYTES = 1 << 16


def vectorized_shape(packs: int) -> tuple[int, int, int]:
    """PACKS, THREADS and BLOCK_M for groups of so many vectors."""
    if packs <= 16:
        return 2, 128, 16
    if packs <= 128:  # one group per warp
        return 1 if packs <= 32 else 4, 128, 4
    return 4, next(threads for threads in (128, 256, 512, 1024) if packs <= 4 * threads), 1


@implementation("quantize_fp8", "cupy.vectorized", level="tiled")
def vectorized(x: torch.Tensor, *, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of whole 16-byte vectors, up to 64 KB; others as onepass."""
    g = checked(x, group)
    VEC = 16 // x.element_size()
    whole = g.columns % VEC == 0 and x.size(1) % VEC == 0 and g.x.stride(0) % VEC == 0
    if not whole or g.x.data_ptr() % 16 != 0:
        return launch(g, "onepass", onepass_shape(g.columns))
    if g.columns * x.element_size() > VECTORIZED_BYTES:
        raise too_long(g.columns, VECTORIZED_BYTES // x.element_size())
    return launch(g, "vectorized", vectorized_shape(g.columns // VEC))
