"""``grade`` with a course: files, pages and screens of one record for each student."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import gradescope
from compare import cli
from compare.labs import anonymous, classroom, running
from compare.labs import lab as labs
from compare.labs.marking import Marks, Part
from compare.labs.work import Work, start
from compare.registry import ROOT

LAB = labs.find("01")
ROSTER = "name,id,email\nAnn Lee,1717,ann@x.edu\nBob Ray,1818,bray@x.edu\nCy Oh,1919,cy@x.edu\n"
TIMES = "id,time\n1717,2026-12-02T09:00:00-08:00\n1818,2026-12-01T09:00:00-08:00\n"
COURSE = """
roster = "roster.csv"
times = "times.csv"
due = 2026-12-01T23:59:00-08:00
[late]
points_per_day = 1
"""


@pytest.fixture
def grade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run ``grade`` on a class of three, where each has 3 of 4 points."""
    students = tmp_path / "class"
    for name in ("leeann_4711_1_lab", "bray", "mallory"):
        start(LAB, students / name)
    for name, text in {"course.toml": COURSE, "roster.csv": ROSTER, "times.csv": TIMES}.items():
        (students / name).write_text(text)

    def correctness(work: Work, device: str, timeout_s: float, say: Callable[[str], None]) -> Marks:
        say(f"{work.name}: testing {work.folder}")
        wrong = Part("CUDA: odd", 0, 1, "wrong", f"{work.folder}/cuda_add.py: <script> tail")
        written = Part("answer lanes", 0, 3, "to be read", answer="![x](http://x) <b>mine</b>")
        parts = (Part("Triton: small", 3, 3, "passed"), wrong, written)
        return Marks(work.name, LAB.name, "a CPU", False, "2026-12-03", work.digest, parts)

    monkeypatch.setattr(classroom, "correctness", correctness)
    monkeypatch.setattr(classroom, "speeds", lambda work, marks, *_: marks)
    monkeypatch.setattr(running.signal, "signal", lambda *_: None)
    return lambda *words: cli.main(["grade", str(students), "--device", "cpu", "--unsafe", *map(str, words)])


def lines_of(file: Path, key: str) -> dict[str, dict[str, str]]:
    lines = csv.DictReader(io.StringIO(file.read_text()))
    return {line[key]: dict(line) for line in lines}


