"""A comparison or a lab's marks as what the page shows; every figure is one that the reports show too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.history.recorded import merged
from compare.labs import prediction
from compare.labs.lab import Lab, Prediction
from compare.labs.marking import Marks
from compare.labs.running import Run
from compare.model.result import WRONG, CaseComparison, Comparison
from compare.records import archive
from compare.report import labs as lab_pages
from compare.report import lines, screen, summary
from compare.report.lines import WORDS, Line
from compare.report.tables import count, number, percent
from compare.timing import figures
from compare.tuning.matching import registered_as

_AT_LINE = re.compile(r"\bmine\.(?:py|cu):(\d+)")
_TEXT = 4000
"""Characters of a verdict."""


def answer(comparison: Comparison, labels: Sequence[str], predictions: Mapping[str, str]) -> dict[str, Any]:
    """What a run of a user's rows comes to.

    Args:
        comparison: of the rows ``labels``, and others beside them.
        labels: the user's.
        predictions: by the names of `asked`.
    """
    yours = frozenset(
        row.label for case in comparison.cases for row in case.rows if row.label.partition(":")[0] in labels
    )
    main = figures.main_case(comparison)
    verdicts = _verdicts(comparison, yours)
    found: dict[str, Any] = {
        "verdicts": verdicts,
        "wrong": any(each["status"] in (*WRONG, "failed") for each in verdicts),
        "interrupted": comparison.interrupted,
        "gpu": comparison.environment.device_type == "cuda",
    }
    if main is None:
        return found
    case, arch = lines.of_one_arch(comparison, main)
    every = lines.every(case, comparison.code_sizes)
    facts = [" · ".join(each) for each in summary.machine(comparison, [(case, arch)]) if each]
    notes = [*summary.about_registers(comparison, case, every), *summary.notes(case, every)]
    if not figures.timed_cases(comparison):
        notes.insert(0, summary.no_speed(comparison, main))
    return found | {
        "case": case.case,
        "ceiling": figures.share_of(case),
        "facts": facts,
        "notes": notes,
        "rows": [_row(line, line.label in yours) for line in every if not figures.is_trial(line.row)],
        "kernels": [each for line in every for each in _kernels(line)],
        "trials": [_trial(line) for line in every if line.row.configuration.parameters],
        "predictions": _scored(comparison, case, labels, predictions),
    }


def _verdicts(comparison: Comparison, yours: frozenset[str]) -> list[dict[str, Any]]:
    """Of each of the user's rows the verdict, in the words of the screen."""
    statuses = {each.label: each.status for each in figures.verdicts(comparison)}
    failed: dict[str, list[str]] = {}
    for case, rows in summary.failures(comparison):
        for row in rows:
            failed[row.label] = [line.strip() for line in screen.failure(case, [row])]
            failed[row.label] += [f"all of it: {row.reason}"] if "(--details)" in failed[row.label][0] else []
    main = figures.main_case(comparison)
    good = dict(text.split(": ", 1) for text in summary.yours(comparison, main, yours)) if main else {}
    not_run = list(summary.not_run(comparison, yours))
    found = []
    for label in sorted(yours, key=lambda label: (":" in label, label)):
        status = statuses.get(label, "unavailable")
        text = failed.get(label) or [good.get(label) or next((t for t in not_run if label in t), "not run")]
        joined = "\n".join(text)[:_TEXT]
        found.append(
            {
                "label": label,
                "status": status,
                "word": WORDS[status],
                "text": joined,
                "lines": sorted({int(number) for number in _AT_LINE.findall(joined)}),
            }
        )
    return found


def _row(line: Line, yours: bool) -> dict[str, Any]:
    return {
        "label": line.label,
        "yours": yours,
        "way": line.way,
        "word": WORDS[line.row.status],
        "status": line.row.status,
        **_figures(line),
        "share": percent(line.share),
        "part": line.share,
        "lines": count(line.lines),
    }


def _figures(line: Line) -> dict[str, Any]:
    speedup = line.speedup.median if line.speedup else None
    mark = "" if line.differs or line.reference else "~"
    spilled = [kernel.spilled_bytes for kernel in line.kernels if kernel.spilled_bytes is not None]
    return {
        "us": number(line.us) if line.us is not None else "-",
        "speedup": f"{mark}{speedup:.2f}x" if speedup is not None else "-",
        "registers": count(line.registers),
        "shared": count(line.shared_bytes),
        "spilled": count(max(spilled, default=None)),
        "occupancy": percent(line.occupancy),
    }


