"""Marks by hand: a table with points for what an instructor reads, or decides otherwise.

It is CSV, to be filled in by a spreadsheet.  What stands in it is never changed: lines are added.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
    text = read_text(file) if file.exists() else ""
    first = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=_delimiter(first))
    missing = [name for name in _COLUMNS[:3] if text and name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(
            f"{file}, line 1: no column {', '.join(missing)}; the first line is {','.join(_COLUMNS)}"
        )
    table: Table = {}
    try:
        for row in reader:
            where = f"{file}, line {reader.line_num}"
            key = (row["student"] or "", row["part"] or "")
            if key in table:
                raise UsageError(f"{where}: {key[0]} has {key[1]} twice; take one of the lines out")
            table[key] = Given(_points(row["points"] or "", where), row.get("comment") or "", where)
    except csv.Error as error:
        raise UsageError(f"{file}, line {reader.line_num}: {error}") from None
    return table


def _delimiter(line: str) -> str:
    """A spreadsheet writes semicolons where a comma is the decimal point."""
    return ";" if ";" in line and "," not in line else ","


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

    return replace(marks, parts=tuple(map(given, marks.parts)))


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
        out = io.StringIO()
        writer = csv.DictWriter(out, _COLUMNS, restval="", delimiter=_delimiter(text.partition("\n")[0]))
        if not text:
            writer.writeheader()
        writer.writerows(rows)
        write_whole(file, text + ("\r\n" if text and not text.endswith("\n") else "") + out.getvalue())
    return len(rows)
