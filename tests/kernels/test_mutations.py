"""Seeded bugs of ``tests/mutations/`` are caught, and for the right reason.

One of every kind runs here; ``make mutations`` runs and records all of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import case_sets
from compare import registry
from mutations import Mutation, every_mutation, record
from mutations import __main__ as command
from mutations.instruments import MACHINE, MutationResult, mutated, outcome, still_run
from on_device import skip_unless_supported

MUTATIONS = every_mutation()


def one_of_a_kind() -> list[Mutation]:
    """One mutation for each language and instrument of this machine, and on a GPU for each op and sign.

    On a CPU, where compiling takes seconds, one of the op chosen least often, and one of every other op.
    """
    found: dict[tuple[str, ...], list[Mutation]] = {}
    for m in MUTATIONS:
        if m.instrument(MACHINE):
            kind = m.file.partition("/")[0], m.instrument(MACHINE)
            found.setdefault(kind if MACHINE == "cpu" else (m.op, *kind, m.expected(MACHINE)), []).append(m)
    had: Counter[str] = Counter()
    chosen = []
    for alike in sorted(found.values(), key=len):
        # From the end, because compilers take longest for the first ops, attention and its gradient.
        chosen.append(min(reversed(alike), key=lambda m: had[m.op]))
        had[chosen[-1].op] += 1
    for m in MUTATIONS:
        if m.instrument(MACHINE) and not had[m.op]:
            chosen.append(m)
            had[m.op] += 1
    return chosen


def test_every_op_has_one_that_is_run() -> None:
    assert {m.op for m in one_of_a_kind()} == set(registry.op_names())


def test_there_are_enough() -> None:
    assert len(MUTATIONS) >= 30
    seeded = {(mutation.op, mutation.file.partition("/")[0]) for mutation in MUTATIONS}
    assert seeded >= {(op, folder) for op in registry.op_names() for folder in ("triton_impl", "cuda_impl")}


def test_each_is_told_from_the_others() -> None:
    assert [name for name, times in Counter(m.name for m in MUTATIONS).items() if times > 1] == []


def test_each_still_applies() -> None:
    for mutation in MUTATIONS:
        text = (registry.ROOT / mutation.file).read_text()
        assert mutated(text, mutation) != text, mutation.name


def test_the_record_is_of_these_mutations() -> None:
    """Every mutation that needs no GPU is recorded; the GPU's part may be older than a new mutation."""
    recorded = record.read()
    without = [m.name for m in MUTATIONS if m.without_gpu and "cpu" not in record.caught_of(m, recorded)]
    assert without == [], "make mutations records them anew"
    assert [entry["bug"] for entry in recorded] == [mutation.bug for mutation in MUTATIONS]


def test_what_showed_it_is_still_run() -> None:
    """No mutation was caught only on a case that tests leave out on a CPU."""
    recorded = record.read()
    left_out = [m.name for m in MUTATIONS if m.without_gpu and not still_run(m, recorded, "cpu")]
    assert left_out == [], "make mutations ARGS=--missing tells whether another case shows it"


@pytest.mark.parametrize("ends", [False, True])
def test_what_was_found_is_recorded_however_it_ends(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is caught, one no longer; the others cannot run here, or are not reached."""
    caught, missed, last, *_ = MUTATIONS
    anew = {"by": "a test", "found": "it", "case": "N=1"}

    class Here:
        """A pool of this process alone."""

        def __init__(self, *of: object) -> None: ...

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *error: object) -> None: ...

        def map(self, function: object, mutations: list[Mutation]) -> Iterator[MutationResult]:
            for mutation in mutations:
                if ends and mutation == last:
                    raise KeyboardInterrupt
                results = {caught: MutationResult("", anew), missed: MutationResult("not caught")}
                yield results.get(mutation, MutationResult())

    before = {MACHINE: {"case": ""}, "another": {"case": ""}}
    entries = [{**record.described(mutation), "caught": before} for mutation in MUTATIONS]
    monkeypatch.setattr(record, "FILE", tmp_path / "mutations.json")
    record.FILE.write_text(json.dumps({"mutations": entries}))
    monkeypatch.setattr(command, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(sys, "argv", ["mutations"])
    assert command.main() == 1
    recorded = record.read()
    after = {mutation: record.caught_of(mutation, recorded) for mutation in MUTATIONS}
    assert after.pop(caught) == {**before, MACHINE: anew}
    assert after.pop(missed) == {"another": {"case": ""}}
    assert {m.name: found for m, found in after.items() if found != before} == {}
    assert missed in command.wanted([caught, missed], [], missing=True)


def alone(mutation: Mutation) -> Any:
    """Huge cases take most of a GPU's memory."""
    marks = [pytest.mark.alone] if mutation.instrument(MACHINE) == "huge" else []
    if mutation.op != case_sets.WHOLE:
        marks.append(pytest.mark.thorough)
    return pytest.param(mutation, id=mutation.name, marks=marks)


@pytest.mark.parametrize("mutation", [alone(mutation) for mutation in one_of_a_kind()])
def test_it_is_caught(mutation: Mutation, device: torch.device) -> None:
    (impl,) = registry.implementations(mutation.op, (mutation.label,))
    skip_unless_supported(impl, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # its process needs the memory
    assert outcome(mutation).problem == ""


OFF_BY_ONE = min(
    (
        m
        for m in MUTATIONS
        if m.without_gpu == m.with_gpu == "check" and m.sign == "guard zones" and m.file.endswith(".py")
    ),
    key=lambda m: len(case_sets.small(registry.get_op(m.op))),  # an uncaught one runs all of them
)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"wrong": OFF_BY_ONE.right}, "not caught in [1-9]"),
        ({"sign": "inputs unchanged"}, "nothing says 'inputs unchanged': "),
        ({"wrong": "raise SystemExit("}, "could not be run"),
    ],
)
def test_what_does_not_count_as_caught(changes: dict[str, str], problem: str, device: torch.device) -> None:
    """A change that changes nothing, one found for another reason, and one that breaks the file itself."""
    mutation = replace(OFF_BY_ONE, **changes)
    if "run" in problem:
        with pytest.raises(RuntimeError, match=problem):
            outcome(mutation)
    else:
        assert re.search(problem, outcome(mutation).problem)


@pytest.mark.parametrize("right", ["no such words", "n"])
def test_words_that_are_not_there_once_are_named(right: str) -> None:
    mutation = replace(OFF_BY_ONE, right=right)
    text = (registry.ROOT / mutation.file).read_text()
    with pytest.raises(ValueError, match=rf"{re.escape(mutation.name)}: no longer applies"):
        mutated(text, mutation)
