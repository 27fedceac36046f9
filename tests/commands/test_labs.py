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
from compare.commands.lab import _first_hint, _help
from compare.labs import classroom, running
from compare.labs import lab as labs
from compare.labs.marking import Marks, Part, PartResult
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
    assert "--similar needs copydetect. To install it: " in said


def test_interrupted_marks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(labs.find("01"), tmp_path / "alice")

    def correctness(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(classroom, "correctness", correctness)
    monkeypatch.setattr(running.signal, "signal", lambda *_: None)
    words = ["--device", "cpu", "--unsafe", "--csv", str(tmp_path / "marks.csv")]
    assert cli.main(["grade", str(tmp_path), *words]) == INCONCLUSIVE
    assert f"the marks so far are in {tmp_path / '_marks'}" in capsys.readouterr().err
    assert "alice" in (tmp_path / "marks.csv").read_text()


@pytest.mark.parametrize(
    ("lab", "title", "number"),
    [("01", "CUDA", 4), ("04", "CUDA", 4), ("04", "CUDA, long rows", 8), ("11", "Your choice", 1)],
)
def test_the_first_hint_is_about_what_fails(lab: str, title: str, number: int) -> None:
    assert _first_hint(labs.find(lab), title) == number


@pytest.mark.parametrize(
    ("name", "result", "hint", "follow"),
    [
        (
            "Triton: rows of any length",
            "wrong",
            "HINT  2 of 8, rows of any length: triton_onepass.py: tl.",
            "check",
        ),
        ("CUDA: rows of any length", "error", "HINT  5 of 8", "check"),
        (
            "CUDA, long rows: at most 64 registers",
            "wrong",
            "HINT  8 of 8, at most 64 registers: Task 4",
            "check",
        ),
        ("CUDA: rows of any length", "not started", "", "hint 04 5"),
        ("CUDA: rows of any length", "timeout", "", "hint 04 5"),
    ],
)
def test_the_hint_of_the_group_that_failed_is_shown(
    name: str, result: PartResult, hint: str, follow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _help(labs.find("04"), Part(name, 0, 1, result), Path("mine")).startswith(f"lab {follow}")
    printed = capsys.readouterr().out
    assert hint in printed
    assert printed.count("HINT") == bool(hint)


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


def test_the_next_command_can_be_typed_where_a_folder_has_spaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lab", "start", "01", str(tmp_path / "my lab")]) == 0
    assert f"python -m compare lab check '{tmp_path / 'my lab'}'\n" in capsys.readouterr().out


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
    assert "HINT  1 of 6, any length: torch_add.py: an operator of PyTorch" in checked.stdout
    assert checked.stdout.index("Triton: whole blocks: passed") < checked.stdout.index("10 of 11"), "at first"
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
