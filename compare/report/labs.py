"""Labs for readers: marks, predictions and classes as tables, pages, and the files that graders import."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

from compare.labs.classroom import Pair
from compare.labs.lab import Lab, Question
from compare.labs.marking import Marks, Part
from compare.labs.prediction import ScoredPrediction
from compare.labs.work import Work
from compare.model.result import Comparison
from compare.report import csv_file, glossary, junit, markdown, terminal
from compare.report.html import lanes, palette, roofline
from compare.report.html.lanes import Picture
from compare.report.junit import JunitCase, JunitSuite, Kind
from compare.report.lines import WORDS
from compare.report.tables import NOTHING, Table

if TYPE_CHECKING:  # it imports Triton, for which the device is not decided yet
    from compare.worker.messages import TracedAccess

_STYLE = Path(__file__).with_name("html") / "style.css"
_SHOWN = 10
"""Pairs with similar code on the screen."""


# --------------------------------------------------------------------------- tables


def marks_table(marks: Marks) -> Table:
    rows = tuple((part.name, points_text(part), WORDS[part.result], detail(part)) for part in marks.parts)
    title = f"{marks.student}: {marks.points:g} of {marks.of:g} points"
    return Table(title, ("part", "points", "result", "detail"), rows, ("result", "detail"))


def lateness(marks: Marks) -> str:
    """Points before and after the late rule, and why."""
    return f"{marks.earned:g} points before the late rule, {marks.points:g} after it: {marks.late}."


def class_table(all_marks: Sequence[Marks], title: str) -> Table:
    """A line for each submission, the best first."""
    rows = (
        (
            marks.student,
            *((f"{marks.points:g}/{marks.of:g}", f"{marks.share:.0%}") if marks.of else (NOTHING, NOTHING)),
            _first_problem(marks),
        )
        for marks in sorted(all_marks, key=lambda marks: (-marks.share, marks.student))
    )
    return Table(title, ("student", "points", "share", "first problem"), tuple(rows), ("first problem",))


def put_part(part: Part) -> None:
    """Print a part's result and its reason."""
    text = ": ".join(filter(None, (part.name, WORDS[part.result], detail(part))))
    terminal.put(lambda width: terminal.paragraph(text, min(width, 80), hanging="  "))
    sys.stdout.flush()


def put(table: Table, explained: Collection[str] | None = None, *, terms_of: Collection[str] = ()) -> None:
    """Print a table whose last column is prose: that stands below the lines.

    Args:
        explained: the lines whose prose is shown; None: all.
        terms_of: the lines whose prose has terms that are explained as well.
    """
    narrow = replace(table, headers=table.headers[:-1], rows=tuple(row[:-1] for row in table.rows))

    def render(width: int) -> str:
        reasons = [
            f"{name}: {prose}"
            for name, *_, prose in table.rows
            if prose and (explained is None or name in explained)
        ]
        terms = glossary.lines("\n".join(prose for name, *_, prose in table.rows if name in terms_of))
        blocks = [terminal.laid_out(narrow, width)]
        for texts in (reasons, terms):
            paragraphs = (terminal.paragraph(text, min(width, 80), hanging="  ") for text in texts)
            blocks.append("\n".join(paragraphs))
        return "\n\n".join(filter(None, blocks)).rstrip()

    terminal.put(render)


def put_marks(
    labs: Sequence[Lab], all_marks: Sequence[Marks], similar: Sequence[Pair] | None, notes: Sequence[str] = ()
) -> None:
    """Print the marks of a submission, or of a class and its similar code."""
    if len(all_marks) == 1:
        put(marks_table(all_marks[0]))
        notes = [*(lateness(marks) for marks in all_marks if marks.late), *notes]
    else:
        put(class_table(all_marks, lab_title(labs)))
    lines = [f"similar: {p.first} and {p.second}, {p.file}: {p.share:.0%}" for p in similar or ()]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"similar: {len(lines) - _SHOWN} more pairs; --html FILE lists all"]
    for line in (*notes, *lines):
        terminal.put(partial(terminal.paragraph, line, hanging="  "))


def lab_title(labs: Sequence[Lab]) -> str:
    """``Lab 04: One-pass softmax``"""
    return ", ".join(f"Lab {lab.number}: {lab.title}" for lab in labs)


def points_text(part: Part) -> str:
    """``2/3``; a dash where the part is not counted."""
    return f"{part.points:g}/{part.of:g}" if part.counted else NOTHING


def detail(part: Part) -> str:
    """Why a part did not pass, with the first mismatch; empty if it did."""
    mismatch = part.mismatch
    if mismatch is None:
        return part.detail
    return f"{part.detail}; {junit.first_mismatch(mismatch)}"


