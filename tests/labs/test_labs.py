"""The labs as they are handed out: each description is whole, and everything that it names exists."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from compare import cli, registry
from compare.command_line.status import SUCCESS
from compare.labs import lab as labs
from compare.labs import prediction
from compare.labs.lab import Lab
from compare.labs.marking import NOT_WRITTEN, correctness, speeds, total
from compare.labs.work import ANSWERS, read_folder, start
from compare.model.op import UsageError
from conftest import HAS_GPU
from loops import for_each

LABS = labs.every()
EVERY_RUN = ("01", "04")
"""Labs whose solutions `make test` marks; `make test-all` marks all."""
every_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
marked = pytest.mark.parametrize(
    "lab",
    [
        pytest.param(lab, id=lab.name, marks=() if lab.number in EVERY_RUN else pytest.mark.exhaustive)
        for lab in LABS
    ],
)


def test_each_has_its_number() -> None:
    assert LABS
    assert len({lab.number for lab in LABS}) == len(LABS)


@every_lab
def test_it_is_whole(lab: Lab) -> None:
    folder = lab.path.parent
    assert lab.hours <= 4
    assert set(lab.tiers) == set(labs.TIERS)
    assert 3 <= len(lab.prediction) <= 6
    assert len(lab.hint) >= 4
    about = [(part.hint, task.file) for task in lab.task for part in (*task.group, *task.limit)]
    others = {task.file for task in lab.task}
    assert all(number <= len(lab.hint) for number, _ in about)
    for number, file in about:
        assert not number or lab.hint[number - 1].partition(":")[0] not in others - {file}, "of another file"
    assert lab.question
    assert all(question.rubric for question in lab.question)
    assert set(labs.toml(folder / labs.RUBRIC)) == {question.name for question in lab.question}
    assert "rubric" not in lab.path.read_text(), "students have this file"
    assert 15 <= total(lab, speed=True) <= 30
    readme = (folder / "README.md").read_text()
    assert all(task.file in readme for task in lab.task)
    assert "\nYou need " in readme, "what has to be known before"
    assert f"<!-- generated: lab {lab.number} -->" in (folder / "instructor.md").read_text()
    names = {file.name for file in (labs.SOLUTIONS / lab.name).iterdir() if file.is_file()}
    assert names == {ANSWERS, *(task.file for task in lab.task)}
    assert len(set(lab.starters)) == len(lab.starters) == len(names) - 1, "a file of several tasks once"


@pytest.mark.thorough
def test_the_page_s_own_lab_is_one(tmp_path: Path) -> None:
    """As the page has it: read, started, and each file of it named."""
    page = (registry.ROOT / "docs" / "labs.md").read_text()
    description, starter = (
        re.findall(rf"(?s)```{language}\n(.*?)```", page)[0] for language in ("toml", "python")
    )
    folder = tmp_path / "12_layer_norm"
    (folder / "starter").mkdir(parents=True)
    for name, text in {
        "lab.toml": description,
        "README.md": "# Layer norm",
        "starter/triton_norm.py": starter,
    }.items():
        (folder / name).write_text(text)
    lab = labs.read(folder / "lab.toml")
    assert {file.name for file in start(lab, tmp_path / "mine")} == {
        *(ANSWERS, "README.md", "triton_norm.py")
    }
    marks = correctness(read_folder(tmp_path / "mine", lab.path), "cpu", 60.0, lambda step: None)
    assert {part.result for part in marks.parts} == {"not started"}


@every_lab
def test_what_it_names_exists(lab: Lab) -> None:
    for task in lab.task:
        known = {impl.label for impl in registry.implementations(task.op or lab.op)}
        assert task.reference in known
        assert task.label not in known
        starter = (lab.path.parent / "starter" / task.file).read_text()
        assert fnmatch.filter(re.findall(r'"(\w+\.\w+)"', starter), task.label)
        assert NOT_WRITTEN in starter
    for asked in lab.prediction:
        known = {impl.label for impl in registry.implementations(asked.op or lab.op)}
        choices = () if asked.measure == "instruction" else asked.choices
        assert {asked.label, asked.against, *choices} - {""} <= known | set(prediction.WAYS)
    parts = [f"{task.title}: {group.name}" for task in lab.task for group in task.group]
    assert len(set(parts)) == len(parts)


@every_lab
def test_the_model_answers_are_predictions_and_answers(lab: Lab) -> None:
    work = read_folder(labs.SOLUTIONS / lab.name)
    assert work.lab.name == lab.name
    assert not work.problem
    for asked in lab.prediction:
        prediction.read(asked, work.predictions[asked.name])
    for question in lab.question:
        assert len(work.answers[question.name].split()) >= question.words, question.name


@pytest.mark.thorough
@marked
@pytest.mark.long
def test_its_solution_gets_full_points(lab: Lab) -> None:
    work = read_folder(labs.SOLUTIONS / lab.name)
    device = "auto" if HAS_GPU else "cpu"
    marks = speeds(work, correctness(work, device, 120.0, print), device, 120.0, print)
    assert [p for p in marks.parts if p.result not in ("passed", "to be read", "left out")] == []
    assert marks.points == marks.of > 0
    if not HAS_GPU:
        assert {p.name.partition(": ")[2][:5] for p in marks.parts if p.result == "left out"} <= {"speed"}


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.timeout(900)
@every_lab
def test_its_solution_is_fast_enough_on_a_gpu(lab: Lab) -> None:
    test_its_solution_gets_full_points(lab)


@pytest.mark.exhaustive
@every_lab
def test_its_starters_are_marked_as_not_started(lab: Lab, tmp_path: Path) -> None:
    start(lab, tmp_path / "mine")
    marks = correctness(read_folder(tmp_path / "mine"), "cpu", 120.0, print)
    assert {part.result for part in marks.parts} == {"not started"}
    assert all(NOT_WRITTEN in part.detail or "first make" in part.detail for part in marks.parts)


def test_a_lab_is_found_by_number_or_name() -> None:
    assert {labs.find(word).name for word in ("01", "1", LABS[0].name)} == {LABS[0].name}
    with pytest.raises(UsageError, match="programs_and_threads"):
        labs.find("programs")


TWICE = "N=4096,fp32 stands twice in the groups of 'Triton' - at `$.task[1].group[0].cases`"
LIMIT = '[[task.limit]]\nfigure = "{}"\n{} = 9\npoints = 1\n[[prediction]]'


@for_each(
    "old, new, says",
    [
        ("hours = 2", 'hours = "two"', "Expected `float`, got `str` - at `$.hours`"),
        ('op = "vector_add"', 'op = "vector_ad"', "did you mean vector_add"),
        ('"N=4096,fp32"', '"M=4096,fp32"', "'M' is no dimension"),
        ("points = 2", "pints = 2", "missing required field `points` - at `$.task"),
        ("points = 2", "points = 2\npints = 3", "unknown pints"),
        ('label = "triton.mine"', 'label = "torch.mine"', "has a speed, which is not verified for PyTorch"),
        ("[tiers]", "[tiers", "is not TOML"),
        ("hours = 2", "hours = inf", "line 3: hours = inf: write a number above 0"),
        ("points = 2", "points = nan", "line 39: points = nan: write a number above 0"),
        ("points = 3", "points = -1", "line 110: points = -1: write a number above 0"),
        ("at_least = 0.9", "at_least = inf", "line 33: at_least = inf: write a number above 0"),
        (
            '"cuda_add.py"',
            '"../cuda_add.py"',
            "line 53: file '../cuda_add.py': write the name of a Python file",
        ),
        ('"cupy.scalar"', '"cupy.scalr"', "line 57: vector_add has no cupy.scalr"),
        ('"N=1024,fp32"', '"N=4096,fp32"', f"line 40: {TWICE}"),
        ('"N=1025,fp32"', '"N=99999999,fp32"', "line 46: N=99999999,fp32 is too large to be checked without"),
        ("[[prediction]]", LIMIT.format("registers", "at_most"), "'CUDA' limits resources, and has 11 cases"),
        ('measure = "binding"', 'measure = "smell"', "'smell' - at `$.prediction"),
        ("[[prediction]]", LIMIT.format("lines", "at_least"), "a limit of lines takes at_most, got at_least"),
    ],
)
def test_a_mistake_in_a_description_is_named(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "01_mine" / "lab.toml"
    path.parent.mkdir(exist_ok=True)
    text = LABS[0].path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(says)):
        labs.read(path)


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "list"]) == SUCCESS
    printed = capsys.readouterr().out
    assert all(lab.title in printed for lab in LABS)
