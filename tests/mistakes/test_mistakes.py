"""The default command finds every honest mistake, with a hint that fits, and calls no right kernel wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mistakes import OPS, judge, rows_of, said_of, variants_of

VARIANTS = [variant for op in OPS for variant in variants_of(op)]
MISTAKES = [variant for variant in VARIANTS if variant.hint]


def test_there_are_enough() -> None:
    assert len(MISTAKES) >= 44
    assert len(VARIANTS) - len(MISTAKES) >= 30
    assert len({variant.op for variant in MISTAKES}) >= 8
    assert {variant.route for variant in MISTAKES} == {"triton", "cuda"}


def test_each_applies_and_has_its_own_label() -> None:
    for variant in VARIANTS:
        compile(variant.text(), variant.label, "exec")
    assert [each for each, n in Counter((v.op, v.label) for v in VARIANTS).items() if n > 1] == []


def test_most_have_a_hint_of_their_own() -> None:
    """A dot matches any message."""
    assert sum(variant.hint == "." for variant in MISTAKES) <= len(MISTAKES) / 10


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("op", "device"),
    [
        *(pytest.param(op, "cpu", marks=[pytest.mark.exhaustive] * (op != "vector_add")) for op in OPS),
        *(pytest.param(op, "cuda", marks=[pytest.mark.gpu, pytest.mark.alone]) for op in OPS),
    ],
)
def test_mistakes_are_wrong_and_variants_right(op: str, device: str) -> None:
    rows = rows_of(op, device)
    judged = {v: judge(v, rows[v.label], device) for v in variants_of(op)}
    told = {f"{v.route} {v.name}: {verdict}": said_of(rows[v.label]) for v, verdict in judged.items()}
    assert {name: said for name, said in told.items() if name.rpartition(": ")[2].isupper()} == {}
    without = {name: said for name, said in told.items() if name.endswith(": no hint")}
    assert len(without) <= max(1, len(judged) // 10), without
