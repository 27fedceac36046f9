"""Points that an instructor gives: kept, added to, and merged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compare.labs import by_hand
from compare.labs import lab as labs
from compare.labs.marking import Marks, Part
from compare.model.op import UsageError
from compare.report import labs as pages
from loops import for_each

WRITTEN = Part("answer why", 0, 3, "to be read", answer="Bandwidth\n  binds <script>")
MARKS = Marks("alice", "01", "", False, "", "", (Part("T: small", 0, 2, "wrong"), WRITTEN))


def test_answers_are_listed_once_and_count_when_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    assert (MARKS.points, MARKS.of) == (0, 2)
    assert by_hand.extend(file, by_hand.read(file), [MARKS]) == 1
    assert file.read_text().split() == ["student,part,points,of,comment", "alice,answer", "why,,3,"]
    assert by_hand.merged(MARKS, by_hand.read(file)) == MARKS
    file.write_text(file.read_text().replace("why,,3,", "why,2.5,3,good"))
    mine = file.read_text()
    table = by_hand.read(file)
    marks = by_hand.merged(MARKS, table)
    assert (marks.points, marks.of, marks.parts[1].result, marks.parts[1].detail) == (
        2.5,
        5,
        "marked",
        "good",
    )
    assert by_hand.extend(file, table, [MARKS, Marks("bob", "01", "", False, "", "", (WRITTEN,))]) == 1
    assert file.read_text().startswith(mine)
    assert by_hand.extend(file, by_hand.read(file), [MARKS]) == 0


def test_any_part_can_be_overridden_and_spreadsheets_write_as_they_like(tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    file.write_bytes(
        "\ufeffstudent;part;points;of;comment\r\nalice;T: small;1,5;2;tail mask only\r\n".encode()
    )
    marks = by_hand.merged(MARKS, by_hand.read(file))
    assert (marks.parts[0].points, marks.parts[0].result) == (1.5, "marked")
    by_hand.extend(file, by_hand.read(file), [MARKS])
    assert by_hand.read(file).keys() == {("alice", "T: small"), ("alice", "answer why")}


@for_each(
    "text, says",
    [
        ("student,part\n", "line 1: no column points"),
        ("student,part,points\nalice,answer why,lots\n", "line 2: points 'lots': write a number"),
        ("student,part,points\nalice,answer why,inf\n", "line 2: points 'inf'"),
        ("student,part,points\nalice,answer why,-1\n", "line 2: points '-1'"),
        ("student,part,points\nalice,answer why,4\n", "line 2: 4 points; answer why has 3 at most"),
        ("student,part,points\na,x,1\na,x,2\n", "line 3: a has x twice"),
        ("student,part,points\nalice\n", None),
    ],
)
def test_a_mistake_names_the_line(text: str, says: str | None, tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    file.write_text(text)
    if says is None:
        assert by_hand.merged(MARKS, by_hand.read(file)) == MARKS
        return
    with pytest.raises(UsageError, match=re.escape(says)):
        by_hand.merged(MARKS, by_hand.read(file))


def test_the_page_has_answers_beside_the_rubric() -> None:
    lab = labs.find("01")
    part = Part("answer lanes", 0, 3, "to be read", answer="Line 1 | *x*\n  line 2 <script>")
    marks = Marks("alice", lab.name, "", False, "", "", (part,))
    page = pages.html(pages.class_page([lab], [marks], None), "Marks")
    row = next(line for line in page.split("<tr>") if "alice" in line and "line 2" in line)
    assert "Line 1 | *x*<br>\u00a0\u00a0line 2 &lt;script&gt;" in row
    rubric = next(question.rubric for question in lab.question if question.name == "lanes")
    assert rubric.split()[0] in row
