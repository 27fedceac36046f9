"""Labs for readers: marks, predictions and classes as tables, pages, and the files that graders import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any
from xml.etree import ElementTree

from jinja2 import Environment
from markdown_it import MarkdownIt

from compare.labs.lab import Lab
from compare.labs.marking import NOT_COUNTED, Marks, Part
from compare.labs.prediction import ScoredPrediction
from compare.labs.similarity import Pair
from compare.labs.work import Work
from compare.model.result import Comparison
from compare.report import csv_file, markdown
from compare.report.lines import WORDS
from compare.report.tables import NOTHING, Table

_STYLE = Path(__file__).with_name("html") / "style.css"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title><style>{{ style }}
h2 { margin: 2rem 0 .5rem; }
td:last-child { white-space: normal; }
</style></head>
<body><main>{{ body }}</main></body></html>
"""


# --------------------------------------------------------------------------- tables


def marks_table(marks: Marks) -> Table:
    rows = tuple((part.name, _points(part), WORDS[part.result], detail(part)) for part in marks.parts)
    title = f"{marks.student}: {marks.points:g} of {marks.of:g} points"
    return Table(title, ("part", "points", "result", "detail"), rows, ("result", "detail"))


def class_table(all_marks: Sequence[Marks], title: str) -> Table:
    """A line for each submission, the best first."""
    rows = (
        (marks.student, f"{marks.points:g}/{marks.of:g}", f"{marks.share:.0%}", _first_problem(marks))
        for marks in sorted(all_marks, key=lambda marks: (-marks.share, marks.student))
    )
    return Table(title, ("student", "points", "share", "first problem"), tuple(rows), ("first problem",))


def _points(part: Part) -> str:
    return f"{part.points:g}/{part.of:g}" if _counts(part) else NOTHING


def _counts(part: Part) -> bool:
    return part.result not in NOT_COUNTED


def detail(part: Part) -> str:
    """Why a part did not pass, with the first mismatch; empty if it did."""
    if part.result == "passed" and not part.detail:
        return ""
    found = part.mismatch
    if found is None:
        return part.detail
    where = f"first at {list(found.index)}: got {found.got:.6g}, expected {found.expected:.6g}"
    pattern = f"; {found.pattern}" if found.pattern else ""
    return f"{part.detail}; {where}; {found.count} of {found.of} elements{pattern}"


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


def flat(text: str) -> str:
    """Text on one line."""
    return " ".join(text.split())


def shown(value: str | float | None, form: str = "{:.4g}") -> str:
    """A prediction, a measurement or a score; numbers with four digits, and large ones whole."""
    if isinstance(value, str):
        return value
    return NOTHING if value is None else f"{value:.0f}" if value >= 1000 else form.format(value)


# --------------------------------------------------------------------------- pages


def student_page(
    work: Work, outcomes: Sequence[ScoredPrediction], runs: Sequence[tuple[str, Comparison]]
) -> str:
    """Markdown: predictions beside measurements, the student's rows among ours, the answers.

    Args:
        runs: for each task its title and a comparison.
    """
    parts = [f"# Lab {work.lab.number}: {work.lab.title}", f"By {work.name}."]
    if outcomes:
        made = outcomes_table(outcomes)
        parts += ["## Predictions", markdown.table(made), *made.legend]
        parts += [f"- {each.prediction.name}: {flat(each.prediction.question)}" for each in outcomes]
    for title, comparison in runs:
        parts += [f"## {title}", markdown.section(comparison).partition("\n\n")[2]]
    parts.append("## Answers")
    for question in work.lab.question:
        parts += [f"**{question.text.strip()}**", work.answers[question.name] or "*Not answered.*"]
    return markdown.document(parts)


