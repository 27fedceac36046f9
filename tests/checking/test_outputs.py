"""Ops with several outputs, each checked and named in messages; and with options beside the tensors."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from compare import registry
from compare.checking.check import check
from compare.checking.reference import Reference, expected_outputs
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Implementation, Output, Tolerance, UsageError, by_output, case
from compare.model.result import Agreement, Timing
from compare.records import archive
from compare.registry import ROOT
from compare.timing.rounds import Plan
from compare.worker.buffers import CaseBuffers
from compare.worker.timing import Examiner
from in_workers import settings_on, timed
from loops import for_each
from processes import command
from rows import labelled

FILE = ROOT / "tests" / "support" / "two_outputs_op.py"
SMALL = case(M=5, N=33, LOWEST=0)


@pytest.fixture(autouse=True)
def loaded(own_registry: None) -> None:
    registry.load(str(FILE))


def agreement_of(change: Callable[..., Any], device: torch.device) -> Agreement:
    """Of an implementation that returns what ``change`` makes of x, y, peak and ``lowest``."""
    eager = labelled("below_peak", "torch.eager")

    def run(x: torch.Tensor, lowest: bool) -> Any:
        return change(x, *eager.run(x, lowest=lowest), lowest)

    impl = Implementation("below_peak", "triton.mine", "tiled", run)
    return check(registry.get_op("below_peak"), impl, SMALL, device, seeds=(0, 1))


def test_an_op_is_taken_apart_by_output() -> None:
    op = registry.get_op("below_peak")
    y, peak = by_output(op, SMALL)
    assert (y.output, y.signature) == ("y", "x[M,N] -> y[M,N]")
    assert (peak.output, peak.signature, peak.output_dtype) == ("peak", "x[M,N] -> peak[M]", "fp32")
    expected = expected_outputs(op, case("fp16", M=4, N=16, LOWEST=0), torch.device("cpu"))
    assert {name: (tuple(x.shape), x.dtype) for name, x in expected.items()} == {
        "y": ((4, 16), torch.float16),
        "peak": ((4,), torch.float32),
    }


@for_each("label", ["torch.eager", "triton.onepass"])
def test_what_is_right_passes_on_every_case(label: str, device: torch.device) -> None:
    op = registry.get_op("below_peak")
    impl = labelled("below_peak", label)
    for each in (*op.cases.smoke, *op.cases.edge):
        agreement = check(op, impl, each, device, seeds=(0,))
        assert agreement.passed, agreement.reason


@for_each(
    "change, says",
    [
        (lambda x, y, peak, lowest: (y, peak), ""),
        (lambda x, y, peak, lowest: (y, peak if lowest is False else 0), ""),
        (lambda x, y, peak, lowest: (y, peak + 1), "values: seed 0: peak: 5 of 5 elements are wrong"),
        (lambda x, y, peak, lowest: (y + 1, peak), "values: seed 0: y: 165 of 165 elements are wrong"),
        (
            lambda x, y, peak, lowest: (y, torch.where(peak > 0, torch.nan, peak)),
            "NaN and infinity: seed 0: peak: 5 elements differ",
        ),
        (lambda x, y, peak, lowest: y, "a Tensor was returned instead of a tuple of y, peak"),
        (
            lambda x, y, peak, lowest: (y, peak, peak),
            "a tuple of 3 was returned instead of",
        ),
        (lambda x, y, peak, lowest: [y, peak], "a list was returned instead of a tuple of y, peak"),
        (lambda x, y, peak, lowest: (peak, y), "y: its shape is (5,), expected (5, 33)"),
        (
            lambda x, y, peak, lowest: (y, peak.half()),
            "peak: its dtype is torch.float16, expected torch.float32",
        ),
        (
            lambda x, y, peak, lowest: (y, x[:, 0]),
            "output is fresh: seed 0: it is in the memory of argument",
        ),
    ],
    ids=lambda each: each[1] or "right",
)
def test_what_is_wrong_names_the_output(change: Callable[..., Any], says: str, device: torch.device) -> None:
    agreement = agreement_of(change, device)
    assert agreement.passed == (not says)
    assert says in agreement.reason


def test_the_first_wrong_element_is_of_the_output_that_is_wrong(device: torch.device) -> None:
    found = agreement_of(
        lambda x, y, peak, lowest: (y, peak + (torch.arange(5, device=x.device) == 3)), device
    ).mismatch
    assert (found.index, found.count, found.of, found.pattern) == ((3,), 1, 5, "peak: only element 3")


def test_a_signature_has_as_many_outputs_as_the_op_describes() -> None:
    op = dataclasses.replace(registry.get_op("below_peak"), name="another", further=())
    with pytest.raises(
        UsageError, match="has 2 outputs, and the op describes 1: its own and those in further"
    ):
        registry.register_op(op)
    more = Output(op.oracle, lambda case: Tolerance(least=1.0))
    with pytest.raises(UsageError, match="has 2 outputs, and the op describes 3"):
        registry.register_op(dataclasses.replace(op, further=(more, more)))


@pytest.mark.thorough
def test_the_command_compares_it_in_workers(tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    words = ("below_peak", "--load", str(FILE), "--json", str(written))
    done = command(*words)
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = archive.read(written)
    assert {row.label: row.status for row in run.cases[0].rows} == {
        "torch.eager": "ok",
        "triton.onepass": "ok",
    }


@pytest.mark.parametrize("lowest", [0, 1])
def test_the_tolerance_is_of_the_baseline_with_the_case_s_options(
    lowest: int, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    eager = labelled("below_peak", "torch.eager")
    op, c = registry.get_op("below_peak"), case(M=5, N=33, LOWEST=lowest)

    def off(x: torch.Tensor, *, lowest: bool) -> tuple[torch.Tensor, ...]:
        y, peak = eager.run(x, lowest=lowest)
        return y * (1 + 2.0**-18), peak

    baseline = dataclasses.replace(eager, run=off)  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "implementations", lambda *_: [baseline])
    y, _ = by_output(op, c)
    inputs = op.make_inputs(c, torch.Generator(device).manual_seed(0), device)
    limit = ToleranceFromBaseline.local(op, c, device).limit(c, Reference(y, inputs))
    assert limit > 10 * y.tolerance(c).least


def test_an_examiner_lets_go_of_stale_inputs_that_no_worker_gets(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """Large inputs may fit only once."""
    made: list[weakref.ref[torch.Tensor]] = []
    op = registry.get_op("below_peak")
    right = op.make_inputs

    def make_inputs(*given: Any) -> tuple[torch.Tensor, ...]:
        inputs = right(*given)
        made.extend(map(weakref.ref, inputs))
        return inputs

    monkeypatch.setattr("compare.worker.buffers._STAGED_BYTES", 0)
    with CaseBuffers(op, SMALL, device, expected_outputs(op, SMALL, device), timed=True) as buffers:
        watched = dataclasses.replace(op, make_inputs=make_inputs)
        exam = Examiner(watched, SMALL, device, buffers, ToleranceFromBaseline.local(op, SMALL, device))
        assert not exam.coming
        alive = [ref() is not None for ref in made]
        assert alive == [False, *[True] * buffers.sets]


def test_every_output_of_a_timed_call_is_checked(device: torch.device) -> None:
    op = registry.get_op("below_peak")
    impls = registry.implementations("below_peak")
    plan = Plan(min_rounds=3, max_rounds=3, min_s=0.0)
    found = timed(op, impls, SMALL, settings_on(device, plan=plan), device)
    assert all(isinstance(timing, Timing) for timing in found.values()), found
