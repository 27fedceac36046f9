"""What ``--tune`` has tried, as a table: each value with its time and what its kernels take."""

from __future__ import annotations

from compare.model.result import CaseComparison, Row
from compare.report import tables
from compare.report.tables import NOTHING, Table, lead, spread
from compare.timing import figures
from compare.tuning import sweep
from compare.tuning.matching import registered_as

_LEGEND = "default: what runs if nobody asks; level: it cannot be told apart from the fastest, cold."


def table(case: CaseComparison) -> Table | None:
    """A line for each value and kernel; None where nothing was tried, or nothing is known of it."""
    groups = figures.trials(case)
    found = figures.kernels(row for rows in groups for row in rows)
    if not found and not any(row.timing for rows in groups for row in rows if figures.is_trial(row)):
        return None
    archs = tables.archs_of(found)
    # Most have one kernel, which then needs no name.
    named = any(len(figures.kernels([row])) > 1 for rows in groups for row in rows)
    lines = []
    for rows in groups:
        for row in rows:
            kernels = [(name, by_arch) for _, name, by_arch in figures.kernels([row])] or [(NOTHING, {})]
            for i, (name, by_arch) in enumerate(kernels):
                what = _what(row, rows) if i == 0 else ("",) * 5
                kernel = (tables.kernel_name(name, by_arch, archs),) if named else ()
                takes = (tables.by_archs(by_arch, archs, read) for _, read in tables.KERNEL_COLUMNS)
                lines.append((*what, *kernel, *takes))
    how = f", {tables.how_known(found)}" if archs else ""
    return Table(
        f"With other values on {case.case}{how}",
        (
            "implementation",
            "runs with",
            "which is",
            "cold\nµs",
            "times as fast\nas its default",
            *(["kernel"] if named else []),
            *(header for header, _ in tables.KERNEL_COLUMNS),
        ),
        tuple(lines),
        ("runs with", "which is", "kernel", "limited by"),
        (_LEGEND, *tables.resources_legend(archs)),
    )


def _what(row: Row, rows: list[Row]) -> tuple[str, str, str, str, str]:
    default = next((other for other in rows if not figures.is_trial(other)), None)
    ratio = lead(row, default) if default else NOTHING
    return (
        registered_as(row.label),
        sweep.worded(row.configuration.parameters),
        ", ".join(_which(row, rows)) or NOTHING,
        spread(row.timing.cold_us if row.timing else None),
        "1" if row is default and row.timing else ratio,
    )


def _which(row: Row, rows: list[Row]) -> list[str]:
    """``default``, ``fastest`` or ``level`` with it; or that it does not count."""
    said = [] if figures.is_trial(row) else ["default"]
    if row.status != "ok":
        return [*said, tables.correct(row.status)]
    best = figures.fastest(rows)
    if best is None or not figures.timed_trials(rows) or not (row.timing and row.timing.cold_us):
        return said
    if row is best:
        return [*said, "fastest"]
    return said if figures.differs(best, row) else [*said, "level"]
