"""Where an output is wrong, and the guess from the pattern."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from compare.checking.errors import errors_of, mismatch_of
from compare.checking.mismatch import mismatch
from compare.checking.reference import Reference
from compare.model.op import case
from compare.model.result import Mismatch
from compare.registry import get_op
from loops import for_each

MATRIX = (100, 781)


def found(break_it: Callable[[torch.Tensor], object], shape: tuple[int, ...] = MATRIX) -> Mismatch:
    """Of an output that is right but for what is done to it."""
    expected = torch.rand(shape, dtype=torch.float64, generator=_generator()) + 1
    output = expected.float()
    made = break_it(output)
    output = made if isinstance(made, torch.Tensor) and made.shape == output.shape else output
    wrong = ~((output.double() - expected).abs() <= 1e-5)
    told = mismatch(output, expected, wrong)
    assert told.count == int(wrong.sum())
    assert told.of == wrong.numel()
    return told


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def put(*where: object) -> Callable[[torch.Tensor], None]:
    def break_it(output: torch.Tensor) -> None:
        output[where] = torch.rand(output[where].shape, generator=_generator()) + 7

    return break_it


EVERY = slice(None)


@for_each(
    "break_it, index, pattern",
    [
        (put(EVERY, slice(-13, None)), (0, 768), "only the last 13 columns: tail mask?"),
        (put(EVERY, slice(-1, None)), (0, 780), "only column 780: tail mask?"),
        (put(slice(64, None)), (64, 0), "rows >= 64: second tile?"),
        (put(slice(48, None)), (48, 0), "rows >= 48: a later tile?"),
        (put(slice(97, None)), (97, 0), "only the last 3 rows: tail mask?"),
        (put(slice(0, 1)), (0, 0), "only row 0"),
        (put(slice(0, 32)), (0, 0), "only the first 32 rows"),
        (put(slice(8, 16)), (8, 0), "only rows 8 to 15"),
        (put(EVERY, slice(1, None, 2)), (0, 1), "every other column, from 1"),
        (put(slice(0, None, 4)), (0, 0), "every 4th row, from 0"),
        (put([27, 40, 73]), (27, 0), "only rows 27, 40, 73"),
        (
            put(slice(64, None), slice(-13, None)),
            (64, 768),
            "only the last 13 columns: tail mask? and rows >= 64: second tile?",
        ),
        (put(EVERY), (0, 0), "every element"),
        (put(slice(5, 6), slice(7, 8)), (5, 7), "only column 7 and only row 5"),
        (lambda y: y.fill_(math.nan), (0, 0), "every element; all NaN"),
        (
            lambda y: y[:, -13:].fill_(math.nan),
            (0, 768),
            "only the last 13 columns: tail mask?; there NaN",
        ),
        (lambda y: y[3:4].fill_(math.inf), (3, 0), "only row 3; there infinity"),
        (lambda y: y.zero_(), (0, 0), "every element; all zero"),
        (lambda y: y.mul_(2), (0, 0), "every element; off by a constant factor 2"),
        (lambda y: y.add_(0.5), (0, 0), "every element; off by a constant 0.5"),
    ],
    ids=lambda each: each[2],
)
def test_places_and_values_are_a_pattern(
    break_it: Callable[[torch.Tensor], object], index: tuple[int, ...], pattern: str
) -> None:
    told = found(break_it)
    assert (told.index, told.pattern) == (index, pattern)
    assert told.got != told.expected


def test_a_transposed_result_is_seen() -> None:
    assert "the transposed result" in found(lambda y: y.T.contiguous(), (64, 64)).pattern


def test_values_of_other_elements_suggest_a_stride() -> None:
    def strided(output: torch.Tensor) -> torch.Tensor:
        return output.flatten()[(torch.arange(output.numel()) * 3) % 900].view_as(output)

    assert found(strided, (40, 50)).pattern.endswith("is an index or a stride wrong?")


def test_what_is_not_written_is_no_overflow() -> None:
    expected = torch.rand((6, 40), dtype=torch.float64, generator=_generator())
    output = expected.float()
    output[3:, 7:] = math.nan
    told = mismatch(output, expected, output.isnan(), plain=True, unwritten=output.isnan())
    assert told is not None
    assert "these not written: is the grid too small" in told.pattern
    assert "overflow" not in told.pattern
    output[3, 7] = math.inf  # some of them were
    told = mismatch(output, expected, ~output.isfinite(), plain=True, moves=True, unwritten=output.isnan())
    assert told is not None
    assert "some NaN or infinite: is memory read that nothing has written" in told.pattern
    assert "overflow" not in told.pattern


def test_where_the_first_row_alone_is_right_its_stride_is_suspected() -> None:
    assert (
        found(put(slice(1, None))).pattern
        == "only the last 99 rows; is the offset or the stride of a row wrong?"
    )


def test_scattered_elements_are_no_pattern() -> None:
    def scatter(output: torch.Tensor) -> None:
        output[torch.rand(output.shape, generator=_generator()) < 0.3] = 9.0

    assert found(scatter).pattern == ""


@for_each(
    "shape, break_it, pattern",
    [
        ((1000,), lambda y: y[512:].zero_(), "elements >= 512: second tile?; there zero"),
        (
            (4, 8, 32, 16),
            lambda y: y[2:].mul_(3),
            "only the last 2 dimension-0 indices: tail mask?; off by a constant factor 3",
        ),
        ((5, 30), lambda y: y[1:].mul_(3), "only the last 4 rows; off by a constant factor 3"),
        ((), lambda y: y.mul_(3), ""),
    ],
)
def test_any_number_of_dimensions(
    shape: tuple[int, ...], break_it: Callable[..., object], pattern: str
) -> None:
    told = found(break_it, shape)
    assert told.pattern == pattern
    assert len(told.index) == len(shape)


@for_each(
    "rows, words",
    [([2], "only row 2; off by a constant factor 1.4: another eps?"), ([2, 3], "or another eps?")],
)
def test_small_rows_that_are_off_by_a_factor_suggest_another_eps(rows: list[int], words: str) -> None:
    expected = torch.rand((5, 64), dtype=torch.float64, generator=_generator()) + 1
    output = expected.clone()
    output[rows] *= torch.tensor([[1.4], [1.2]])[: len(rows)]
    told = mismatch(output.float(), expected, output != expected, formula="y = x / sqrt(mean(x^2) + eps)")
    assert told.pattern.endswith(words)


def test_where_nothing_is_wrong_there_is_none() -> None:
    right = torch.ones(3)
    assert mismatch(right, right.double(), torch.zeros(3, dtype=torch.bool)) is None


def test_the_check_locates_what_it_finds_wrong_piece_by_piece() -> None:
    op = get_op("softmax")
    small = case("fp32", M=40, N=300)
    inputs = op.make_inputs(small, _generator(), torch.device("cpu"))
    output = op.oracle(*(x.double() for x in inputs)).float()
    output[:, -13:] *= 1.5
    reference = Reference(op, inputs)
    errors = errors_of(op, small, reference, output, 100.0)
    told = mismatch_of(op, small, reference, output, 100.0)
    assert told.count == errors.wrong == 40 * 13
    assert told.index == (0, 287)
    assert told.got == pytest.approx(1.5 * told.expected)
    assert told.pattern == "only the last 13 columns: tail mask?; off by a constant factor 1.5"
