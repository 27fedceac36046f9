"""batched_matmul: what padding a tile to a power of two wastes, and what its launches ask of a GPU."""

from __future__ import annotations

import re

import pytest
import torch

from compare import registry
from compare.capture import capture
from compare.registry import ROOT
from compare.spec import case
from cuda_impl.rawkernel import batched_matmul as cuda
from triton_impl.batched_matmul import block_of, useful_share

SIZES = (16, 32, 40, 48, 64, 80, 96, 128)


def padding_table() -> str:
    """The table of docs/ops/batched_matmul.md: what of a tile is useful, by Triton's block and by CUDA's."""
    lines = [
        "| N | Triton's BLOCK_N | elements | products | CUDA's BLOCK_N | elements | products |",
        "|--:|-----------------:|---------:|---------:|---------------:|---------:|---------:|",
    ]
    for N in SIZES:
        cells = [str(N)]
        for BLOCK_N in (block_of(N), cuda.ceil_div(N, 16) * 16):
            cells += [str(BLOCK_N), *(f"{share:.0%}" for share in useful_share(N, BLOCK_N))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@pytest.mark.parametrize("N", SIZES)
def test_the_useful_share_counts_what_is_in_the_tile(N: int):
    BLOCK_N = block_of(N)
    inside = torch.arange(BLOCK_N) < N
    elements, products = useful_share(N, BLOCK_N)
    assert elements == pytest.approx((inside[:, None] & inside).double().mean().item())
    assert products == pytest.approx(
        (inside[:, None, None] & inside[:, None] & inside).double().mean().item()
    )


def test_the_page_s_table_is_what_the_helper_counts():
    page = (ROOT / "docs/ops/batched_matmul.md").read_text()
    found = re.search(r"(?s)<!-- padding -->\n(.*?)\n<!-- /padding -->", page)
    assert found
    assert found[1] == padding_table()


@pytest.mark.parametrize("N", [1, 15, 16, 17, 48, 100, 128])
def test_a_block_of_triton_holds_the_matrix_and_is_a_power_of_two(N: int):
    BLOCK_N = block_of(N)
    assert max(N, 16) <= BLOCK_N
    assert BLOCK_N & (BLOCK_N - 1) == 0
    assert 2 * max(N, 16) > BLOCK_N


LIMITED = [
    impl
    for impl in registry.implementations("batched_matmul")
    if impl.way != "torch" and impl.label not in ("cupy.naive", "pybind.naive")
]


@pytest.mark.parametrize("impl", LIMITED, ids=lambda impl: impl.label)
def test_larger_matrices_are_refused_with_the_reason(impl, device: torch.device):
    a = torch.ones(1, 129, 129, dtype=torch.float16, device=device)
    with pytest.raises(NotImplementedError, match=r"N=129: .* up to 128 rows"):
        impl.run(a, a)


@pytest.mark.parametrize("impl", registry.implementations("batched_matmul"), ids=lambda impl: impl.label)
def test_matrices_that_are_not_square_are_refused(impl, device: torch.device):
    a = torch.ones(2, 3, 4, device=device)
    with pytest.raises(ValueError, match=r"batched_matmul: .*\(2, 3, 4\); it takes square matrices"):
        impl.run(a, a)


@pytest.mark.parametrize("N", SIZES)
@pytest.mark.parametrize("variant", ["tiled", "tensor_core", "pipelined"])
def test_a_block_fits_on_a_hopper_multiprocessor(variant: str, N: int):
    op = registry.get_op("batched_matmul")
    impl = next(i for i in registry.implementations(op.name) if i.label == f"cupy.{variant}")
    (launch,) = capture(impl, op, case("fp16", B=100_000, N=N), "sm_90")
    assert launch.dynamic_shared_bytes <= 227 << 10
    assert launch.block[0] <= 1024
    if variant == "pipelined":
        BLOCK_N = cuda.ceil_div(N, 16) * 16
        assert launch.grid[0] == 132 * cuda.blocks_of(BLOCK_N)
        assert cuda.blocks_of(BLOCK_N) * (launch.dynamic_shared_bytes + 1024) <= 228 << 10
