"""``lab``, ``predict`` and ``grade``: what they refuse, and a lab from start to marks."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compare import cli
from compare.command_line import status as statuses
from compare.command_line.status import INCONCLUSIVE
from compare.commands import grade
from compare.commands.lab import _first_hint
from compare.labs import classroom
from compare.labs import lab as labs
from compare.labs.marking import Marks, Part
from compare.labs.work import start
from compare.sandbox import isolation
from processes import command
from right_files import ALL

Complaint = Callable[..., str]


def test_grade_refuses_without_isolation(
    complaint: Complaint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "found", lambda: isolation.Isolation(refused=("seccomp: not here",)))
    said = complaint("grade", str(tmp_path))
    assert "no isolation (seccomp: not here). --unsafe marks them all the same" in said


def test_a_missing_library_is_told_before_anything_is_marked(
    complaint: Complaint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(labs.find("01"), tmp_path / "alice")
    monkeypatch.setitem(sys.modules, "copydetect", None)
    monkeypatch.setattr(classroom, "mark", lambda *_: pytest.fail("it was marked"))
    said = complaint("grade", str(tmp_path), "--similar", "--unsafe", "--device", "cpu")
    assert "--similar needs copydetect: pip install" in said


def test_interrupted_marks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(labs.find("01"), tmp_path / "alice")

    def mark(*_: object) -> None:
        (tmp_path / "_marks" / "alice.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(classroom, "mark", mark)
    monkeypatch.setattr(grade.signal, "signal", lambda *_: None)
    assert cli.main(["grade", str(tmp_path), "--device", "cpu", "--unsafe"]) == INCONCLUSIVE
    assert f"the marks so far are in {tmp_path / '_marks'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lab", "title", "number"),
    [("01", "CUDA", 4), ("04", "CUDA", 4), ("04", "CUDA, long rows", 8), ("11", "Your choice", 1)],
)
def test_the_first_hint_is_about_what_fails(lab: str, title: str, number: int) -> None:
    assert _first_hint(labs.find(lab), title) == number


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ((), 0),
        (("passed", "left out"), 0),
        (("passed", "wrong"), 1),
        (("not started",), 1),
        (("inconclusive", "passed"), 3),
        (("wrong", "error"), 4),
        (("error", "timeout"), 5),
        (("timeout", "machine"), 6),
    ],
)
def test_the_exit_status_is_of_the_weightiest_result(results: tuple[str, ...], status: int) -> None:
    parts = tuple(Part("x", 0, 1, result) for result in results)  # type: ignore[arg-type]
    assert statuses.of_marks([Marks("a", "01", "", False, "", "", parts)]) == status


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_lab_from_start_to_marks(tmp_path: Path) -> None:
    mine = tmp_path / "class" / "alice"
    started = command("lab", "start", "01", mine)
    assert started.returncode == 0, started.stderr
    assert "lab check" in started.stdout
    (tmp_path / "mine.toml").write_text('fastest = "triton"\nregisters = 30\n')
    predicted = command("predict", "vector_add", "--answers", tmp_path / "mine.toml", "--device", "cpu")
    assert predicted.returncode == 0, predicted.stderr
    assert "Predictions: " in predicted.stdout
    assert "recorded" in predicted.stdout  # without a GPU
    early = command("lab", "report", mine)
    assert early.returncode == 2
    assert "predict first: fill in fastest" in early.stderr

    shutil.copyfile(labs.SOLUTIONS / "01_programs_and_threads" / "answers.toml", mine / "answers.toml")
    for right in ALL[:2]:  # the solutions are the project's code
        (mine / right.file).write_text(right.text)
    wrong = (labs.FOLDER / "01_programs_and_threads" / "starter" / "torch_add.py").read_text()
    (mine / "torch_add.py").write_text(wrong.partition("    raise")[0] + "    return x - y\n")
    checked = command("lab", "check", mine, "--device", "cpu")
    assert checked.returncode == 1, checked.stderr
    assert "10 of 11 points" in checked.stdout
    assert "first at [" in checked.stdout
    assert "lab hint 01 1" in checked.stdout
    assert " us" not in checked.stdout  # no speed

    reported = command("lab", "report", mine, "--device", "cpu")
    assert reported.returncode == 0, reported.stderr
    page = (mine / "report.md").read_text()
    assert "triton.mine" in page
    assert "fp64 on N=4096,fp32**" in page  # of torch_add.py: the largest case that it is tested with
    assert "<table>" in (mine / "report.html").read_text()

    shutil.copytree(mine, mine.with_name("bob"))
    (mine.with_name("bob") / "torch_add.py").write_text("this is not Python")
    files = {name: tmp_path / name for name in ("marks.json", "marks.csv", "marks.xml", "class.html")}
    graded = command(
        *("grade", mine.parent, "--device", "cpu", "--jobs", "2", "--similar"),
        *("--json", files["marks.json"], "--csv", files["marks.csv"]),
        *("--junit", files["marks.xml"], "--html", files["class.html"]),
    )
    assert graded.returncode == 4, graded.stderr
    assert "alice,answer lanes,,3," in (mine.parent / "_marks" / "answers.csv").read_text()
    marks = {each["student"]: each for each in json.loads(files["marks.json"].read_text())}
    assert {name: each["parts"][0]["result"] for name, each in marks.items()} == {
        "alice": "wrong",
        "bob": "error",
    }
    assert all(file.is_file() for file in files.values())
    one = command("grade", mine, "--device", "cpu", "--keep", mine.parent / "_marks")
    assert one.returncode == 1
    assert "unchanged since" in one.stderr
