"""Words of a lab's screen that are explained below it."""

from __future__ import annotations

import pytest

from compare.labs.marking import Marks, Part
from compare.report import glossary, labs

MARKS = Marks(
    "ana", "01", "", False, "", "", (Part("CUDA: whole", 0, 1, "wrong", "by up to 40 fp32 roundings"),)
)


def test_each_term_begins_its_line_and_few_are_shown() -> None:
    assert glossary.lines("a race, by 3 roundings") == [
        next(term for term in glossary.TERMS.values() if term.startswith(begin))
        for begin in ("race: ", "fp32 rounding: ")
    ]
    assert glossary.lines("correct") == glossary.lines("not written yet: add") == []
    assert len(glossary.lines("race deadlock tail mask own work spilled")) == 3
    assert all(len(term) < 120 for term in glossary.TERMS.values())


def test_terms_stand_below_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    labs.put(labs.marks_table(MARKS), terms_of=[part.name for part in MARKS.parts])
    shown = capsys.readouterr().out
    assert shown.index("40 fp32 roundings") < shown.index("fp32 rounding: what storing a value")
    labs.put(labs.marks_table(MARKS))
    assert "what storing" not in capsys.readouterr().out
