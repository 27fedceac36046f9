"""Comparisons as CSV: one line for each implementation on each case, units in the names, nothing rounded."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence

from compare.model.result import CaseComparison, Comparison, Estimate, KernelResources, Row
from compare.report import lines
from compare.report.lines import Line
from compare.timing import figures

Cells = Iterator[tuple[str, object]]


def dumps(comparisons: Sequence[Comparison]) -> str:
    """A header and the lines; what was not measured is left empty."""
    rows = [
        dict(_cells(comparison, case, line))
        for comparison in comparisons
        for case in comparison.cases
        for line in lines.every(case, comparison.code_sizes)
    ]
    return table(rows, list(dict.fromkeys(name for row in rows for name in row)))


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Lines under a header.  A text that a spreadsheet would run as a formula begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _harmless(value: object) -> object:
    risky = isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@"))
    return f"'{value}" if risky else value


def fields(of: object, *names: str) -> Cells:
    """These fields of a value; empty if the value is None."""
    for name in names:
        value = getattr(of, name) if of else None
        yield name, "" if value is None else value


def estimate(name: str, value: Estimate | None) -> Cells:
    """A median and its interval."""
    yield name, value.median if value else ""
    yield f"{name}_low", value.low if value else ""
    yield f"{name}_high", value.high if value else ""


def _cells(comparison: Comparison, case: CaseComparison, line: Line) -> Cells:
    row = line.row
    yield from (("op", comparison.op), ("case", case.case), ("implementation", row.label))
    yield from (("level", row.shown_level), *fields(row, "status", "reason"))
    yield from (("device", comparison.environment.device), ("created", comparison.created))
    yield "replayed_from", row.recorded or ""
    errors = ("max_abs", "max_rel", "ulp_p50", "ulp_p99", "ulp_max", "within", "error", "limit")
    yield from fields(row.agreement, *errors)
    times = ("cold_us", "warm_us", "graph_us", "hot_launch_us", "back_to_back_us", "after_idle_us")
    for name in (*times, "burst_us", "sustained_us"):
        yield from estimate(name, getattr(line.timing, name))
    yield from fields(row.timing, "first_call_ms", "sm_mhz", "rounds", "converged")
    yield from fields(line, "gbs", "share_of_copy", "tflops", "share_of_product")
    yield from _searches(row)
    for name in ("default", "model"):
        label = getattr(row.configuration, name)
        other = figures.row_of(case, label) if label else None
        yield name, label
        yield from estimate(f"speedup_vs_{name}", figures.ratio(row, other) if other else None)
    baseline = figures.row_of(case, figures.baseline_of(case))
    yield "baseline", baseline.label if baseline else ""
    yield from estimate("speedup", line.speedup)
    yield "least_difference", figures.detectable(row, baseline) if baseline and row.timing else ""
    yield from _sizes(line)
    yield from _kernels(row)


# A row may have several searches, kernels and architectures: their values in one order, apart by semicolons.


def _searches(row: Row) -> Cells:
    configuration, tunings = row.configuration, row.configuration.tunings
    yield "tuned", ";".join(tuning.kernel for tuning in tunings)
    yield "configuration", configuration.text or ";".join(tuning.found for tuning in tunings)
    yield "configurations", ";".join(str(len(tuning.space)) for tuning in tunings)
    yield "configurations_tried", ";".join(str(tuning.tried) for tuning in tunings)
    yield "search_space", ";".join(" | ".join(tuning.space) for tuning in tunings)
    yield "search_s", ";".join(str(tuning.search_s) for tuning in tunings)
    yield "searched", ";".join(tuning.searched for tuning in tunings)
    yield "search_kept", ";".join(str(tuning.kept) for tuning in tunings)
    yield "unmatched", configuration.unmatched


def _sizes(line: Line) -> Cells:
    for role in ("kernel", "launch", "helpers", "shared", "binding", "module"):
        for unit in ("lines", "tokens"):
            yield f"{role}_{unit}", getattr(getattr(line.size, role), unit) if line.size else ""
    yield from fields(line.size, "lines", "tokens")
    for name in ("concepts", "fallbacks"):
        yield name, ";".join(getattr(line.size, name)) if line.size else ""


def _kernels(row: Row) -> Cells:
    for field in dataclasses.fields(KernelResources):
        values = (getattr(kernel, field.name) for kernel in row.resources)
        yield field.name, ";".join("" if value is None else str(value) for value in values)
