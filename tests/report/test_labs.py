"""What graders import, and the pages: valid, and with nothing of a student's that a reader would run."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

import gradescope
import made_up
from compare.labs import lab as labs
from compare.labs.classroom import Pair
from compare.labs.lab import Prediction
from compare.labs.marking import Marks, Part
from compare.labs.prediction import outcome
from compare.labs.running import Run
from compare.labs.work import read_folder
from compare.model.result import Mismatch
from compare.report import feedback
from compare.report import labs as pages
from compare.report.gradescope import results

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

EVIL = "<img src=x onerror=alert(1)>"
MARKS = Marks(
    "alice",
    "01_programs_and_threads",
    "AMD EPYC",
    False,
    "2026-11-24T03:00:00+00:00",
    "d",
    (
        Part("Triton: small", 2, 2, "passed"),
        Part("Triton: odd", 0, 1, "wrong", f"1 of 2 {EVIL}", Mismatch((0, 5), 1.5, 2.0, 3, 32, "tail mask?")),
        Part("CUDA: small", 0, 2, "error", "=cmd|'/c calc'"),
        Part("CUDA: speed", 0, 4, "left out", "speed needs a GPU"),
    ),
)


def test_gradescope_takes_the_results() -> None:
    found = json.loads(results(MARKS))
    jsonschema.validate(found, gradescope.RESULTS)
    assert found["score"] == 2
    assert sum(test["max_score"] for test in found["tests"]) == 5
    assert [test["status"] for test in found["tests"]] == ["passed", "failed", "failed"]
    assert "Not counted: CUDA: speed: not on this machine. speed needs a GPU" in found["output"]
    assert "first at [0, 5]: got 1.5, expected 2; 3 of 32 elements; tail mask?" in found["tests"][1]["output"]


def test_gradescope_shows_no_group_before_its_time() -> None:
    parts = (
        Part("x", 1, 1, "passed", visibility="after_due_date", figure=2.0),
        Part("y", 0, 1, "left out", "secret", visibility="hidden"),
        Part("speed", 3, 4, "partial", figure=0.756, visibility="visible"),
        Part("registers", 1, 1, "passed", figure=30.0, lowest=True),
    )
    lab = replace(labs.find("01"), leaderboard=True)
    found = json.loads(results(replace(MARKS, parts=parts), [lab]))
    jsonschema.validate(found, gradescope.RESULTS)
    assert [test["visibility"] for test in found["tests"]] == ["after_due_date", "visible", "visible"]
    assert "secret" not in json.dumps(found)
    assert found["leaderboard"] == [
        {"name": "speed", "value": 0.76, "order": "desc"},
        {"name": "registers", "value": 30.0, "order": "asc"},
    ]
    assert "leaderboard" not in json.loads(results(replace(MARKS, parts=parts), [labs.find("01")]))
    board = pages.class_page([lab], [replace(MARKS, parts=parts)], None)
    assert "Leaderboard: registers" in board
    assert "Leaderboard: x" not in board
    assert "Leaderboard" not in pages.class_page([labs.find("01")], [replace(MARKS, parts=parts)], None)


def test_a_student_s_page_has_no_hidden_test() -> None:
    secret = Part("CUDA: secret", 1, 2, "wrong", "no such thing", visibility="hidden")
    page = feedback.page(replace(MARKS, parts=(*MARKS.parts, secret)), [labs.find("01")])
    assert "Tests that are not shown: 1 of 2 points." in page
    assert "no such thing" not in page
    assert "CUDA: secret" not in page
    assert "first at" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), ("memory", "memory"), (1.4213, "1.421"), (25.0, "25"), (65536.0, "65536")],
)
def test_numbers_are_shown_without_exponents(value: str | float | None, text: str) -> None:
    assert pages.shown(value) == text


def test_junit_counts() -> None:
    suite = ElementTree.fromstring(pages.as_junit([MARKS]))[0]
    counts = {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")}
    assert counts == {"name": "alice", "tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    assert [child.tag for case in suite for child in case] == ["failure", "error", "skipped"]


def test_csv_has_a_line_for_each_and_runs_nothing() -> None:
    evil = replace(MARKS, student="=1+1", parts=(Part("x", 0, 1, "machine"),))
    lines = pages.csv([MARKS, evil]).splitlines()
    assert lines[0].startswith(
        "student,id,email,lab,points,of,share,earned,late,device,created,Triton: small"
    )
    assert lines[1].startswith("alice,,,01_programs_and_threads,2.0,5,0.4,")
    assert lines[2].startswith("'=1+1,")
    assert lines[2].endswith("machine")


def test_the_class_page() -> None:
    lab = labs.find("01")
    other = replace(MARKS, student="bob", parts=MARKS.parts[:1])
    text = pages.class_page([lab], [MARKS, other], [Pair("a.py", "alice", "bob", 0.9)])
    assert text.index("bob") < text.index("alice")  # the best first
    assert "| 90-100%" in text
    assert "90%" in text
    assert all(question.name or question.rubric[:20] in text for question in lab.question)
    page = pages.html(text, "Marks")
    assert EVIL not in page
    assert "&lt;img" in page
    assert page.count('<div class="scroll"><table>') == page.count("</table></div>") == 6
    assert "http" not in page


@pytest.mark.parametrize("answer", [EVIL, "[click](javascript:alert(1))", "```\nopen fence", "# heading"])
def test_a_student_s_page_runs_nothing(answer: str) -> None:
    work = read_folder(labs.SOLUTIONS / "01_programs_and_threads")
    work = replace(work, answers={**work.answers, "lanes": answer})
    asked = Prediction(
        "fastest", "Which?", "fastest", made_up.CASE, choices=("torch.eager", "triton.onepass")
    )
    found = outcome(asked, "torch.eager", Run(made_up.comparison()))
    page = pages.html(
        pages.student_page(work, [found], [pages.TaskRun("Triton", made_up.comparison())]), "<Lab>"
    )
    assert "<img" not in page
    assert 'href="javascript' not in page
    assert "&lt;Lab&gt;" in page
    assert "triton.onepass" in page
    assert "0.00" in page
