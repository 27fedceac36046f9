"""int8_matmul and fp8_matmul: exact sums, accumulators, scales, and what arguments they refuse."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from compare import registry
from compare.device import supports
from compare.spec import Implementation, Op, case
from cuda_impl.matrix_map import has_aligned_rows
from cuda_impl.rawkernel.scaled_matmul import lines_of_a, operand, tile_for

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")
DTYPES = {"int8_matmul": torch.int8, "fp8_matmul": torch.float8_e4m3fn}


def implementations(op: str, *only: str) -> list[Any]:
    found = registry.implementations(op, only)
    return [
        pytest.param(registry.get_op(op), impl, id=f"{op}-{impl.label}")
        for impl in found
        if supports(impl, CPU) is None and impl.label != "torch.compile"
    ]


BOTH = [each for op in DTYPES for each in implementations(op)]
of_both_ops = pytest.mark.parametrize(("op", "impl"), BOTH)


def inputs_of(op: Op, M: int, N: int, K: int) -> tuple[torch.Tensor, ...]:
    c = case(op.dtypes[0], M=M, N=N, K=K)
    return op.make_inputs(c, torch.Generator().manual_seed(0), CPU)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("sizes", [(3, 5, 7), (9, 130, 300)])
def test_the_oracle_is_the_product_of_the_dequantized_matrices(
    name: str, sizes: tuple[int, int, int]
) -> None:
    op = registry.get_op(name)
    a, b, scale_a, scale_b = (x.double().numpy() for x in inputs_of(op, *sizes))
    wanted = (a * scale_a[:, None]) @ (b * scale_b[:, None]).T
    found = op.oracle(*map(torch.from_numpy, (a, b, scale_a, scale_b))).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@of_both_ops
def test_each_scale_counts_where_it_applies(op: Op, impl: Implementation) -> None:
    """Of ones, c is K times the product of a row's and a column's scale."""
    M, N, K = 130, 66, 32
    a, b = (torch.ones(size, K).to(DTYPES[op.name]) for size in (M, N))
    scale_a, scale_b = (2.0 ** (torch.arange(size) % 16) for size in (M, N))
    assert torch.equal(impl.run(a, b, scale_a, scale_b).float(), K * scale_a[:, None] * scale_b)


@of_both_ops
def test_special_scales(op: Op, impl: Implementation) -> None:
    """0, infinity, NaN and a subnormal number, which is not flushed to 0."""
    scale_a = torch.tensor([0.0, math.inf, math.nan, 2.0**-140, 1.0])
    a, b = (torch.ones(size, 64).to(DTYPES[op.name]) for size in (5, 2))
    b[1] = 0
    found = impl.run(a, b, scale_a, torch.tensor([2.0**20, 1.0])).float()
    wanted = torch.tensor([0.0, math.inf, math.nan, 2.0**-114, 2.0**26])
    torch.testing.assert_close(found[:, 0], wanted, rtol=0, atol=0, equal_nan=True)
    of_zeros = torch.tensor([0.0, math.nan, math.nan, 0.0, 0.0])
    torch.testing.assert_close(found[:, 1], of_zeros, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("op", "impl"), implementations("int8_matmul"))
def test_sums_of_int8_are_exact(op: Op, impl: Implementation) -> None:
    """They pass 2^24, from where on fp32 does not hold every whole number, and end at 1."""
    half = 2112
    a, b = (torch.full((size, 2 * half + 1), 127, dtype=torch.int8) for size in (3, 5))
    b[:, half:] = -127
    a[:, -1] = b[:, -1] = 1
    assert torch.equal(impl.run(a, b, torch.ones(3), torch.ones(5)).float(), torch.ones(3, 5))


@pytest.mark.parametrize(("op", "impl"), implementations("int8_matmul", "cupy.*"))
def test_the_largest_sum_of_int8(op: Op, impl: Implementation) -> None:
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


@pytest.mark.parametrize(("op", "impl"), implementations("fp8_matmul", "cupy.*", "pybind.*"))
def test_promotion_keeps_long_sums_precise(op: Op, impl: Implementation) -> None:
    """As the host emulates Hopper's tensor cores: sums with 13 bits behind the leading one."""
    error = errors(impl, 16384)
    assert error < 0.1 if impl.accumulator == "fp32" else 0.3 < error < 3


