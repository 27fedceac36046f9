"""A student's folder: what ``start`` writes, and what is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.labs import lab as labs
from compare.labs.work import ANSWERS, read_folder, start
from compare.model.op import UsageError
from loops import for_each

LAB = labs.find("01")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    start(LAB, tmp_path / "mine")
    return tmp_path / "mine"


def test_start_writes_hand_out_starters_and_form_and_overwrites_nothing(mine: Path) -> None:
    names = {path.name for path in mine.iterdir()}
    assert {"README.md", ANSWERS, *(task.file for task in LAB.task)} <= names
    assert "instructor.md" not in names
    work = read_folder(mine)
    assert (work.lab, work.predictions, set(work.answers.values()), work.problem) == (LAB, {}, {""}, "")
    (mine / "triton_add.py").write_text("my work")
    with pytest.raises(UsageError, match="is not empty"):
        start(LAB, mine)
    assert (mine / "triton_add.py").read_text() == "my work"


def test_the_form_is_read_back(mine: Path) -> None:
    text = (mine / ANSWERS).read_text()
    text = text.replace('fastest = ""', 'fastest = "cupy.scalar"').replace('registers = ""', "registers = 32")
    text = text.replace('lanes = """\n', 'lanes = """\nOne <b>thread</b> each.\n')
    (mine / ANSWERS).write_bytes(
        text.replace("\n", "\r\n").encode("utf-8-sig")
    )  # as Windows' Notepad saves it
    work = read_folder(mine)
    assert work.predictions == {"fastest": "cupy.scalar", "registers": 32.0}
    assert work.answers["lanes"] == "One <b>thread</b> each."


@for_each("text, says", [("lab = 01\n", "is not TOML"), ("", "names no lab"), ('lab = "99"', "no lab '99'")])
def test_answers_that_name_no_lab_are_refused(text: str, says: str, mine: Path) -> None:
    (mine / ANSWERS).write_text(text)
    with pytest.raises(UsageError, match=says):
        read_folder(mine)


def test_a_folder_without_answers_is_no_labs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file; 'python -m compare lab start 01 DIR'"):
        read_folder(tmp_path)


def test_with_a_rubric_unreadable_answers_cost_only_the_answers(mine: Path) -> None:
    (mine / ANSWERS).write_bytes(b"\xff\xfe")
    work = read_folder(mine, rubric=LAB.path)
    assert work.lab == LAB
    assert "is not UTF-8" in work.problem
    (mine / ANSWERS).write_text("predictions = 3")
    assert "are tables" in read_folder(mine, rubric=LAB.path).problem


def test_the_digest_changes_with_what_counts(mine: Path) -> None:
    before = read_folder(mine).digest
    (mine / "notes.txt").write_text("nothing")
    assert read_folder(mine).digest == before
    for name in ("cuda_add.py", "tiles.py", "common/tile.cuh"):
        (mine / name).parent.mkdir(exist_ok=True)
        (mine / name).write_text("else")
        assert read_folder(mine).digest != before
        before = read_folder(mine).digest
