"""What changed between two recorded runs, as a screen, Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from compare.history.diff import WORSE, Change, Diff, Outcome
from compare.records.encoding import encode
from compare.report import csv_file, markdown
from compare.report.layout import page
from compare.report.tables import NOTHING, Block, Table, median, table, times

_UNCHANGED: tuple[Outcome, ...] = ("same", "untimed")
_SAME_MACHINE = "Both ran on the same device, driver and versions, at the same clocks."
_NOTHING_IN_BOTH = "Nothing was compared: none of these rows is in both files."
_LEGEND = (
    "speedup: before / now, with its 95% interval, or n where the samples are too few for one. same: the "
    "samples' interval alone lies within the difference that equal code shows (least in --csv). ambiguous: "
    "more samples would decide. broken: no longer correct. lost: no longer timed. *: its source has changed."
)


def render(diff: Diff, width: int, *, every: bool = False) -> str:
    """The screen as plain text; with ``every`` also rows that are the same or untimed."""
    return page(_blocks(diff, every=every), width)


def as_markdown(diff: Diff) -> str:
    return markdown.document(["## What changed", *_blocks(diff, every=True)])


def _blocks(diff: Diff, *, every: bool) -> list[Block]:
    """What differs of the machines, the rows that changed, then the counts."""
    shown = tables(diff, every=every)
    met = [outcome for outcome in get_args(Outcome) if diff.counts.get(outcome)]
    counts = [f"{diff.counts[outcome]} {outcome}" for outcome in met]
    hidden = not every and any(outcome in met for outcome in _UNCHANGED)
    rows = f"{len(diff.changes)} rows: {', '.join(counts)}.{' --all shows each.' if hidden else ''}"
    return [_machines(diff), *shown, rows, *([_LEGEND] if shown else [])]


def as_csv(diff: Diff) -> str:
    columns = [name for name, _ in _cells(Change("", "", "", "same"))]
    return csv_file.table([dict(_cells(change)) for change in diff.changes], columns)


def as_json(diff: Diff) -> str:
    document = {"environment": list(diff.environment), "changes": list(map(encode, diff.changes))}
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def tables(diff: Diff, *, every: bool) -> list[Table]:
    """One table per op, its rows below a line for each case: those that changed, or ``every`` row."""
    shown: dict[str, dict[str, list[Change]]] = {}
    for change in diff.changes:
        if every or change.outcome not in _UNCHANGED:
            shown.setdefault(change.op, {}).setdefault(change.case, []).append(change)
    return [_table(op, by_case) for op, by_case in shown.items()]


def _table(op: str, by_case: dict[str, list[Change]]) -> Table:
    columns: dict[str, Callable[[Change], str]] = {
        "implementation": lambda each: f"- {each.label}{' *' if each.source_changed else ''}",
        "verdict": lambda each: each.outcome.upper() if each.outcome in WORSE else each.outcome,
        "speedup": _speedup,
        "before µs": lambda each: median(each.old_us),
        "now µs": lambda each: median(each.new_us),
    }
    if any(each.detail for changes in by_case.values() for each in changes):
        columns["why"] = lambda each: each.detail
    rows: list[tuple[str, ...]] = []
    for case, changes in by_case.items():
        rows.append((case, *("" for _ in list(columns)[1:])))
        rows += table("", changes, columns).rows
    return Table(op, tuple(columns), tuple(rows), ("verdict", "why"))


def _speedup(change: Change) -> str:
    if not (change.ratio and change.old_us and change.new_us):
        return NOTHING
    fewer = min(change.old_us.samples, change.new_us.samples, key=len)
    return times(replace(change.ratio, samples=fewer))


def _machines(diff: Diff) -> str:
    if not diff.in_both:
        start = f"{_NOTHING_IN_BOTH} These differ between their newest runs:"
    else:
        start = "These differ between the two runs, and may explain the rows:"
    if not diff.environment:
        return _SAME_MACHINE if diff.in_both else _NOTHING_IN_BOTH
    return "\n  ".join([start, *diff.environment])


def _cells(change: Change) -> csv_file.Cells:
    for name, value in csv_file.fields(
        change, "op", "case", "label", "outcome", "least", "source_changed", "detail"
    ):
        yield ("implementation" if name == "label" else name), value
    for name, estimate in (("speedup", change.ratio), ("old_us", change.old_us), ("new_us", change.new_us)):
        yield from csv_file.estimate(name, estimate)