def _kernels(line: Line) -> list[dict[str, Any]]:
    """What each kernel of a row takes of the machine."""
    return [
        {
            "label": line.label,
            "kernel": figures.short_kernel(each.kernel),
            "arch": each.arch,
            "registers": count(each.registers),
            "static": count(each.static_shared_bytes),
            "dynamic": count(each.dynamic_shared_bytes),
            "spilled": count(each.spilled_bytes),
            "occupancy": percent(each.occupancy),
            "limiter": each.limiter,
            "grid": " x ".join(map(str, each.grid)) if each.grid else "-",
            "block": " x ".join(map(str, each.block)) if each.block else "-",
        }
        for each in line.kernels
    ]


def recorded_sweep(op: str, label: str, results: Path = archive.RESULTS) -> dict[str, Any]:
    """The trials of a label's parameters on record, and where they are from; empty without any."""
    swept = [run for run in archive.runs_of(op, results) if any(_tries(label, case) for case in run.cases)]
    for device in dict.fromkeys(run.environment.device for run in swept):
        comparison = merged([run for run in swept if run.environment.device == device])
        for case in (case for case in (comparison.cases if comparison else ()) if _tries(label, case)):
            rows = next(rows for rows in figures.trials(case) if registered_as(rows[0].label) == label)
            trials = [_trial(lines.line(case, row, {})) for row in rows]
            return {"origin": f"{case.case}, recorded on {rows[0].recorded}", "trials": trials}
    return {}


def _tries(label: str, case: CaseComparison) -> bool:
    return any(registered_as(row.label) == label and figures.is_trial(row) for row in case.rows)


def _trial(line: Line) -> dict[str, Any]:
    return {
        "values": dict(line.row.configuration.parameters),
        "word": WORDS[line.row.status],
        **_figures(line),
    }


# --------------------------------------------------------------------------- predictions


def asked(case: str, label: str, against: str) -> list[Prediction]:
    """What the page asks of a kernel before it is run."""
    return [
        Prediction("registers", "Registers per thread of your kernel?", "registers", case, label),
        Prediction("speedup", f"Its speedup vs {against}, e.g. 1.5?", "speedup", case, label, against),
        Prediction("lines", "Its lines of code, all that a reader needs?", "lines", case, label),
    ]


def _scored(
    comparison: Comparison, case: CaseComparison, labels: Sequence[str], predictions: Mapping[str, str]
) -> list[dict[str, str]]:
    """Predictions beside what was measured, scored as in labs."""
    if not predictions or not labels:
        return []
    found = []
    for each in asked(case.case, labels[0], figures.baseline_of(case)):
        try:
            predicted = prediction.read(each, predictions[each.name]) if predictions.get(each.name) else None
        except ValueError as error:
            found.append({"name": each.name, "measured": "-", "score": "-", "origin": str(error)})
            continue
        outcome = prediction.outcome(each, predicted, Run(comparison))
        found.append(
            {
                "name": each.name,
                "predicted": lab_pages.shown(predicted),
                "measured": lab_pages.shown(outcome.measured),
                "score": lab_pages.shown(outcome.score, "{:.2f}"),
                "origin": outcome.origin,
            }
        )
    return found


# --------------------------------------------------------------------------- a lab


def marks(lab: Lab, marked: Marks) -> dict[str, Any]:
    """A lab's marks, part by part, each with the number of the hint that is about it."""
    hints = {f"{task.title}: {each.name}": each.hint for task in lab.task for each in task.group}
    hints |= {f"{task.title}: {each.words}": each.hint for task in lab.task for each in task.limit}
    parts = [
        {
            "name": part.name,
            "points": lab_pages.points_text(part),
            "word": WORDS[part.result],
            "result": part.result,
            "detail": lab_pages.detail(part)[:_TEXT],
            "hint": hints.get(part.name, 0),
        }
        for part in marked.parts
    ]
    return {"lab": lab.number, "points": marked.points, "of": marked.of, "parts": parts}