SHAPES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "b": (lambda x: x[:, :-1], "b has shape (5, 63) and a (2, 64); it takes as many columns of b as a has"),
    "scale_a": (
        lambda x: x[:1],
        "scale_a has shape (1,) and a (2, 64); it takes as many elements of scale_a as a has rows",
    ),
    "scale_b": (
        lambda x: x[1:],
        "scale_b has shape (4,) and b (5, 64); it takes as many elements of scale_b as b has rows",
    ),
}


@of_both_ops
def test_a_shape_that_does_not_go_with_the_others_is_refused(op: Op, impl: Implementation) -> None:
    arguments = dict(zip(("a", "b", "scale_a", "scale_b"), inputs_of(op, 2, 5, 64), strict=True))
    for name, (spoil, says) in SHAPES.items():
        with pytest.raises(ValueError, match=re.escape(f"{op.name}: {says}")):
            impl.run(*{**arguments, name: spoil(arguments[name])}.values())


@of_both_ops
def test_other_dtypes_are_refused(op: Op, impl: Implementation) -> None:
    a, b, *scales = inputs_of(op, 2, 5, 64)
    taken = DTYPES[op.name]
    for kind in {torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2} - {taken}:
        with pytest.raises(TypeError, match=rf"b is {kind}; it takes {taken}"):
            impl.run(a, b.float().to(kind), *scales)
    with pytest.raises(TypeError, match=r"scale_a is torch.float16; it takes torch.float32"):
        impl.run(a, b, scales[0].half(), scales[1])
    with pytest.raises(ValueError, match=r"scale_b has 2 dimensions, shape \(5, 1\); it takes 1"):
        impl.run(a, b, scales[0], scales[1][:, None])


@pytest.mark.parametrize(("op", "impl"), implementations("int8_matmul"))
def test_sums_that_may_overflow_are_refused(op: Op, impl: Implementation) -> None:
    a = torch.zeros((1, 1), dtype=torch.int8).expand(2, 1 << 17)
    says = "int8_matmul: a has shape (2, 131072); it takes at most 131071 columns"
    with pytest.raises(ValueError, match=re.escape(says)):
        impl.run(a, a, torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_operands_are_copied_only_where_a_kernel_cannot_read_them(dtype: torch.dtype) -> None:
    whole = torch.ones(4, 512).to(dtype)
    for taken in (whole, whole[:, :200], whole[1:, 16:144]):
        assert operand(taken) is taken
    for copied in (whole[:, :199], whole[:, 8:136], whole.t(), whole[:1].expand(4, 512)):
        found = operand(copied)
        assert has_aligned_rows(found)
        assert found.shape == (copied.shape[0], copied.shape[1] + copied.shape[1] % 2)
        assert torch.equal(found[:, : copied.shape[1]].float(), copied.float())
        assert not found[:, copied.shape[1] :].float().any()


@pytest.mark.parametrize(
    ("M", "N", "BLOCK_N"),
    [
        *((size, size, 256) for size in (4096, 8192)),
        (4096, 7168, 256),
        (1024, 1024, 64),
        *((M, 8192, 64) for M in (1, 64, 128)),
        (128, 7168, 64),
    ],
)
def test_tiles_keep_an_h200_at_work(M: int, N: int, BLOCK_N: int) -> None:
    assert tile_for(M, N, 132) == BLOCK_N


@pytest.mark.parametrize(
    ("M", "lines"), [(1, 16), (16, 16), (17, 32), (64, 64), (127, 128), (128, 128), (999, 128)]
)
def test_no_more_lines_are_fetched_than_a_short_matrix_has(M: int, lines: int) -> None:
    assert lines_of_a(128, M) == lines
