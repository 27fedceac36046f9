"""What changed between two recorded runs, as a screen, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

from compare.history.diff import WORSE, Change, Diff, Outcome
from compare.records.encoding import encode
from compare.report import markdown, terminal
from compare.report.tables import NOTHING, Table, percent, spread, times
from compare.spec import Estimate

LISTED = 40
"""So many rows are all shown; of more, those that changed."""

_ORDER: tuple[Outcome, ...] = (
    "broken",
    "lost",
    "slower",
    "ambiguous",
    "faster",
    "mended",
    "new",
    "same",
    "untimed",
)
_SAME_MACHINE = "Both ran on the same device, driver and versions, at the same clocks."
_NOTHING_IN_BOTH = "Nothing was compared: none of these rows is in both files."


def render(found: Diff, width: int) -> str:
    """The screen as plain text: the machines first, then the rows, then the sum."""
    prose = min(width, terminal.PROSE_WIDTH)
    blocks = ["\n".join(terminal.paragraph(line, prose, hanging="  ") for line in _machines(found))]
    blocks += [terminal.laid_out(table, width) for table in tables(found)]
    blocks += [terminal.paragraph(line, prose) for line in (_sum(found), _LEGEND)]
    return "\n\n".join(blocks)


def as_markdown(found: Diff) -> str:
    parts = ["## What changed", "\n".join(f"- {line}" for line in _machines(found))]
    parts += [markdown.table(table) for table in tables(found)]
    return "\n\n".join([*parts, _sum(found), _LEGEND]) + "\n"


def as_csv(found: Diff) -> str:
    lines = [dict(_cells(change)) for change in found.changes]
    out = io.StringIO()
    writer = csv.DictWriter(out, [name for name, _ in _cells(Change("", "", "", "same"))])
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def as_json(found: Diff) -> str:
    document = {"environment": list(found.environment), "changes": list(map(encode, found.changes))}
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def tables(found: Diff) -> list[Table]:
    """A table for each op and case; of many rows, one for each op with those that changed."""
    everything = len(found.changes) <= LISTED
    shown: dict[str, list[tuple[str, Change]]] = {}
    for change in found.changes:
        if everything:
            shown.setdefault(f"{change.op} on {change.case}", []).append((change.label, change))
        elif change.outcome not in ("same", "untimed"):
            shown.setdefault(change.op, []).append((f"{change.case} {change.label}", change))
    return [_table(title, rows) for title, rows in shown.items()]


def _table(title: str, rows: list[tuple[str, Change]]) -> Table:
    why = any(change.detail for _, change in rows)
    columns = ("verdict", "times as fast\nas before", "before\nµs", "now\nµs", "counts\nfrom", "why")
    return Table(
        title,
        ("implementation", *(columns if why else columns[:-1])),
        tuple((f"{name} *" if change.source_changed else name, *_line(change, why)) for name, change in rows),
        ("verdict", "why"),
    )


def _line(change: Change, why: bool) -> tuple[str, ...]:
    return (
        change.outcome.upper() if change.outcome in WORSE else change.outcome,
        times(change.ratio),
        spread(change.old_us),
        spread(change.new_us),
        NOTHING if change.least is None else percent(change.least),
        *([change.detail] if why else []),
    )


_LEGEND = (
    "same: the whole interval lies within what counts as a difference; ambiguous: more samples would decide "
    "it; broken: it agreed and does not any more; lost: it was timed and is not any more; *: its source has "
    "changed."
)


def _machines(found: Diff) -> list[str]:
    if not found.in_both:
        differ = ["These differ between their newest runs:"] if found.environment else []
        return [_NOTHING_IN_BOTH, *differ, *found.environment]
    if not found.environment:
        return [_SAME_MACHINE]
    return ["These differ between the two, and may be what the rows show:", *found.environment]


def _sum(found: Diff) -> str:
    counts = [f"{found.counts[outcome]} {outcome}" for outcome in _ORDER if found.counts.get(outcome)]
    return f"{len(found.changes)} rows: {', '.join(counts) or 'none'}."


def _cells(change: Change) -> Iterator[tuple[str, object]]:
    for name in ("op", "case", "label", "outcome", "least", "source_changed", "detail"):
        value = getattr(change, name)
        yield ("implementation" if name == "label" else name), "" if value is None else value
    figures: tuple[tuple[str, Estimate | None], ...] = (
        ("times_as_fast", change.ratio),
        ("old_us", change.old_us),
        ("new_us", change.new_us),
    )
    for name, estimate in figures:
        yield name, estimate.median if estimate else ""
        yield f"{name}_low", estimate.low if estimate else ""
        yield f"{name}_high", estimate.high if estimate else ""
