"""What changed between two recorded runs, as a screen, Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import get_args

from compare.history.diff import WORSE, Change, Diff, Outcome
from compare.records.encoding import encode
from compare.report import csv_file, markdown
from compare.report.layout import page
from compare.report.sparkline import GAP, sparkline
from compare.report.tables import NOTHING, Block, Table, median, table, times
from compare.timing.statistics import ENOUGH

_TREND = (
    f" trend: the median in every file, from the row's shortest to its longest; {GAP}: not correct or not "
    "timed. The verdict is that of the last file against the first."
)
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
    legend = _LEGEND + _TREND * bool(diff.files)
    return [*_files(diff), _machines(diff), *shown, rows, *([legend] if shown else [])]


def _files(diff: Diff) -> list[str]:
    """Of three files or more, which they are."""
    if not diff.files:
        return []
    order = "" if diff.in_order else " Their dates do not ascend: give the oldest first."
    return [f"{len(diff.files)} files: {', '.join(diff.files)}.{order}"]


def as_csv(diff: Diff) -> str:
    none = Change("", "", "", "same", history_us=(None,) * len(diff.files))
    columns = [name for name, _ in _cells(none)]
    return csv_file.table([dict(_cells(change)) for change in diff.changes], columns)


def as_json(diff: Diff) -> str:
    document = {"environment": list(diff.environment), "changes": list(map(encode, diff.changes))}
    if diff.files:
        document["files"] = list(diff.files)
    else:
        for change in document["changes"]:
            del change["history_us"]
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
    if trend := any(each.history_us for changes in by_case.values() for each in changes):
        columns = {"implementation": columns.pop("implementation"), "trend": _trend, **columns}
    if any(each.detail for changes in by_case.values() for each in changes):
        columns["why"] = lambda each: each.detail
    rows: list[tuple[str, ...]] = []
    for case, changes in by_case.items():
        rows.append((case, *("" for _ in list(columns)[1:])))
        rows += table("", changes, columns).rows
    named = {"before µs": "first µs", "now µs": "last µs"} if trend else {}
    headers = tuple(named.get(header, header) for header in columns)
    return Table(op, headers, tuple(rows), ("trend", "verdict", "why"))


def _trend(change: Change) -> str:
    return sparkline(change.history_us, change.least or 0.0)


def _speedup(change: Change) -> str:
    if not (change.ratio and change.old_us and change.new_us):
        return NOTHING
    fewest = min(len(change.old_us.samples), len(change.new_us.samples))
    return times(change.ratio, fewest if fewest < ENOUGH else 0)


def _machines(diff: Diff) -> str:
    if diff.files:
        start = "Each file differs from the one before it, which may explain the rows:"
    elif not diff.in_both:
        start = f"{_NOTHING_IN_BOTH} These differ between their newest runs:"
    else:
        start = "These differ between the two runs, and may explain the rows:"
    if not diff.environment:
        same = _SAME_MACHINE.replace("Both", "All") if diff.files else _SAME_MACHINE
        return same if diff.in_both else _NOTHING_IN_BOTH
    return "\n  ".join([start, *diff.environment])


def _cells(change: Change) -> csv_file.Cells:
    for name, value in csv_file.fields(
        change, "op", "case", "label", "outcome", "least", "source_changed", "detail"
    ):
        yield ("implementation" if name == "label" else name), value
    for name, estimate in (("speedup", change.ratio), ("old_us", change.old_us), ("new_us", change.new_us)):
        yield from csv_file.estimate(name, estimate)
    if change.history_us:
        yield "history_us", ";".join("" if us is None else str(us) for us in change.history_us)
