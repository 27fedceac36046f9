"""All seeds and all findings of a check end up in one `Agreement`."""

from __future__ import annotations

import dataclasses
import math

import torch

from compare import registry
from compare.checking.probes import Probe, Probes, with_one_element_changed
from compare.checking.reference import expected_outputs
from compare.checking.stage import threads_for
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Case, Invariant
from compare.model.result import (
    CONDUCT,
    HARD_INPUTS,
    MEMORY,
    OTHER_SIZES,
    OWN_WORK,
    SANITIZER,
    THREAD_ORDERS,
    Finding,
)
from mutants import checked


def test_every_seed_counts(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    calls: list[int] = []

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return x + y if len(calls) < 3 else x - y

    agreement = checked(op, op.cases.smoke[0], device, run, seeds=(0, 1, 7))
    assert "values: seed 7" in agreement.reason
    assert agreement.within < 1


def test_a_broken_invariant_is_caught(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    never = Invariant("never holds", lambda inputs, output: "as announced")
    op = dataclasses.replace(op, invariants=(never,))
    agreement = checked(op, op.cases.smoke[0], device, lambda x, y: x + y)
    assert agreement.reason == "never holds: seed 0: as announced"


def test_findings_say_what_was_looked_at(device: torch.device) -> None:
    op = registry.get_op("softmax")
    agreement = checked(
        op, op.cases.smoke[0], device, lambda x: torch.empty_like(x).copy_(torch.softmax(x, 1))
    )
    assert Finding("guard zones", True, "around the output") in agreement.findings
    names = [finding.name for finding in agreement.findings]
    # A worker's check has more of these.
    assert {*CONDUCT} - {OWN_WORK, OTHER_SIZES, HARD_INPUTS, THREAD_ORDERS, MEMORY, SANITIZER} <= {*names}
    assert names == [
        *("output", "inputs unchanged", "guard zones", "output is fresh", "all written"),
        *("values", "NaN and infinity", "rows sum to 1", "repeatable"),
    ]


def test_two_runs_on_equal_inputs_differ_within_the_tolerance_only(device: torch.device) -> None:
    op = registry.get_op("softmax")

    def reason(error: float) -> str:
        calls: list[int] = []

        def run(x: torch.Tensor) -> torch.Tensor:
            calls.append(len(calls))
            output = torch.empty_like(x).copy_(torch.softmax(x, 1))
            output[0, 0] *= 1 + error * (len(calls) > 1)  # not in the first call
            return output

        return checked(op, op.cases.smoke[0], device, run, seeds=(0,)).reason

    assert reason(0.0) == reason(2e-7) == ""
    assert reason(1.0).endswith(
        "repeatable: seed 0: 0 and 1 elements are wrong in two runs on equal inputs: a race?"
    )


def test_an_output_of_one_element_may_have_any_stride(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    one = Case.parse("N=1,fp32,sliced", op)
    assert checked(op, one, device, lambda x, y: torch.empty_like(x).copy_(x + y), seeds=(0,)).passed


def test_no_cache_of_a_part_survives_a_changed_element() -> None:
    """Neither a key of the first elements of all tensors, nor one of a whole tensor."""
    x, y = torch.randn(4, 16), torch.randn(64)
    for _ in range(300):
        changed = [probe.inputs for probe in with_one_element_changed(Probe("seed 0", (x, y), ()))]
        assert [int((a != x).sum() + (b != y).sum()) for a, b in changed] == [1, 1]
        for same in (
            lambda a, b: torch.equal(a.flatten()[:32], x.flatten()[:32]) and torch.equal(b[:32], y[:32]),
            lambda a, b: torch.equal(a, x),
            lambda a, b: torch.equal(b, y),
        ):
            assert any(same(*inputs) for inputs in changed)
        for a, b in changed:
            values = [*a[a != x].tolist(), *b[b != y].tolist()]
            assert all((math.frexp(value)[0] * 16).is_integer() for value in values)  # four significant bits
    (x,) = (torch.ones(1),)
    assert len([*with_one_element_changed(Probe("seed 0", (x,), ()))]) == 2
    assert [*with_one_element_changed(Probe("seed 0", (torch.ones(0),), ()))] == []


def test_a_changed_element_leaves_outputs_that_16_bits_hold(device: torch.device) -> None:
    """With another q but the old log-sum-exp, which follows from q, exponentials exceed fp16."""
    op = registry.get_op("attention_backward")
    case = op.cases.smoke[0]
    with threads_for(op.cost(case).bytes):
        probe = Probes(op, case, device, ToleranceFromBaseline.local(op, case, device), (0,)).of(0)
        outputs = expected_outputs(op, case, device).values()
        changed = [each for _ in range(40) for each in with_one_element_changed(probe, outputs)]
        most = [
            reference.largest(output)
            for each in changed
            for reference, output in zip(each.references, outputs, strict=True)
        ]
    assert len(changed) > 60
    assert max(most) < torch.finfo(torch.float16).max / 16
