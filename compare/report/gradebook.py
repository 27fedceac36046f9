"""Marks for the gradebooks of Canvas and Moodle: CSV files that these import."""

from __future__ import annotations

from collections.abc import Sequence

from compare.labs.lab import Lab
from compare.labs.marking import Marks
from compare.labs.roster import Person
from compare.report import csv_file
from compare.report.labs import lab_title


def canvas(all_marks: Sequence[Marks], labs: Sequence[Lab], absent: Sequence[Person] = ()) -> str:
    """For Canvas: Grades, Import.  It finds a student by the SIS user id, the login or the name."""
    column = lab_title(labs)
    columns = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section", column)
    possible = {"Student": "    Points Possible", column: _possible(all_marks)}
    lines = [
        {"Student": marks.student, "SIS User ID": marks.id, "SIS Login ID": marks.email, column: points}
        for marks, points in _grades(all_marks)
    ]
    lines += [{"Student": each.name, "SIS User ID": each.id, "SIS Login ID": each.email} for each in absent]
    return csv_file.table([possible, *lines], columns)


def moodle(all_marks: Sequence[Marks], labs: Sequence[Lab], absent: Sequence[Person] = ()) -> str:
    """For Moodle: Grades, Import, CSV file.  Map the id or the email, the points and the feedback."""
    column = lab_title(labs)
    feedback = f"{column} (Feedback)"
    columns = ("ID number", "Email address", "Full name", column, feedback)
    lines = [
        {
            "ID number": marks.id,
            "Email address": marks.email,
            "Full name": marks.student,
            column: points,
            feedback: marks.late,
        }
        for marks, points in _grades(all_marks)
    ]
    lines += [{"ID number": each.id, "Email address": each.email, "Full name": each.name} for each in absent]
    return csv_file.table(lines, columns)


def _possible(all_marks: Sequence[Marks]) -> float:
    """The points that count in the class."""
    return max((marks.of for marks in all_marks), default=0.0)


def _grades(all_marks: Sequence[Marks]) -> list[tuple[Marks, float | str]]:
    """Each with points of the same total: what a machine left open for one student costs that one none."""
    possible = _possible(all_marks)
    # What could not be marked at all has an empty cell, and no 0.
    return [(marks, round(marks.share * possible, 2) if marks.of else "") for marks in all_marks]