def outcomes_table(outcomes: Sequence[ScoredPrediction]) -> Table:
    """Predictions beside measurements."""
    scores = [each.score for each in outcomes if each.score is not None]
    title = f"Predictions: {sum(scores) / len(scores):.2f} of 1 on average" if scores else "Predictions"
    legend = "score: 1 within 10% of the measurement, or the right choice; each further factor of 2 costs 1."
    headers = ("prediction", "predicted", "measured", "score", "from")
    rows = (
        (o.prediction.name, shown(o.predicted), shown(o.measured), shown(o.score, "{:.2f}"), o.origin)
        for o in outcomes
    )
    return Table(title, headers, tuple(rows), ("predicted", "measured", "from"), (legend,))


def _flat(text: str) -> str:
    """Text on one line."""
    return " ".join(text.split())


def shown(value: str | float | None, form: str = "{:.4g}") -> str:
    """A prediction, a measurement or a score; numbers with four digits, and large ones whole."""
    if isinstance(value, str):
        return value
    return NOTHING if value is None else f"{value:.0f}" if value >= 1000 else form.format(value)


# --------------------------------------------------------------------------- pages


@dataclass(frozen=True)
class TaskRun:
    """What a report shows of a task."""

    title: str
    comparison: Comparison
    pictures: tuple[Picture, ...] = ()


def pictures_of(comparison: Comparison, label: str, accesses: Sequence[TracedAccess]) -> tuple[Picture, ...]:
    """The roofline of a task's case with the student's row, and what the student's kernel accesses first."""
    labels = [row.label for case in comparison.cases for row in case.rows if fnmatchcase(row.label, label)]
    roofs = [roofline.picture(case, (labels or [label])[0]) for case in comparison.cases]
    return (*filter(None, roofs), *map(lanes.picture, accesses))


def student_page(work: Work, outcomes: Sequence[ScoredPrediction], runs: Sequence[TaskRun]) -> str:
    """Markdown: predictions beside measurements, the student's rows among ours, the answers."""
    parts = [f"# Lab {work.lab.number}: {work.lab.title}", f"By {plain(work.name)}."]
    if outcomes:
        table = outcomes_table(outcomes)
        parts += ["## Predictions", markdown.table(table), *table.legend]
        parts += [f"- {each.prediction.name}: {_flat(each.prediction.question)}" for each in outcomes]
    for run in runs:
        parts += [f"## {run.title}", markdown.section(run.comparison).partition("\n\n")[2]]
        parts += [plain(picture.caption) for picture in run.pictures]
    parts.append("## Answers")
    for question in work.lab.question:
        parts += [f"**{question.text.strip()}**", work.answers[question.name] or "*Not answered.*"]
    return markdown.document(parts)


_BREAK = "\ue000"
"""A new line in a cell; no text has it, as it is not printable."""


def escaped(table: Table) -> Table:
    """A table whose cells are shown as they are: what a student wrote is no Markdown."""
    rows = tuple(tuple(plain(cell) for cell in row) for row in table.rows)
    return replace(table, rows=rows)


def plain(text: str) -> str:
    """Text without Markdown, with its lines and its spaces."""
    lines = (re.sub(r"([\\`*_\[\]()!#~&])", r"\\\1", line.rstrip()) for line in text.split("\n"))
    return _BREAK.join(lines).replace("  ", "\u00a0\u00a0")


def class_page(
    labs: Sequence[Lab], all_marks: Sequence[Marks], similar: Sequence[Pair] | None, notes: Sequence[str] = ()
) -> str:
    """Markdown: every submission's points, how they are distributed, what fails, similar code.

    Args:
        notes: of hand-ins that are missing, of no student, or replaced.
    """
    tenths = [min(9, int(10 * marks.share)) for marks in all_marks if marks.of]
    counts = ((f"{10 * tenth}-{10 * tenth + 10}%", tenths.count(tenth)) for tenth in reversed(range(10)))
    spread = tuple((share, str(count), "#" * count) for share, count in counts)
    results: dict[str, list[str]] = {}
    for part in (part for marks in all_marks for part in marks.parts):
        results.setdefault(part.name, []).append(part.result)
    met = [word for word in WORDS if any(word in each for each in results.values())]
    rows = ((name, *(str(each.count(word) or "") for word in met)) for name, each in results.items())
    tables = (
        class_table(all_marks, "Submissions"),
        Table("Distribution", ("share of the points", "students", ""), spread, ("",)),
        Table("By part", ("part", *(WORDS[result] for result in met)), tuple(rows)),
    )
    parts = [f"# {lab_title(labs) or 'No lab'}", f"Submissions: {len(all_marks)}.", *map(plain, notes)]
    parts += [markdown.table(escaped(tables[0])), *map(markdown.table, tables[1:])]
    boards = (board for lab in labs if lab.leaderboard for board in _boards(lab, all_marks))
    parts += [markdown.table(escaped(board)) for board in boards]
    if similar is not None:
        pairs = tuple((p.file, p.first, p.second, f"{p.share:.0%}") for p in similar)
        alike = Table("Similar code", ("file", "student", "and", "share"), pairs, ("student", "and"))
        parts.append(markdown.table(escaped(alike)) if pairs else "No two submissions have similar code.")
        parts.append("Similar code is a reason to look, and no proof.")
    for lab in labs:
        parts += [f"## Written answers of lab {lab.number}"] if lab.question else []
        for question in lab.question:
            parts += [f"**{_flat(question.text)}**", _answers(lab, question, all_marks)]
    return finished(parts)


