"""Gluon kernels of 8-bit products on the CPU: their rings, and the buffers of c, by `gluon_units`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gluon_units
from compare import registry
from gluon_units import MatrixDescriptor, TensorPointer

pytestmark = pytest.mark.thorough

PRELUDE = """
CONSUMERS, PIECE, BLOCK_K = 2, 64, 128
async_load, async_store = tma.async_load, tma.async_store
halves = lambda x: x.chunk(2, 1)
"""


def part(file: str, begin: str, end: str) -> str:
    text = (Path(registry.ROOT) / "triton_impl" / file).read_text(encoding="utf-8")
    first = text.index(begin)
    return text[first : text.index(end, first)]


def source(op: str) -> str:
    """The part of the files that is Gluon, and the functions that it imports."""
    order = part("matmul.py", "def grouped_tile(", "\n\n\n") + "\ngrouped_tile_in_gluon = grouped_tile\n"
    kernels = part("scaled_matmul.py", "LINE = ", "\n# ----")
    if op == "fp8_block_matmul":
        kernels += part("fp8_block_matmul.py", "@gluon.jit\ndef consume(", "\ndef checked(")
    return PRELUDE + order + kernels


@pytest.mark.parametrize("BLOCK_N", [64, 128, 256])
@pytest.mark.parametrize("op", ["fp8_matmul", "fp8_block_matmul"])
def test_no_buffer_of_c_is_overwritten_while_it_is_stored(op: str, BLOCK_N: int) -> None:
    """A program has many tiles, of one step: little time passes from one store to the next."""
    M, N, K, STAGES = 128 * (2048 // BLOCK_N), BLOCK_N, 128, 3
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-2, 3, (size, K), generator=generator, dtype=torch.int8) for size in (M, N))
    scale_a, scale_b = torch.ones(M), torch.ones(N)
    c = torch.full((M, N), float("nan"), dtype=torch.bfloat16)
    columns_of_b = min(BLOCK_N, 128) if op == "fp8_block_matmul" else BLOCK_N
    a_desc, b_desc = MatrixDescriptor(a, 64, 128), MatrixDescriptor(b, columns_of_b, 128)
    sums: dict[str, Any] = {"SUM": torch.float32} if op == "fp8_matmul" else {}
    kernel = "scaled_matmul_gluon_kernel" if op == "fp8_matmul" else "fp8_block_matmul_gluon_kernel"
    gluon_units.run(
        source(op), kernel, 1, a_desc, b_desc, MatrixDescriptor(c, 64, 64),
        TensorPointer(scale_a), TensorPointer(scale_b), TensorPointer(c), M, N, K,
        C_ALIGNED=True, BLOCK_N=BLOCK_N, GROUP_M=8, STAGES=STAGES, C_LAYOUT=None, **sums,
    )  # fmt: skip
    assert torch.equal(c, (a.float() @ b.float().T).bfloat16())
