"""Where an output is wrong, and the guess from the pattern."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from compare.checking.errors import errors_of, mismatch_of
from compare.checking.mismatch import mismatch
from compare.checking.reference import Reference
from compare.registry import get_op
from compare.spec import Mismatch, case

ROWS, COLUMNS = 100, 781


def found(break_it: Callable[[torch.Tensor], object], *shape: int) -> Mismatch:
    """Of an output that is right but for what is done to it."""
    expected = torch.rand(shape or (ROWS, COLUMNS), dtype=torch.float64, generator=_generator()) + 1
    output = expected.float()
    made = break_it(output)
    output = made if isinstance(made, torch.Tensor) and made.shape == output.shape else output
    wrong = ~((output.double() - expected).abs() <= 1e-5)
    told = mismatch(output, expected, wrong)
    assert told is not None
    assert told.count == int(wrong.sum())
    assert told.of == wrong.numel()
    return told


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def put(*where: object) -> Callable[[torch.Tensor], None]:
    def break_it(output: torch.Tensor) -> None:
        output[where] = torch.rand(output[where].shape, generator=_generator()) + 7

    return break_it


@pytest.mark.parametrize(
    ("break_it", "says", "index"),
    [
        (put(slice(None), slice(-13, None)), "only the last 13 columns: tail mask?", (0, 768)),
        (put(slice(None), slice(-1, None)), "only column 780: tail mask?", (0, 780)),
        (put(slice(64, None)), "rows >= 64: second tile?", (64, 0)),
        (put(slice(48, None)), "rows >= 48: a later tile?", (48, 0)),
        (put(slice(97, None)), "only the last 3 rows: tail mask?", (97, 0)),
        (put(slice(0, 1)), "only row 0", (0, 0)),
        (put(slice(0, 32)), "only the first 32 rows", (0, 0)),
        (put(slice(8, 16)), "only rows 8 to 15", (8, 0)),
        (put(slice(None), slice(1, None, 2)), "every other column, from 1", (0, 1)),
        (put(slice(0, None, 4)), "every 4th row, from 0", (0, 0)),
        (
            put(slice(64, None), slice(-13, None)),
            "only the last 13 columns: tail mask? and rows >= 64",
            (64, 768),
        ),
        (put(slice(None)), "every element", (0, 0)),
        (put(slice(5, 6), slice(7, 8)), "only column 7 and only row 5", (5, 7)),
    ],
)
def test_the_places_are_a_pattern(
    break_it: Callable[[torch.Tensor], object], says: str, index: object
) -> None:
    told = found(break_it)
    assert told.pattern.startswith(says)
    assert told.index == index
    assert told.got != told.expected


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda y: y.fill_(math.nan), "every element; all NaN"),
        (lambda y: y[:, -13:].fill_(math.nan), "only the last 13 columns: tail mask?; there NaN"),
        (lambda y: y[3:4].fill_(math.inf), "only row 3; there infinity"),
        (lambda y: y.zero_(), "every element; all zero"),
        (lambda y: y.mul_(2), "every element; off by a constant factor 2"),
        (lambda y: y.add_(0.5), "every element; off by a constant 0.5"),
    ],
)
def test_the_values_are_a_pattern(break_it: Callable[[torch.Tensor], object], says: str) -> None:
    assert found(break_it).pattern == says


def test_a_transposed_result_is_seen() -> None:
    assert "the transposed result" in found(lambda y: y.T.contiguous(), 64, 64).pattern


def test_scattered_elements_are_no_pattern() -> None:
    def scatter(output: torch.Tensor) -> None:
        output[torch.rand(output.shape, generator=_generator()) < 0.3] = 9.0

    assert found(scatter).pattern == ""


@pytest.mark.parametrize(
    ("shape", "break_it", "says"),
    [
        ((1000,), lambda y: y[512:].zero_(), "elements >= 512: second tile?; there zero"),
        (
            (4, 8, 32, 16),
            lambda y: y[2:].mul_(3),
            "only the last 2 indices of dimension 0: tail mask?; off by",
        ),
        ((5, 30), lambda y: y[1:].mul_(3), "only the last 4 rows; off by"),
        ((), lambda y: y.mul_(3), ""),
    ],
)
def test_any_number_of_dimensions(shape: tuple[int, ...], break_it: Callable[..., object], says: str) -> None:
    expected = torch.ones(shape, dtype=torch.float64)
    output = expected.float()
    break_it(output)
    told = mismatch(output, expected, output != 1)
    assert told is not None
    assert told.pattern.startswith(says)
    assert len(told.index) == len(shape)


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
    assert told is not None
    assert told.count == errors.wrong == 40 * 13
    assert told.index == (0, 287)
    assert told.got == pytest.approx(1.5 * told.expected)
    assert told.pattern == "only the last 13 columns: tail mask?; off by a constant factor 1.5"
