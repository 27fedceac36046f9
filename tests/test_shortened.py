"""Cases that a CPU would check for minutes, and those checked in their place: `compare.run.shortened`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compare import registry
from compare.model.op import Case
from compare.model.result import Options
from compare.run import plan, shorter
from compare.run.shortened import LONGEST_S, seconds, shortened

SOFTMAX = registry.get_op("softmax")
LARGE = Case.parse("M=4097,N=781,fp16", SOFTMAX)


def test_a_large_case_keeps_its_remainder_and_its_other_dimensions() -> None:
    short = shortened(SOFTMAX, LARGE, 11)
    assert (short["M"] % 8, short["N"], short.dtype) == (1, 781, "fp16")
    assert seconds(SOFTMAX, short, 11) <= LONGEST_S < seconds(SOFTMAX, LARGE, 11)


def test_short_rows_take_their_time() -> None:
    """Triton's interpreter takes some 5 ms a program, however short its row is."""
    short = shortened(SOFTMAX, Case.parse("M=99999,N=5", SOFTMAX), 11)
    assert short["M"] * 0.005 * 11 <= LONGEST_S


@pytest.mark.parametrize("name", registry.op_names())
def test_a_case_in_anothers_place_is_quick_and_no_larger(name: str) -> None:
    op = registry.get_op(name)
    for case in (op.cases.default, *op.cases.sweep, *op.cases.smoke):
        short = shortened(op, case, 11)
        if short is not None:
            assert all(size <= case[dim] for dim, size in short.dims)
            assert seconds(op, short, 11) <= LONGEST_S
    assert all(shortened(op, case, 11) == case for case in op.cases.smoke)


def test_only_a_command_has_large_cases_shortened() -> None:
    options = Options(cases=(LARGE,), shorten=True)
    (short,) = shorter(SOFTMAX, options, options.cases).values()
    assert [(step.case, step.check) for step in plan(SOFTMAX, options, "cpu")] == [
        (short, True),
        (LARGE, False),
    ]
    for whole in (plan(SOFTMAX, replace(options, shorten=False), "cpu"), plan(SOFTMAX, options, "cuda")):
        assert [(step.case, step.check) for step in whole] == [(LARGE, True)]
