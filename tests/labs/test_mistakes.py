"""Usual mistakes of a lab, put into a right file: each costs half of the points of its task's tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compare.labs import lab as labs
from compare.labs.marking import correctness
from compare.labs.work import read_folder, start
from right_files import ALL, Right, changed


def lost(right: Right, text: str, folder: Path) -> float:
    """The share of the points of its task's tests that a file loses."""
    start(labs.find(right.lab), folder)
    (folder / right.file).write_text(text)
    work = read_folder(folder)
    task = next(task for task in work.lab.task if task.file == right.file)
    work = replace(work, lab=replace(work.lab, task=(replace(task, limit=()),)))
    parts = correctness(work, "cpu", 120.0, print).parts
    print(parts)
    return 1 - sum(part.points for part in parts) / sum(part.of for part in parts)


CASES = [
    pytest.param(
        *(right, mistake),
        id=f"{right.lab}-{right.file}-{number}",
        marks=() if right.lab in ("01", "04") else pytest.mark.exhaustive,
    )
    for right in ALL
    for number, mistake in enumerate((("", ""), *right.mistakes))
]


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("right", "mistake"), CASES)
def test_a_mistake_costs_half_of_the_points(right: Right, mistake: tuple[str, str], tmp_path: Path) -> None:
    text = changed(right.text, mistake) if mistake[0] else right.text
    share = lost(right, text, tmp_path / "alice")
    assert share >= 0.5 if mistake[0] else share == 0


def test_every_lab_has_some() -> None:
    assert {right.lab for right in ALL} == {lab.number for lab in labs.every()}
    assert all(right.mistakes for right in ALL)
    for right in ALL:
        for mistake in right.mistakes:
            assert changed(right.text, mistake) != right.text
