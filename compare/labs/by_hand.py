"""Marks by hand: a table with points for what an instructor reads, or decides otherwise.

It is CSV, to be filled in by a spreadsheet.  What stands in it is never changed: lines are added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compare.labs import tables
from compare.labs.marking import Marks, Part
from compare.model.op import UsageError
from compare.records.encoding import write_whole
from compare.records.reading import read_text

NAME = "answers.csv"
"""Of a class's, beside its kept marks."""
_COLUMNS = ("student", "part", "points", "of", "comment")


@dataclass(frozen=True)
class Given:
    """What an instructor gives a part."""

    points: float | None
    """None: not read yet."""
    comment: str
    where: str
    """``answers.csv, line 3``"""


Table = dict[tuple[str, str], Given]
"""By student and part."""


def read(file: Path) -> Table:
    """The table of a file; empty if the file does not exist.

    Raises:
        UsageError: it cannot be read, or its points are no numbers.
    """
    table: Table = {}
    needed, example = _COLUMNS[:3], ",".join(_COLUMNS)
    for line in tables.read(file, needed, example) if file.exists() and file.stat().st_size else ():
        key = (line.cells["student"], line.cells["part"])
        if key in table:
            raise UsageError(f"{line.where}: {key[0]} has {key[1]} twice; take one of the lines out")
        points = _points(line.cells["points"], line.where)
        table[key] = Given(points, line.cells.get("comment", ""), line.where)
    return table


def under(table: Table, names: Mapping[str, str]) -> tuple[Table, list[str]]:
    """A table under the names that are shown now, and the lines that give points to other names.

    Args:
        table: as it was read.
        names: the shown name of each that stands for a student, as an id does.

    Raises:
        UsageError: two lines give points to the same part of one student.
    """
    shown: Table = {}
    unknown = []
    for (student, part), given in table.items():
        key = (names.get(student, student), part)
        if key in shown:
            raise UsageError(f"{given.where}: {key[0]} has {part} in {shown[key].where}, too")
        shown[key] = given
        if student not in names and given.points is not None:
            unknown.append(
                f"{given.where}: there is no hand-in of {student!r}: its points count for no student"
            )
    return shown, unknown


def _points(text: str, where: str) -> float | None:
    if not text.strip():
        return None
    try:
        points = float(text.strip().replace(",", "."))
    except ValueError:
        points = math.nan
    if not 0 <= points < math.inf:
        raise UsageError(f"{where}: points {text!r}: write a number of 0 or more, or nothing") from None
    return points


def merged(marks: Marks, table: Table) -> Marks:
    """``marks`` with what an instructor gave.

    Raises:
        UsageError: it is more than the part has.
    """

    def given(part: Part) -> Part:
        by_hand = table.get((marks.student, part.name))
        if by_hand is None or by_hand.points is None:
            return part
        if by_hand.points > part.of:
            raise UsageError(
                f"{by_hand.where}: {by_hand.points:g} points; {part.name} has {part.of:g} at most"
            )
        return replace(part, points=by_hand.points, result="marked", detail=by_hand.comment, mismatch=None)

    before = merged(replace(marks.before, student=marks.student), table) if marks.before else None
    return replace(marks, parts=tuple(map(given, marks.parts)), before=before)


def extend(file: Path, table: Table, all_marks: Sequence[Marks]) -> int:
    """Add a line for each answer that is to be read and has none; how many."""
    rows = [
        {"student": marks.student, "part": part.name, "of": f"{part.of:g}"}
        for marks in all_marks
        for part in marks.parts
        if part.result == "to be read" and (marks.student, part.name) not in table
    ]
    if rows or not file.exists():
        text = read_text(file) if file.exists() else ""
        lines = tables.dumps(rows, _COLUMNS, tables.delimiter(text.partition("\n")[0]))
        if text:
            lines = lines.partition("\r\n")[2]
        write_whole(file, text + ("\r\n" if text and not text.endswith("\n") else "") + lines)
    return len(rows)
