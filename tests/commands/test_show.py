"""``show``: all that is on record of an op, without measuring anything."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import made_up
from compare import cli
from compare.command_line.status import SUCCESS
from compare.records import archive

OTHER = "M=1,N=1024,fp32"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Records of one device: softmax in two runs, the later one of another case, and vector_add."""
    first = made_up.comparison()
    second = made_up.comparison(made_up.case(OTHER), created="2026-11-23T00:00:00+00:00")
    for run in (first, second, replace(first, op="vector_add")):
        archive.record(run, tmp_path)
    return tmp_path / archive.device_slug(made_up.H100.device)


@pytest.fixture
def show(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What ``show`` prints of these records."""

    def shown(*words: str) -> str:
        assert cli.main(["show", *words, "--records", str(folder)]) == SUCCESS
        return capsys.readouterr().out

    return shown


def test_every_case_is_shown_with_resources_and_code_size(show: Callable[..., str]) -> None:
    text = show("softmax")
    first = text.splitlines()[0]
    assert first.startswith(f"From records of {made_up.H100.device}, 2026-11-21 to 2026-11-23;")
    for title in ("Speed on", "Triton, cupy and pybind", "Registers, shared memory", "Code size: lines"):
        assert f"\n{title}" in text
    assert [text.count(f"\nSpeed on {case}") for case in (made_up.CASE, OTHER)] == [1, 1]
    for label in made_up.MEDIANS_US:
        assert f"\n{label}" in text
    assert "vector_add" not in text
    assert f"\nNEXT  show softmax --case {OTHER}\n" in text


def test_many_cases_are_a_line_each(show: Callable[..., str], folder: Path) -> None:
    cases = [made_up.case(f"M={m},N=1024,fp32") for m in (2, 3, 4)]
    archive.record(made_up.comparison(*cases), folder.parent)
    text = show("softmax")
    assert text.count("\nSpeed on ") == 1
    table = text.partition("\nEvery case, cold")[2].partition("\n\n")[0]
    names = [line.split()[0] for line in table.splitlines() if "fp32" in line]
    # As the op lists them, the default one first; then those that it does not list.
    assert names[:2] == [made_up.CASE, OTHER]
    assert sorted(names[2:]) == [case.case for case in cases]


def test_case_and_only_leave_the_baseline(show: Callable[..., str]) -> None:
    text = show("softmax", "--case", "N=1024,M=1", "--only", "cupy.*")
    assert "Speed on M=4096" not in text
    table = text.partition("\nSpeed on ")[2].partition("\n\n")[0]
    labels = [line.split()[0] for line in table.splitlines() if "." in line.split()[0]]
    assert labels == ["torch.eager", "cupy.online", "cupy.onepass"]
    assert "triton." not in text


def test_all_shows_each_op(show: Callable[..., str]) -> None:
    text = show("all")
    assert [text.count(f"\n{op}  x[M,N]") for op in ("softmax", "vector_add")] == [1, 1]


def test_files_have_the_same_figures(show: Callable[..., str], tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("csv", "json", "markdown")}
    show("softmax", *(word for name, file in files.items() for word in (f"--{name}", str(file))))
    with files["csv"].open() as file:
        lines = list(csv.DictReader(file))
    assert {(line["case"], line["implementation"]) for line in lines} == {
        (case, label) for case in (made_up.CASE, OTHER) for label in made_up.MEDIANS_US
    }
    (run,) = json.loads(files["json"].read_text())["runs"]
    assert len(run["cases"]) == 2
    assert f"**Speed on {OTHER}" in files["markdown"].read_text()


@pytest.mark.thorough
def test_the_page_has_every_case(show: Callable[..., str], tmp_path: Path) -> None:
    show("softmax", "--html", str(tmp_path / "page.html"))
    assert {made_up.CASE, OTHER} <= {*re.findall(r"M=\d+,N=\d+,fp32", (tmp_path / "page.html").read_text())}


def test_an_op_that_is_gone_is_shown(folder: Path, show: Callable[..., str]) -> None:
    archive.record(made_up.comparison(op="of_a_user"), folder.parent)
    assert "\ncupy.onepass *" in show("of_a_user", "--case", made_up.CASE)


def test_what_to_type_next_fits_the_screen(show: Callable[..., str]) -> None:
    _, _, step = show("softmax").rpartition("\n\nNEXT  ")
    assert "--html softmax.html" in step
    assert max(map(len, f"NEXT  {step}".splitlines())) <= 80
