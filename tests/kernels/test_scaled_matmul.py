"""int8_matmul and fp8_matmul: exact sums, accumulators and scales."""

from __future__ import annotations

import math

import pytest
import torch

from compare.model.op import Implementation
from cuda_impl.buffers import Buffer, copy_of
from cuda_impl.launches.scaled_matmul import lines_of_a, tile_for
from cuda_impl.layouts import has_aligned_rows, padded
from loops import for_each
from on_device import each_of

pytestmark = pytest.mark.thorough

DTYPES = {"int8_matmul": torch.int8, "fp8_matmul": torch.float8_e4m3fn}


@each_of(*DTYPES)
def test_each_scale_counts_where_it_applies(impl: Implementation) -> None:
    """Of ones, c is K times the product of a row's and a column's scale."""
    M, N, K = 130, 66, 32
    a, b = (torch.ones(size, K).to(DTYPES[impl.op]) for size in (M, N))
    scale_a, scale_b = (2.0 ** (torch.arange(size) % 16) for size in (M, N))
    assert torch.equal(impl.run(a, b, scale_a, scale_b).float(), K * scale_a[:, None] * scale_b)


@each_of(*DTYPES)
def test_special_scales(impl: Implementation) -> None:
    """0, infinity, NaN and a subnormal number, which is not flushed to 0."""
    scale_a = torch.tensor([0.0, math.inf, math.nan, 2.0**-140, 1.0])
    a, b = (torch.ones(size, 64).to(DTYPES[impl.op]) for size in (5, 2))
    b[1] = 0
    found = impl.run(a, b, scale_a, torch.tensor([2.0**20, 1.0])).float()
    wanted = torch.tensor([0.0, math.inf, math.nan, 2.0**-114, 2.0**26])
    torch.testing.assert_close(found[:, 0], wanted, rtol=0, atol=0, equal_nan=True)
    of_zeros = torch.tensor([0.0, math.nan, math.nan, 0.0, 0.0])
    torch.testing.assert_close(found[:, 1], of_zeros, rtol=0, atol=0, equal_nan=True)


@each_of("int8_matmul")
def test_sums_of_int8_are_exact(impl: Implementation) -> None:
    """They pass 2^24, from where on fp32 does not hold every whole number, and end at 1."""
    half = 2112
    a, b = (torch.full((size, 2 * half + 1), 127, dtype=torch.int8) for size in (3, 5))
    b[:, half:] = -127
    a[:, -1] = b[:, -1] = 1
    assert torch.equal(impl.run(a, b, torch.ones(3), torch.ones(5)).float(), torch.ones(3, 5))


@each_of("int8_matmul", only=["cupy.*"])
def test_the_largest_sum_of_int8(impl: Implementation) -> None:
    K = 131071 if impl.level == "naive" else 4096
    a = torch.full((1, 1), -128, dtype=torch.int8).expand(1, K)
    found = impl.run(a, a, torch.ones(1), torch.ones(1))
    assert torch.equal(found, torch.tensor([[K * 2.0**14]]).to(torch.bfloat16))


def errors(impl: Implementation, K: int) -> float:
    """The root mean square of an error relative to the terms' magnitudes, in 2^-14, where terms cancel."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, K // 2, generator=generator).to(torch.float8_e4m3fn) for size in (8, 64))
    there = torch.randperm(K // 2, generator=generator)
    back = torch.cat((a.float(), -a.float()[:, there]), 1).to(torch.float8_e4m3fn)
    twice = torch.cat((b.float(), b.float()[:, there]), 1).to(torch.float8_e4m3fn)
    found = impl.run(back, twice, torch.ones(8), torch.ones(64)).float()
    magnitude = back.float().abs() @ twice.float().abs().T
    return float((found / magnitude).square().mean().sqrt()) * 2**14


@each_of("fp8_matmul", only=["cupy.*", "pybind.*"])
def test_promotion_keeps_long_sums_precise(impl: Implementation) -> None:
    """As the host emulates Hopper's tensor cores: sums with 13 bits behind the leading one."""
    error = errors(impl, 16384)
    assert error < 0.1 if impl.accumulator == "fp32" else 0.3 < error < 3


@pytest.mark.parametrize("dtype", [*DTYPES.values(), torch.float16])
def test_operands_are_copied_only_where_a_kernel_cannot_read_them(dtype: torch.dtype) -> None:
    whole = (torch.arange(4 * 512).view(4, 512) % 100).to(dtype)
    eight_bytes_on = whole[:, 8 // whole.element_size() :]
    for taken in (whole, whole[:, :200], whole[1:, 16:144]):
        assert padded(taken) is taken
    for copied in (eight_bytes_on, whole[:, 1:], whole.t(), whole[:, ::2], whole[:1].expand(4, 512)):
        buffer = padded(copied)
        assert isinstance(buffer, Buffer)
        copy = copy_of(copied, buffer)
        assert copy.stride() == buffer.stride()
        assert has_aligned_rows(copy)
        assert torch.equal(copy.float(), copied.float())


@for_each(
    "M, N, BLOCK_N",
    [
        *((size, size, 256) for size in (1536, 2048, 3072, 4096, 8192)),
        (4096, 7168, 256),
        (1024, 1024, 64),
        (1024, 2048, 128),
        *((M, 8192, 64) for M in (1, 64, 128)),
        (128, 7168, 64),
    ],
)
def test_tiles_keep_an_h200_at_work(M: int, N: int, BLOCK_N: int) -> None:
    assert tile_for(M, N, 132).BLOCK_N == BLOCK_N


@for_each("M, lines", [(1, 16), (16, 16), (17, 32), (64, 64), (127, 128), (128, 128), (999, 128)])
def test_no_more_lines_are_fetched_than_a_short_matrix_has(M: int, lines: int) -> None:
    assert lines_of_a(M) == lines
