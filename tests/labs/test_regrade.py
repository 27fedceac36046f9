"""A regrade: one student's marks are replaced, those of others and what an instructor gave stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compare.labs import classroom, hand_ins
from compare.labs import lab as labs
from compare.labs.marking import Marks, Part
from compare.labs.regrade import regrade
from compare.labs.work import Work, start
from compare.model.op import UsageError

Regrade = Callable[[str, float], dict[str, list[float]]]
LAB = labs.find("01")


@pytest.fixture
def again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Regrade:
    """Mark two students with 2 of 2 points for each part, then one anew, with other points."""
    worth = [2.0]
    for name in ("ann", "bob: jr"):
        start(LAB, tmp_path / name)

    def correctness(work: Work, *_: object) -> Marks:
        parts = tuple(Part(name, worth[0], 2, "passed") for name in ("T: small", "T: odd", "C: odd"))
        return Marks(work.name, LAB.name, "a CPU", False, "", work.digest, parts)

    monkeypatch.setattr(classroom, "correctness", correctness)
    monkeypatch.setattr(classroom, "speeds", lambda work, marks, *_: marks)
    students, _ = hand_ins.of_class(tmp_path, tmp_path / "_u")
    options = classroom.MarkingOptions("cpu", 1.0)

    def marked(word: str, points: float) -> dict[str, list[float]]:
        worth[0] = 2.0
        classroom.mark(students, None, options, tmp_path / "_marks", lambda step: None)
        worth[0] = points
        regrade(students, word, None, options, tmp_path / "_marks", lambda step: None)
        worth[0] = 9.0  # what is unchanged is not marked again
        marks, _ = classroom.mark(students, None, options, tmp_path / "_marks", lambda step: None)
        return {each.student: [part.points for part in each.parts] for each in marks}

    return marked


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("ann", {"ann": [1, 1, 1], "bob: jr": [2, 2, 2]}),
        ("ann:small", {"ann": [1, 2, 2], "bob: jr": [2, 2, 2]}),
        ("ann:odd", {"ann": [2, 1, 1], "bob: jr": [2, 2, 2]}),
        ("ann:T", {"ann": [1, 1, 2], "bob: jr": [2, 2, 2]}),
        ("bob: jr:T: odd", {"ann": [2, 2, 2], "bob: jr": [2, 1, 2]}),
    ],
)
def test_one_test_of_one_student(word: str, expected: dict[str, list[float]], again: Regrade) -> None:
    """It counts even if it is less."""
    assert again(word, 1.0) == expected


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("eve", "--regrade eve: there is no hand-in of this student"),
        ("ann:even", "ann has no such group or part; there are T: small, T: odd, C: odd"),
    ],
)
def test_a_mistake_changes_nothing(word: str, says: str, again: Regrade) -> None:
    with pytest.raises(UsageError, match=says):
        again(word, 1.0)


def test_a_group_needs_marks_to_be_replaced(tmp_path: Path) -> None:
    start(LAB, tmp_path / "ann")
    students, _ = hand_ins.of_class(tmp_path, tmp_path / "_u")
    options = classroom.MarkingOptions("cpu", 1.0)
    with pytest.raises(UsageError, match="ann is not marked yet"):
        regrade(students, "ann:small", None, options, tmp_path / "_marks", lambda step: None)
