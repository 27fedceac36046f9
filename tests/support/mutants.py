"""Mutants: an op's baseline with one thing made wrong, checked as an implementation of that op."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from compare import registry
from compare.checking.check import check
from compare.spec import WHOLE, Agreement, Case, Implementation, Op, case, nothing_open

Run = Callable[..., torch.Tensor]

LONG = {"softmax": tuple(case(dtype, M=2, N=2**17) for dtype in ("fp32", "fp16", "bf16"))}
"""Cases whose elements are so small that a sloppy tolerance would accept anything."""


def ops_and_cases(long: bool) -> list[object]:
    return [
        pytest.param(registry.get_op(name), c, id=f"{name}-{c}")
        for name in registry.op_names()
        for c in (*registry.get_op(name).cases.smoke, *(LONG.get(name, ()) if long else ()))
    ]


every_op = pytest.mark.parametrize(
    "op", [pytest.param(registry.get_op(n), id=n) for n in registry.op_names()]
)
every_op_and_case = pytest.mark.parametrize(("op", "c"), ops_and_cases(long=False))
every_op_and_long_case = pytest.mark.parametrize(("op", "c"), ops_and_cases(long=True))


def baseline(op: Op) -> Run:
    return next(impl.run for impl in registry.implementations(op.name) if impl.label == op.baseline)


def checked(op: Op, c: Case, device: torch.device, run: Run, seeds: tuple[int, ...] = (0,)) -> Agreement:
    mutant = Implementation(op.name, "triton.mutant", "tiled", run)
    return check(op, mutant, c, device, seeds)


def spoiled(op: Op, c: Case, spoil: Callable[[torch.Tensor], object]) -> Agreement:
    """The agreement of the baseline on a CPU with its output changed in place."""

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        output = baseline(op)(*inputs)
        spoil(output)
        return output

    return checked(op, c, torch.device("cpu"), run)


def failed(agreement: Agreement) -> set[str]:
    assert agreement.passed is not bool(agreement.reason)
    return {finding.name for finding in agreement.findings if not finding.passed}


def skip_where_the_end_is_open(op: Op) -> None:
    if op.settle is not nothing_open:
        pytest.skip("the op leaves its last element open; its own tests have cases where it is not")


def skip_whole_numbers(op: Op) -> None:
    if op.output_dtype in WHOLE:
        pytest.skip("its output is integers, which are never NaN and not rounded")
