"""All seeds and all findings of a check end up in one `Agreement`."""

from __future__ import annotations

import dataclasses

import torch

from compare import registry
from compare.spec import CONDUCT, Finding, Invariant
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
    # A worker's check has two more of these.
    assert {*CONDUCT} - {"own work", "other sizes"} <= {*names}
    assert names == [
        *("output", "inputs unchanged", "guard zones", "output is fresh", "all written"),
        *("values", "NaN and infinity", "rows sum to 1"),
    ]
