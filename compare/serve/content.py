"""What the page shows before a run: every op with its starting points, and the labs."""

from __future__ import annotations

import functools
import io
import re
import zipfile
from typing import Any

from markdown_it import MarkdownIt

from compare import registry
from compare.labs import lab as labs
from compare.labs.work import ANSWERS, form
from compare.model.op import UsageError
from compare.report.labs import lab_title
from compare.serve import answers, starters
from compare.serve.orders import LabOrder

_CASES = 8


@functools.cache
def catalogue() -> dict[str, Any]:
    return {
        "ops": [_op(name) for name in registry.op_names()],
        "labs": [{"number": lab.number, "title": lab.title, "hours": lab.hours} for lab in labs.every()],
    }


def _op(name: str) -> dict[str, Any]:
    op = registry.get_op(name)
    cases = dict.fromkeys([op.cases.default, *op.cases.smoke, *op.cases.sweep])
    return {
        "name": name,
        "signature": op.signature,
        "formula": op.formula,
        "cases": [str(case) for case in cases][:_CASES],
        "baseline": op.baseline,
        "starters": {
            way: [{"label": each.label, "level": each.level} for each in every]
            for way, every in starters.starters(name).items()
        },
        "predictions": [
            {"name": each.name, "question": each.question} for each in answers.asked("", "", op.baseline)
        ],
    }


@functools.lru_cache(maxsize=256)
def source(op: str, way: str, label: str) -> dict[str, Any]:
    """The text of a starting point, and the sweep of its parameters on record."""
    if op not in registry.op_names():
        raise UsageError(registry.unknown("op", op, registry.op_names()))
    return {"text": starters.text(op, way, label), "sweep": answers.recorded_sweep(op, label)}


def lab(word: str, hint: str) -> dict[str, Any]:
    """A lab's hand-out, files and tasks; or one of its hints."""
    found = labs.find(word)
    if hint:
        return {"hint": found.hint_of(hint)}
    hand_out = MarkdownIt("commonmark", {"html": False}).enable("table")
    text = hand_out.render((found.path.parent / "README.md").read_text())
    return {
        "number": found.number,
        "title": lab_title([found]),
        "op": found.op,
        "hand_out": re.sub(r' style="[^"]*"', "", text),  # of tables; the page's policy allows none
        "files": {file.name: file.read_text() for file in found.starters},
        "answers": form(found),
        "hints": len(found.hint),
        "parts": [
            {"name": f"{task.title}: {group.name}", "points": group.points}
            for task in found.task
            for group in task.group
        ],
    }


def check_lab(order: LabOrder) -> None:
    """A `UsageError` unless the lab is known and the files are its own."""
    found = labs.find(order.lab)
    known = {file.name for file in found.starters}
    if unknown := sorted(order.files.keys() - known):
        raise UsageError(f"lab {found.number} has no file {unknown[0]}; it has {', '.join(sorted(known))}")


def hand_in(order: LabOrder) -> bytes:
    """A zip of a folder with a lab's files."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**order.files, ANSWERS: order.answers}.items():
            archive.writestr(f"hand_in/{name}", text)
    return written.getvalue()
