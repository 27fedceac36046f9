"""A class: what one submission does costs that one only, and a stopped run is resumed."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from compare.labs import classroom, hand_ins
from compare.labs import lab as labs
from compare.labs.marking import Marks, Part, PartResult
from compare.labs.work import Work, start
from compare.registry import ROOT

LAB = labs.find("01")


@pytest.fixture
def students(tmp_path: Path) -> Path:
    folder = tmp_path / "class"
    for name in ("alice", "bob", "carol"):
        start(LAB, folder / name)
    (folder / "_marks").mkdir()
    (folder / ".git").mkdir()
    return folder


def marks_of(work: Work, *parts: Part, gpu: bool = False) -> Marks:
    return Marks(work.name, work.lab.name, "a device", gpu, "2026-11-24", work.digest, parts)


Mark = Callable[..., list[Marks]]
PASSED = Part("x", 2, 2, "passed")


@pytest.fixture
def mark(students: Path, monkeypatch: pytest.MonkeyPatch) -> Mark:
    """Mark the class; what a student gets, or gets in turn, is in ``results``."""

    def marked(
        results: dict[str, Part | BaseException | list[Part]],
        said: list[str] | None = None,
        *,
        gpu: bool = False,
    ) -> list[Marks]:
        def correctness(work: Work, *_: object) -> Marks:
            (said if said is not None else []).append(f"ran {work.name}")
            result = results.get(work.name, PASSED)
            if isinstance(result, BaseException):
                raise result
            return marks_of(work, result.pop(0) if isinstance(result, list) else result, gpu=gpu)

        monkeypatch.setattr(classroom, "correctness", correctness)
        monkeypatch.setattr(classroom, "speeds", lambda work, marks, *_: marks)
        found = hand_ins.of_class(students, students / "_unpacked-1")[0]
        options = classroom.MarkingOptions("cpu", 1.0, jobs=2)
        return classroom.mark(found, None, options, students / "_marks", lambda what: None)[0]

    return marked


@pytest.mark.parametrize(
    "error", [RecursionError(), MemoryError(), OverflowError(34, "x"), OSError("disk on fire")]
)
def test_whatever_a_submission_raises_is_its_own_result(error: Exception, mark: Mark) -> None:
    found = mark({"bob": error})
    assert [(m.student, m.points) for m in found] == [("alice", 2), ("bob", 0), ("carol", 2)]
    assert found[1].parts[0].detail.startswith(type(error).__name__)
    assert str(error) in found[1].parts[0].detail


def test_a_stopped_run_is_resumed(mark: Mark, students: Path) -> None:
    first, second, third = mark({"carol": KeyboardInterrupt()})
    assert third.parts[0].result == "inconclusive"
    assert "interrupted before it was marked" in third.parts[0].detail
    kept = {"alice": first, "bob": second}
    assert {name for name, each in kept.items() if each.points} >= {"alice"}
    said: list[str] = []
    assert [each.points for each in mark({}, said)] == [2, 2, 2]
    assert "ran carol" in said
    assert "ran alice" not in said
    again: list[str] = []
    mark({}, again)
    assert again == []
    (students / "bob" / "cuda_add.py").write_text("else")
    mark({}, again)
    assert again == ["ran bob"]


@pytest.mark.parametrize("result", ["machine", "inconclusive", "timeout"])
def test_what_is_undecided_is_marked_again(result: PartResult, mark: Mark) -> None:
    mark({"alice": Part("x", 0, 2, result, "no compiler")})
    said: list[str] = []
    assert mark({}, said)[0].points == 2
    assert said == ["ran alice"]


def test_on_a_gpu_what_took_too_long_beside_others_is_tested_again_alone(mark: Mark) -> None:
    said: list[str] = []
    found = mark({"bob": [Part("x", 0, 2, "timeout", "20 s"), PASSED]}, said, gpu=True)
    assert [m.points for m in found] == [2, 2, 2]
    assert said[3:] == ["ran bob"]


def test_marks_never_fall(mark: Mark, students: Path) -> None:
    mark({})
    (students / "bob" / "cuda_add.py").write_text("worse")
    assert mark({"bob": Part("x", 0, 2, "wrong", "tail")})[1].points == 2


SPOILED: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "zeros": lambda file: file.symlink_to("/dev/zero"),
    "memory": lambda file: file.symlink_to("/proc/self/mem"),
    "classmate": lambda file: file.symlink_to(f"../alice/{file.name}"),
    "folder": Path.mkdir,
    "sparse": lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 1 << 40),
    "deep": lambda file: file.write_text("a = " + "[" * 99_999),
    "long": lambda file: file.write_text("predictions.registers = " + "9" * 5000),
}


@pytest.mark.parametrize("name", ["answers.toml", "cuda_add.py"])
@pytest.mark.parametrize("what", SPOILED)
def test_a_file_that_cannot_be_read_costs_no_other(what: str, name: str, mark: Mark, students: Path) -> None:
    (students / "bob" / name).unlink()
    SPOILED[what](students / "bob" / name)
    first, _, third = mark({})
    assert [first.points, third.points] == [2, 2]
    said: list[str] = []
    mark({}, said)
    assert said == []  # it has not changed
    if find_spec("copydetect"):
        assert classroom.similar(LAB, hand_ins.of_class(students, students / "_unpacked-1")[0]) == []


def test_a_name_that_is_no_text_costs_no_other(mark: Mark, students: Path) -> None:
    start(LAB, students / os.fsdecode(b"d\xffve"))
    (students / ("e" * 254)).mkdir()
    marks = mark({})
    assert [each.points for each in marks] == [2] * 5
    assert [each.student for each in marks][3] == "d?ve"
    "".join(each.student for each in marks).encode()


def test_all_calls_of_a_submission_together_have_a_limit(
    students: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the submission's own result; and of the next one, time begins anew."""
    monkeypatch.setattr(classroom, "limit_s", lambda timeout_s: 0.0)
    said: list[str] = []
    found = hand_ins.of_class(students, students / "_unpacked-1")[0][:2]
    options = classroom.MarkingOptions("cpu", 1.0)
    marks, interrupted = classroom.mark(found, None, options, None, said.append)
    assert not interrupted
    for each in marks:
        assert each.parts[0].result == "timeout"
        assert "together took longer than 0 s, the limit for one submission" in each.parts[0].detail


