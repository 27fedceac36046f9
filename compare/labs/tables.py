"""CSV files of an instructor: rosters, submission times, points."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.model.op import UsageError
from compare.records.reading import read_text


@dataclass(frozen=True)
class TableLine:
    where: str
    """``roster.csv, line 3``"""
    cells: Mapping[str, str]
    """By column, in lower case."""

    def first(self, *columns: str) -> str:
        """The first of these cells that is not empty."""
        return next((cell for name in columns if (cell := self.cells.get(name, "").strip())), "")


def delimiter(header: str) -> str:
    """A spreadsheet writes semicolons where a comma is the decimal point."""
    return ";" if ";" in header and "," not in header else ","


def read(file: Path, needed: Sequence[str] = (), example: str = "") -> list[TableLine]:
    """The lines of a CSV file below its header.

    Args:
        file: the file.
        needed: columns that it has to have.
        example: of a header, for the error.

    Raises:
        UsageError: it cannot be read, or has no such columns; with the line.
    """
    text = read_text(file)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter(text.partition("\n")[0]))
    lines: list[TableLine] = []
    try:
        columns = [(name or "").strip().lower() for name in reader.fieldnames or ()]
        missing = [name for name in needed if name not in columns]
        if missing:
            header = f"; the first line is {example}" if example else ""
            raise UsageError(f"{file}, line 1: no column {', '.join(missing)}{header}")
        reader.fieldnames = columns
        for row in reader:
            cells = {name: cell or "" for name, cell in row.items() if isinstance(name, str)}
            lines.append(TableLine(f"{file}, line {reader.line_num}", cells))
    except csv.Error as error:
        raise UsageError(f"{file}, line {reader.line_num}: {error}") from None
    return lines


def dumps(rows: Sequence[Mapping[str, str]], columns: Sequence[str], separator: str = ",") -> str:
    """Lines under a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
