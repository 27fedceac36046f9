"""What the commands of labs share: progress on stderr, screens, and the exit status of marks."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from compare.command_line import status
from compare.labs.marking import Marks
from compare.report import terminal
from compare.report.tables import Table
from compare.sandbox.words import printable

ERROR, TIMEOUT, MACHINE = 4, 5, 6

_STATUSES = {
    "machine": MACHINE,
    "timeout": TIMEOUT,
    "error": ERROR,
    "refused": status.FAILURE,
    "wrong": status.FAILURE,
    "not started": status.FAILURE,
    "inconclusive": status.INCONCLUSIVE,
}
"""By result, the weightiest first."""


def status_of(all_marks: Sequence[Marks]) -> int:
    """The exit status of marks: that of the weightiest result."""
    results = {part.result for marks in all_marks for part in marks.parts}
    return next((code for result, code in _STATUSES.items() if result in results), status.SUCCESS)


def say(what: str) -> None:
    """Print a step on a line of stderr."""
    sys.stderr.write(printable(f"{what}\n"))  # at once: tasks are tested side by side
    sys.stderr.flush()


def screen(table: Table, width: int, explained: Collection[str] | None = None) -> str:
    """A table whose last column is prose, which stands below the lines.

    Args:
        explained: the lines whose prose is shown; None: all.
    """
    narrow = Table(table.title, table.headers[:-1], tuple(row[:-1] for row in table.rows), table.text_columns)
    lines = [terminal.laid_out(narrow, width), ""]
    for row in table.rows:
        if row[-1] and (explained is None or row[0] in explained):
            lines.append(terminal.paragraph(f"{row[0]}: {row[-1]}", min(width, 80), hanging="  "))
    return "\n".join([*lines, *table.legend]).rstrip()