def test_names_that_differ_keep_marks_apart(mark: Mark, students: Path) -> None:
    for name in ("ana b", "ana_b", "ana%20b", "x" * 200, "x" * 201):
        start(LAB, students / name)
    found = mark({"ana b": Part("x", 0, 2, "wrong")})
    assert {m.student: m.points for m in found}["ana b"] == 0
    assert len([*(students / "_marks").iterdir()]) == len(found) == 8
    again: list[str] = []
    assert mark({}, again) == found
    assert again == []


def test_damaged_marks_are_made_anew(mark: Mark, students: Path) -> None:
    mark({})
    (students / "_marks" / "bob.json").write_text('{"student": 3}')
    said: list[str] = []
    mark({}, said)
    assert said == ["ran bob"]


def test_a_folder_that_names_no_lab_gets_that_of_the_class(mark: Mark, students: Path) -> None:
    (students / "bob" / "answers.toml").unlink()
    assert [m.lab for m in mark({})] == [LAB.name] * 3


def test_a_class_without_a_lab(mark: Mark, students: Path) -> None:
    for name in ("alice", "bob", "carol"):
        (students / name / "answers.toml").write_text("")
    found = mark({})
    assert [m.points for m in found] == [0, 0, 0]
    assert "names no lab" in found[0].parts[0].detail


def test_similar_code_is_found_and_starters_are_not(students: Path) -> None:
    pytest.importorskip("copydetect", reason="copydetect is not installed")
    found = hand_ins.of_class(students, students / "_unpacked-1")[0]
    assert classroom.similar(LAB, found) == []
    starter = (students / "alice" / "triton_add.py").read_text()
    own = "\n".join(
        f"    part{i} = tl.load(x_ptr + n * {i}, mask=n + {i} < N) * part{i - 1}" for i in range(30)
    )
    (students / "alice" / "triton_add.py").write_text(starter + own)
    renamed = own.replace("part", "piece").replace("x_ptr", "source")
    (students / "bob" / "triton_add.py").write_text(starter + renamed)
    (pair,) = classroom.similar(LAB, found)
    assert (pair.file, pair.first, pair.second) == ("triton_add.py", "alice", "bob")
    assert pair.share > 0.9


def test_the_projects_code_and_earlier_years_are_compared_too(tmp_path: Path) -> None:
    """Also CUDA text, which is a string to Python."""
    pytest.importorskip("copydetect", reason="copydetect is not installed")
    lab = labs.find("04")
    for name in ("class/alice", "class/bob", "2025/zoe"):
        start(lab, tmp_path / name)
    students = hand_ins.of_class(tmp_path / "class", tmp_path / "_unpacked-1")[0]
    assert classroom.similar(lab, students, [tmp_path / "2025"]) == []
    kernel = (ROOT / "cuda_impl" / "kernels" / "softmax" / "02_onepass.cuh").read_text()
    (tmp_path / "class/alice/cuda_onepass.py").write_text(f'SOURCE = r"""{kernel.replace("row", "line")}"""')
    own = "\n".join(f"y{i} = [x{i - 1} * {i} for x in range(n + {i}) if x % {i} > 2]" for i in range(40))
    for name in ("class/bob", "2025/zoe"):
        (tmp_path / name / "triton_onepass.py").write_text(own.replace("y", name[-1]))
    found = {(p.file, p.first, p.second) for p in classroom.similar(lab, students, [tmp_path / "2025"])}
    assert ("cuda_onepass.py", "alice", "cuda_impl/kernels/softmax/02_onepass.cuh") in found
    assert ("triton_onepass.py", "bob", "2025/zoe") in found
    assert all("alice" in pair or "zoe" in pair[2] for pair in found)


def test_what_all_have_tells_nothing(tmp_path: Path) -> None:
    pytest.importorskip("copydetect", reason="copydetect is not installed")
    for name in "abcdef":
        start(LAB, tmp_path / name)
        usual = "\n".join(
            f"y{i} = [x{i - 1} * {i} for x in range(n + {i}) if x % {i} > 2]" for i in range(40)
        )
        (tmp_path / name / "triton_add.py").write_text(usual)
    students = hand_ins.of_class(tmp_path, tmp_path / "_unpacked-1")[0]
    assert classroom.similar(LAB, students) == []