def test_all_files_are_of_the_same_marks(
    grade: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = {name: tmp_path / f"of.{name}" for name in ("csv", "canvas", "moodle", "html")}
    words = [word for name, file in out.items() for word in (f"--{name}", file)]
    assert grade(*words, "--feedback", tmp_path / "pages") == 1
    screen = capsys.readouterr().out
    assert "No hand-in of: Cy Oh." in screen
    assert "Not on the roster: mallory." in screen
    assert "No hand-in of: Cy Oh." in out["html"].read_text()
    marks = lines_of(out["csv"], "student")
    ann = marks["Ann Lee"]
    assert (ann["id"], ann["email"], ann["earned"], ann["points"]) == ("1717", "ann@x.edu", "3", "2.0")
    assert "1 day late: 1 points a day; handed in 2026-12-02T09:00:00-08:00" in ann["late"]
    assert marks["Bob Ray"]["points"] == "3.0"
    title = "Lab 01: Programs and threads"
    canvas = lines_of(out["canvas"], "Student")
    assert [*canvas["Ann Lee"]] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", title]
    assert canvas["    Points Possible"][title] == "4"
    assert (canvas["Ann Lee"]["SIS User ID"], canvas["Ann Lee"][title]) == ("1717", "2.0")
    assert (canvas["Cy Oh"]["SIS Login ID"], canvas["Cy Oh"][title]) == ("cy@x.edu", "")
    moodle = lines_of(out["moodle"], "ID number")
    assert (moodle["1818"]["Email address"], moodle["1818"][title]) == ("bray@x.edu", "3.0")
    assert "1 day late" in moodle["1717"][f"{title} (Feedback)"]


def test_a_page_for_each_student(grade: Callable[..., int], tmp_path: Path) -> None:
    grade("--feedback", tmp_path / "pages")
    pages = {file.name: file.read_text() for file in (tmp_path / "pages").iterdir()}
    assert {*pages} == {"Ann%20Lee.html", "Bob%20Ray.html", "mallory.html"}
    page = pages["Ann%20Lee.html"]
    assert "Ann Lee: 2 of 4 points" in page
    assert "3 points before the late rule, 2 after it: 1 day late" in page
    assert "cuda_add.py" in page.partition("Hints")[2]
    assert "to be read" in page
    assert "&lt;b&gt;mine" in page
    for evil in ("<script>", "<b>", "<img", 'href="http', "Bob"):
        assert evil not in page


def test_what_an_instructor_gave_is_in_force_under_every_name(
    grade: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grade()
    answers = tmp_path / "class" / "_marks" / "answers.csv"
    text = answers.read_text()
    assert "Ann Lee,answer lanes" in text
    answers.write_text("student,part,points\n1717,answer lanes,2\nleeann,CUDA: odd,0.5\neve,CUDA: odd,1\n")
    grade("--csv", tmp_path / "marks.csv", "--regrade", "1717:small")
    ann = lines_of(tmp_path / "marks.csv", "student")["Ann Lee"]
    assert (ann["answer lanes"], ann["earned"], ann["points"]) == ("2.0", "5.0", "4.0")
    assert "answers.csv, line 4: there is no hand-in of 'eve'" in capsys.readouterr().out


def test_anonymous_pages_name_no_student_and_can_be_joined_back(
    grade: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [tmp_path / name for name in ("csv.csv", "json.json", "html.html", "canvas.csv")]
    words = [word for file in out for word in (f"--{file.stem}", file)]
    grade("--anonymous", *words, "--feedback", tmp_path / "pages", "--latest")
    screen = capsys.readouterr()
    texts = [screen.out, screen.err, *(file.read_text() for file in (*out, *(tmp_path / "pages").iterdir()))]
    texts += [file.name for file in (tmp_path / "pages").iterdir()]
    numbers = r"(?<![0-9a-f.])(?:1717|1818|1919)(?![0-9a-f])"  # not digits of a time or an alias
    own = re.compile(f"ann lee|leeann|ann@|times.csv|bob|bray|mallory|cy oh|{numbers}", re.IGNORECASE)
    assert [match[0] for text in texts for match in own.finditer(text)] == []
    keep = tmp_path / "class" / "_marks"
    assert {(keep / name).stat().st_mode & 0o777 for name in (anonymous.KEY, anonymous.TABLE)} == {0o600}
    table = lines_of(keep / anonymous.TABLE, "alias")
    marks = lines_of(out[0], "student")
    assert {table[alias]["student"]: line["points"] for alias, line in marks.items()} == {
        "Ann Lee": "2.0",
        "Bob Ray": "3.0",
        "mallory": "3.0",
    }
    assert "Cy Oh" in {line["student"] for line in table.values()}
    # Points given to an alias count beside names, too; and the same key gives the same aliases.
    alias = next(alias for alias, line in table.items() if line["student"] == "mallory")
    (keep / "answers.csv").write_text(f"student,part,points\n{alias},answer lanes,3\n")
    grade("--csv", out[0])
    assert lines_of(out[0], "student")["mallory"]["answer lanes"] == "3.0"
    grade("--csv", out[0], "--anonymous")
    assert lines_of(out[0], "student")[alias]["answer lanes"] == "3.0"


# --------------------------------------------------------------------------- Gradescope


def results(file: Path) -> Mapping[str, object]:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    content = json.loads(file.read_text())
    jsonschema.validate(content, gradescope.RESULTS)
    return dict(content)


def test_a_grader_that_cannot_begin_says_why(tmp_path: Path) -> None:
    start(LAB, tmp_path / "ann")
    (tmp_path / "lab.toml").write_text("title = 3")
    words = ["--rubric", str(tmp_path / "lab.toml"), "--gradescope", str(tmp_path / "results.json")]
    assert cli.main(["grade", str(tmp_path / "ann"), *words]) == 2
    content = results(tmp_path / "results.json")
    assert "The grader has not finished: " in str(content["output"])
    assert "lab.toml" in str(content["output"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (signal.SIGKILL, "it runs still, or was killed"),
        (signal.SIGTERM, "was stopped|interrupted before it was"),
    ],
)
def test_a_stopped_or_killed_grader_leaves_the_reason(
    sent: signal.Signals, says: str, tmp_path: Path
) -> None:
    start(LAB, tmp_path / "ann")
    file = tmp_path / "results.json"
    words = ["grade", str(tmp_path / "ann"), "--device", "cpu", "--unsafe", "--gradescope", str(file)]
    process = subprocess.Popen(
        [sys.executable, "-m", "compare", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert "testing" in process.stderr.readline()
    time.sleep(0.5)
    os.killpg(process.pid, sent) if sent == signal.SIGKILL else process.send_signal(sent)
    process.communicate(timeout=60)
    content = results(file)
    assert re.search(says, str(content["output"]))
    assert content["score"] == 0
