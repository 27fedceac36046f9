"""What changed between two recorded runs, as a screen, Markdown, CSV and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from compare.history.diff import WORSE, Change, Diff, Outcome
from compare.records.encoding import encode
from compare.report import csv_file, markdown, terminal
from compare.report.tables import NOTHING, Table, number, times

_ORDER: tuple[Outcome, ...] = (
    "broken",
    "lost",
    "slower",
    "ambiguous",
    "faster",
    "fixed",
    "new",
    "same",
    "untimed",
)
_UNCHANGED: tuple[Outcome, ...] = ("same", "untimed")
_SAME_MACHINE = "Both ran on the same device, driver and versions, at the same clocks."
_NOTHING_IN_BOTH = "Nothing was compared: none of these rows is in both files."
_LEGEND = (
    "speedup: before / now, with its 95% interval, or n where the samples are too few for one. same: the "
    "samples' interval alone lies within the difference that equal code shows (least in --csv). ambiguous: "
    "more samples would decide. broken: no longer correct. lost: no longer timed. *: its source has changed."
)


def render(found: Diff, width: int, *, every: bool = False) -> str:
    """The screen as plain text: what differs of the machines, the rows that changed, then the counts.

    Args:
        found: the changes.
        width: of the terminal.
        every: also rows that are the same or untimed.
    """
    prose = min(width, terminal.PROSE_WIDTH)
    blocks = ["\n".join(terminal.paragraph(line, prose, hanging="  ") for line in _machines(found))]
    shown = tables(found, every=every)
    blocks += [terminal.laid_out(table, width) for table in shown]
    blocks.append(terminal.paragraph(_sum(found, every=every), prose))
    return "\n\n".join([*blocks, *([terminal.paragraph(_LEGEND, prose)] if shown else [])])


def as_markdown(found: Diff) -> str:
    parts = ["## What changed", "\n".join(f"- {line}" for line in _machines(found))]
    parts += [markdown.table(table) for table in tables(found, every=True)]
    return markdown.document([*parts, _sum(found, every=True), _LEGEND])


def as_csv(found: Diff) -> str:
    columns = [name for name, _ in _cells(Change("", "", "", "same"))]
    return csv_file.table([dict(_cells(change)) for change in found.changes], columns)


def as_json(found: Diff) -> str:
    document = {"environment": list(found.environment), "changes": list(map(encode, found.changes))}
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def tables(found: Diff, *, every: bool) -> list[Table]:
    """One table per op, its rows below a line for each case: those that changed, or ``every`` row."""
    shown: dict[str, dict[str, list[Change]]] = {}
    for change in found.changes:
        if every or change.outcome not in _UNCHANGED:
            shown.setdefault(change.op, {}).setdefault(change.case, []).append(change)
    return [_table(op, by_case) for op, by_case in shown.items()]


def _table(op: str, by_case: dict[str, list[Change]]) -> Table:
    why = any(change.detail for changes in by_case.values() for change in changes)
    columns = ("verdict", "speedup", "before µs", "now µs", *(["why"] if why else []))
    rows: list[tuple[str, ...]] = []
    for case, changes in by_case.items():
        rows.append((case, *("" for _ in columns)))
        rows += [_line(change, why) for change in changes]
    return Table(op, ("implementation", *columns), tuple(rows), ("verdict", "why"))


def _line(change: Change, why: bool) -> tuple[str, ...]:
    return (
        f"- {change.label} *" if change.source_changed else f"- {change.label}",
        change.outcome.upper() if change.outcome in WORSE else change.outcome,
        _speedup(change),
        number(change.old_us.median if change.old_us else None, 4),
        number(change.new_us.median if change.new_us else None, 4),
        *([change.detail] if why else []),
    )


def _speedup(change: Change) -> str:
    if not (change.ratio and change.old_us and change.new_us):
        return NOTHING
    fewer = min(change.old_us.samples, change.new_us.samples, key=len)
    return times(replace(change.ratio, samples=fewer))


def _machines(found: Diff) -> list[str]:
    if not found.in_both:
        differ = ["These differ between their newest runs:"] if found.environment else []
        return [_NOTHING_IN_BOTH, *differ, *found.environment]
    if not found.environment:
        return [_SAME_MACHINE]
    return ["These differ between the two runs, and may explain the rows:", *found.environment]


def _sum(found: Diff, *, every: bool) -> str:
    counts = [f"{found.counts[outcome]} {outcome}" for outcome in _ORDER if found.counts.get(outcome)]
    hidden = not every and any(found.counts.get(outcome) for outcome in _UNCHANGED)
    return f"{len(found.changes)} rows: {', '.join(counts)}.{' --all shows each.' if hidden else ''}"


def _cells(change: Change) -> csv_file.Cells:
    for name, value in csv_file.fields(
        change, "op", "case", "label", "outcome", "least", "source_changed", "detail"
    ):
        yield ("implementation" if name == "label" else name), value
    for name, estimate in (("speedup", change.ratio), ("old_us", change.old_us), ("new_us", change.new_us)):
        yield from csv_file.estimate(name, estimate)
