"""A class of hostile hand-ins is marked by the real command: each costs itself only, and gains nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compare.labs.work import shown
from compare.registry import ROOT
from compare.sandbox import isolation
from tests.labs.hostile import WITNESSES, Hostile, build, every

pytestmark = pytest.mark.skipif(not isolation.found().holds, reason="nothing isolates hand-ins here")

SOME = (
    "says_no_sanitizer",
    "bytecode_of_another_file",
    "header_by_a_macro",
    "words_of_another_message",
    "a_link_through_a_link",
    "minus_signs",
    "everyone_killed",
    "ph\u202egnp.exe",
)
TRACE = "hostile_was_here"
"""In the name of what they write."""
SLEEP = b"sleep\x00987"
"""Of processes that they leave behind."""


def graded(folder: Path, hand_ins: Sequence[Hostile], timeout_s: float) -> list[dict[str, Any]]:
    """All marks; the screen and the pages have been looked at."""
    build(folder, hand_ins)
    out = folder / "marks.json"
    words = [folder / "class", "--rubric", folder / "lab.toml", "--device", "cpu", "--jobs", 2]
    words += ["--timeout", timeout_s, "--json", out, "--csv", folder / "a.csv", "--html", folder / "a.html"]
    done = subprocess.run(
        [sys.executable, "-m", "compare", "grade", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder / "temporary")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (4, 5), done.stderr  # one raised, or took too long
    for text in (done.stdout, done.stderr, (folder / "a.csv").read_text(), (folder / "a.html").read_text()):
        assert "Traceback" not in text
        assert "error of the tool" not in text
        assert all(character.isprintable() or character in "\n\t" for character in text)
    marks: list[dict[str, Any]] = json.loads(out.read_text())
    return marks


def check(marks: Sequence[dict[str, Any]], hand_ins: Sequence[Hostile]) -> None:
    """Each got what it deserves, and the machine is to blame for nothing."""
    parts = {each["student"]: each["parts"] for each in marks}
    points = {student: sum(part["points"] for part in all_) for student, all_ in parts.items()}
    expected = {shown(each.name): each.points for each in hand_ins} | WITNESSES
    assert {name: got for name, got in points.items() if got != expected[name]} == {}
    assert points.keys() == expected.keys()
    uncounted = ("machine", "inconclusive", "left out")
    assert [
        (name, part) for name, all_ in parts.items() for part in all_ if part["result"] in uncounted
    ] == []
    for each in hand_ins:
        reasons = [part["detail"] for part in parts[shown(each.name)] if part["result"] != "passed"]
        assert any(re.search(each.says, reason) for reason in ("", *reasons) if not each.says or reason), (
            each.name,
            reasons,
        )


def check_left_behind(folder: Path) -> None:
    """No file, folder or process is left."""
    home = Path.home()
    places = [Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path("/run"), home, home / ".config", ROOT]
    assert [file for place in places if place.is_dir() for file in place.glob(f"*{TRACE}*")] == []
    assert [*(folder / "temporary").glob("three-ways-*")] == []
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert [command for command in commands if SLEEP in command] == []


def test_there_are_a_hundred_and_more() -> None:
    hand_ins = every()
    assert len({shown(each.name) for each in hand_ins}) == len(hand_ins) >= 190
    assert {each.kind for each in hand_ins} == {"A", "B", "C"}
    assert set(SOME) < {each.name for each in hand_ins}


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_few_hostile_hand_ins_cost_themselves_only(tmp_path: Path) -> None:
    hand_ins = [each for each in every() if each.name in SOME]
    (tmp_path / "temporary").mkdir()
    check(graded(tmp_path, hand_ins, 60.0), hand_ins)
    check_left_behind(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
def test_all_hostile_hand_ins_cost_themselves_only(tmp_path: Path) -> None:
    hand_ins = every()
    (tmp_path / "temporary").mkdir()
    check(graded(tmp_path, hand_ins, 30.0), hand_ins)
    check_left_behind(tmp_path)
