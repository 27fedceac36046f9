"""A student's own page of marks: groups, points, the first mismatch, a hint, the late rule, the answers."""

from __future__ import annotations

from collections.abc import Iterator

from compare.labs.lab import Lab
from compare.labs.marking import Marks, Part
from compare.report import markdown
from compare.report.labs import detail, escaped, finished, html, lab_title, lateness, plain, points_text
from compare.report.lines import WORDS
from compare.report.tables import Table

_FINE = ("passed", "marked", "to be read", "left out")


def page(marks: Marks, labs: list[Lab]) -> str:
    """One self-contained HTML file; what a student wrote is shown as it is and runs nothing."""
    lab = next((each for each in labs if each.name == marks.lab), None)
    title = lab_title([lab] if lab else [])
    shown = [part for part in marks.parts if part.visibility != "hidden"]
    parts = [f"# {plain(title) or 'No lab'}"]
    parts.append(f"**{plain(marks.student)}: {marks.points:g} of {marks.of:g} points**")
    parts += [plain(lateness(marks))] if marks.late else []
    parts.append(markdown.table(escaped(_table(shown))))
    hidden = [part for part in marks.parts if part.visibility == "hidden"]
    if hidden:
        points = sum(part.points for part in hidden if part.counted)
        parts.append(f"Tests that are not shown: {points:g} of {sum(part.of for part in hidden):g} points.")
    if lab:
        hints = list(dict.fromkeys(_hints(lab, shown)))
        parts += ["## Hints", *(f"- {plain(hint)}" for hint in hints)] if hints else []
        parts += _answers(lab, shown)
    return html(finished(parts), f"{title}: {marks.student}")


def _table(parts: list[Part]) -> Table:
    rows = tuple((part.name, points_text(part), WORDS[part.result], detail(part)) for part in parts)
    return Table("Marks", ("part", "points", "result", "detail"), rows, ("result", "detail"))


def _hints(lab: Lab, parts: list[Part]) -> Iterator[str]:
    """For each task that failed, the first hint that names its file."""
    for task in lab.task:
        mine = [part for part in parts if part.name.startswith(f"{task.title}: ")]
        if any(part.result not in _FINE for part in mine):
            yield from [hint for hint in lab.hint if hint.startswith(task.file)][:1]


def _answers(lab: Lab, parts: list[Part]) -> Iterator[str]:
    """Each question with the answer, its points and the comment."""
    of = {part.name: part for part in parts}
    for question in lab.question:
        part = of.get(f"answer {question.name}")
        if part:
            comment = f": {part.detail}" if part.detail else ""
            yield f"## Answer {plain(question.name)}"
            yield plain(question.text.strip())
            yield plain(part.answer) if part.answer else "*Not answered.*"
            yield plain(f"{WORDS[part.result]}, {points_text(part)} points{comment}")