def finished(parts: Sequence[str]) -> str:
    """A Markdown page of parts that may hold text of `plain`."""
    return markdown.document(parts).replace(_BREAK, "<br>")


def _boards(lab: Lab, all_marks: Sequence[Marks]) -> Iterator[Table]:
    """A leaderboard for each figure that was measured; of groups that all students may see."""
    of: dict[str, list[tuple[Part, str]]] = {}
    for marks in (marks for marks in all_marks if marks.lab == lab.name):
        for part in marks.parts:
            if part.figure is not None and part.visibility == "visible":
                of.setdefault(part.name, []).append((part, marks.student))
    for name, lines in of.items():
        best_first = sorted(lines, key=lambda line: (line[0].figure or 0.0) * (1 if line[0].lowest else -1))
        rows = tuple((student, f"{part.figure:.4g}") for part, student in best_first)
        yield Table(f"Leaderboard: {name}", ("student", "figure"), rows)


def _answers(lab: Lab, question: Question, all_marks: Sequence[Marks]) -> str:
    """Each student's answer to a question beside the rubric."""
    rows = tuple(
        (marks.student, points_text(part), part.answer or "Not answered.", _flat(question.rubric))
        for marks in all_marks
        for part in marks.parts
        if marks.lab == lab.name and part.name == f"answer {question.name}"
    )
    title = f"answer {question.name}, {question.points:g} points"
    headers = ("student", "points", "answer", "rubric")
    return markdown.table(escaped(Table(title, headers, rows, ("answer", "rubric"))))


def _first_problem(marks: Marks) -> str:
    if marks.late:
        return shorten(lateness(marks), 160, placeholder=" ...")
    fine = ("passed", "left out", "marked", "to be read")
    part = next((part for part in marks.parts if part.result not in fine), None)
    text = f"{part.name}: {WORDS[part.result]}: {detail(part)}" if part else ""
    return shorten(text, 160, placeholder=" ...")


def html(text: str, title: str, pictures: Sequence[Picture] = ()) -> str:
    """A Markdown page as one self-contained HTML file; each picture stands above its caption."""
    # Its tags are the reader's own: a student's are escaped.
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    body = body.replace("&lt;br&gt;", "<br>")
    for each in pictures:
        caption = f"<p>{escape(each.caption)}</p>"
        body = body.replace(caption, f"<figure>{each.svg}<figcaption>{caption}</figcaption></figure>", 1)
    style = palette.css() + _STYLE.read_text()
    style += "\nh2 { margin: 2rem 0 .5rem; }\ntd { white-space: normal; }"
    style += "\ntd:first-child { padding-left: 0; }\ntd[style*=right] { white-space: nowrap; }"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{style}
</style></head>
<body><main>{body}</main></body></html>
"""


# --------------------------------------------------------------------------- files for graders


def csv(all_marks: Sequence[Marks]) -> str:
    """One line for each submission, one column for each part."""
    fixed = ("student", "id", "email", "lab", "points", "of", "share", "earned", "late", "device", "created")
    lines = [
        {**{name: getattr(marks, name) for name in fixed}, "share": round(marks.share, 4)}
        | ({} if marks.of else {"points": "", "share": ""})  # not marked: no 0
        | {part.name: part.points if part.counted else part.result for part in marks.parts}
        for marks in all_marks
    ]
    return csv_file.table(lines, list(dict.fromkeys([*fixed, *(name for line in lines for name in line)])))


def as_junit(all_marks: Sequence[Marks]) -> str:
    """JUnit XML: a suite for each submission, a test case for each part."""
    suites = []
    for marks in all_marks:
        cases = [
            JunitCase(marks.lab, part.name, _JUNIT.get(part.result, "failure"), verdict(part))
            for part in marks.parts
        ]
        suites.append(JunitSuite(marks.student, marks.created, cases))
    return junit.document(suites)


_JUNIT: dict[str, Kind] = {
    "passed": "",
    "marked": "",
    "error": "error",
    "timeout": "error",
    "machine": "error",
    "inconclusive": "skipped",
    "left out": "skipped",
    "to be read": "skipped",
}
"""What JUnit calls a result; the others are failures."""


def verdict(part: Part) -> str:
    """A result and its reason."""
    return f"{WORDS[part.result]}. {detail(part)}".strip()