def class_page(labs: Sequence[Lab], all_marks: Sequence[Marks], similar: Sequence[Pair] | None) -> str:
    """Markdown: every submission's points, how they are distributed, what fails, similar code."""
    title = ", ".join(f"Lab {lab.number}: {lab.title}" for lab in labs) or "No lab"
    tenths = [min(9, int(10 * marks.share)) for marks in all_marks]
    counts = ((f"{10 * tenth}-{10 * tenth + 10}%", tenths.count(tenth)) for tenth in reversed(range(10)))
    spread = tuple((share, str(count), "#" * count) for share, count in counts)
    results: dict[str, list[str]] = {}
    for part in (part for marks in all_marks for part in marks.parts):
        results.setdefault(part.name, []).append(part.result)
    met = [word for word in WORDS if any(word in found for found in results.values())]
    rows = ((name, *(str(found.count(one) or "") for one in met)) for name, found in results.items())
    tables = (
        class_table(all_marks, "Submissions"),
        Table("Distribution", ("share of the points", "students", ""), spread, ("",)),
        Table("By part", ("part", *(WORDS[result] for result in met)), tuple(rows)),
    )
    parts = [f"# {title}", f"{len(all_marks)} submissions.", *map(markdown.table, tables)]
    if similar is not None:
        pairs = tuple((p.file, p.first, p.second, f"{p.share:.0%}") for p in similar)
        alike = Table("Similar code", ("file", "student", "and", "share"), pairs, ("student", "and"))
        parts.append(markdown.table(alike) if pairs else "No two submissions have similar code.")
        parts.append("Similar code is a reason to look, and no proof.")
    for lab in labs:
        told = [f"- {flat(q.text)} ({q.points:g} points): {flat(q.rubric)}" for q in lab.question if q.rubric]
        parts += [f"## Rubric of lab {lab.number}'s written answers", *told] if told else []
    return markdown.document(parts)


def _first_problem(marks: Marks) -> str:
    part = next((part for part in marks.parts if part.result not in ("passed", "left out")), None)
    told = f"{part.name}: {WORDS[part.result]}: {detail(part)}" if part else ""
    return shorten(told, 160, placeholder=" ...")


def html(text: str, title: str) -> str:
    """A Markdown page as one self-contained HTML file."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    page = Environment(autoescape=False).from_string(_PAGE)
    safe = Environment(autoescape=True).from_string("{{ t }}").render(t=title)
    body = reader.render(text)  # whose tags are the reader's own: a student's are escaped
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    return page.render(title=safe, style=_STYLE.read_text(), body=body)


# --------------------------------------------------------------------------- files for graders


def csv(all_marks: Sequence[Marks]) -> str:
    """One line for each submission, one column for each part."""
    fixed = ("student", "lab", "points", "of", "share", "device", "created")
    lines = [
        {**{name: getattr(marks, name) for name in fixed}, "share": round(marks.share, 4)}
        | {part.name: part.points if _counts(part) else part.result for part in marks.parts}
        for marks in all_marks
    ]
    return csv_file.table(lines, list(dict.fromkeys([*fixed, *(name for line in lines for name in line)])))


def gradescope(marks: Marks) -> str:
    """Gradescope's ``results.json`` (its documentation: Autograder specifications, output format)."""
    tests: list[dict[str, Any]] = [
        {
            "name": part.name,
            "score": part.points if _counts(part) else 0,
            "max_score": part.of if _counts(part) else 0,
            "status": "passed" if part.result == "passed" or not _counts(part) else "failed",
            "output": _said(part),
            "visibility": "visible",
        }
        for part in marks.parts
    ]
    where = f"Marked on {marks.device}." if marks.device else "Nothing of it could be run."
    found = {"score": round(marks.points, 2), "output": where, "tests": tests}
    return json.dumps(found, indent=1) + "\n"


def junit(all_marks: Sequence[Marks]) -> str:
    """JUnit XML: a suite for each submission, a test case for each part."""
    suites = ElementTree.Element("testsuites")
    for marks in all_marks:
        kinds = [_JUNIT.get(part.result, "failure") for part in marks.parts]
        counts = {"tests": len(kinds), "failures": kinds.count("failure"), "errors": kinds.count("error")}
        attributes = {name: str(count) for name, count in counts.items()}
        attributes |= {
            "skipped": str(kinds.count("skipped")),
            "name": marks.student,
            "timestamp": marks.created,
        }
        suite = ElementTree.SubElement(suites, "testsuite", attributes)
        for part, kind in zip(marks.parts, kinds, strict=True):
            case = ElementTree.SubElement(suite, "testcase", classname=marks.lab, name=part.name)
            if kind:
                ElementTree.SubElement(case, kind, message=_said(part))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


_JUNIT = {
    "passed": "",
    **dict.fromkeys(("error", "timeout", "machine"), "error"),
    **dict.fromkeys(("inconclusive", "left out"), "skipped"),
}
"""What JUnit calls a result; the others are failures."""


def _said(part: Part) -> str:
    return f"{WORDS[part.result]}. {detail(part)}".strip()
