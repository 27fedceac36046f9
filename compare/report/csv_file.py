"""Comparisons as CSV: one line for each implementation on each case, units in the names, nothing rounded."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from compare.spec import CaseComparison, Comparison, Estimate, Row
from compare.timing import figures


def dumps(comparisons: Sequence[Comparison]) -> str:
    """A header and the lines; what was not measured is left empty."""
    lines = [
        dict(_cells(comparison, case, row))
        for comparison in comparisons
        for case in comparison.cases
        for row in case.rows
    ]
    return table(lines, list(dict.fromkeys(name for line in lines for name in line)))


def table(lines: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Lines under a header.  A text that a spreadsheet would run as a formula begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in line.items()} for line in lines)
    return out.getvalue()


def _harmless(value: object) -> object:
    return (
        f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value
    )


def _cells(comparison: Comparison, case: CaseComparison, row: Row) -> Iterator[tuple[str, object]]:
    agreement, timing = row.agreement, row.timing
    yield from (
        ("op", comparison.op),
        ("case", case.case),
        ("implementation", row.label),
        ("level", row.level),
        ("status", row.status),
        ("reason", row.reason),
        ("device", comparison.environment.device),
        ("created", comparison.created),
        ("replayed_from", row.replayed),
    )
    for name in ("max_abs", "max_rel", "ulp_p50", "ulp_p99", "ulp_max", "within", "error", "limit"):
        yield name, getattr(agreement, name) if agreement else ""
    for name in ("cold_us", "warm_us", "graph_us", "launch_us", "burst_us", "sustained_us"):
        yield from _estimate(name, getattr(timing, name) if timing else None)
    yield "first_call_ms", timing.first_call_ms if timing else ""
    yield "sm_mhz", timing.sm_mhz if timing else ""
    yield "rounds", timing.rounds if timing else ""
    yield "converged", timing.converged if timing else ""
    yield "gbs", figures.gbs(case, row)
    yield "share_of_copy", figures.share_of_copy(case, row)
    yield "tflops", figures.tflops(case, row)
    yield "share_of_product", figures.share_of_product(case, row)
    # A row may have several searches: their values in one order, apart by semicolons.
    yield "tuned", ";".join(tuning.kernel for tuning in row.tunings)
    yield "configuration", row.configuration or ";".join(tuning.found for tuning in row.tunings)
    yield "configurations", ";".join(str(len(tuning.space)) for tuning in row.tunings)
    yield "configurations_tried", ";".join(str(tuning.tried) for tuning in row.tunings)
    yield "search_space", ";".join(" | ".join(tuning.space) for tuning in row.tunings)
    yield "search_s", ";".join(str(tuning.search_s) for tuning in row.tunings)
    yield "searched", ";".join(tuning.searched for tuning in row.tunings)
    yield "search_kept", ";".join(str(tuning.kept) for tuning in row.tunings)
    yield "unmatched", row.unmatched
    default = figures.row_of(case, row.default) if row.default else None
    yield "default", row.default
    yield from _estimate("speedup_vs_default", figures.ratio(row, default) if default else None)
    model = figures.row_of(case, row.model) if row.model else None
    yield "model", row.model
    yield from _estimate("speedup_vs_model", figures.ratio(row, model) if model else None)
    baseline = figures.row_of(case, figures.baseline_of(case))
    yield "baseline", baseline.label if baseline else ""
    yield from _estimate("speedup", figures.ratio(row, baseline) if baseline else None)
    yield "least_difference", figures.detectable(row, baseline) if baseline and timing else ""
    size = comparison.code_sizes.get(row.label)
    for role in ("kernel", "launch", "own", "helpers", "shared", "binding", "module"):
        for unit in ("lines", "tokens"):
            yield f"{role}_{unit}", getattr(getattr(size, role), unit) if size else ""
    yield "own_and_helpers_lines", size.lines if size else ""
    yield "own_and_helpers_tokens", size.tokens if size else ""
    for name in ("concepts", "fallbacks"):
        yield name, ";".join(getattr(size, name)) if size else ""
    kernels = row.resources
    for name in (
        "kernel",
        "arch",
        "reader",
        "registers",
        "static_shared_bytes",
        "dynamic_shared_bytes",
        "spilled_bytes",
        "local_bytes",
        "occupancy",
        "limiter",
        "instruction",
    ):
        # A row may hold several kernels and architectures: their values in one order, apart by semicolons.
        yield name, ";".join("" if (v := getattr(k, name)) is None else str(v) for k in kernels)


def _estimate(name: str, value: Estimate | None) -> Iterator[tuple[str, object]]:
    yield name, value.median if value else ""
    yield f"{name}_low", value.low if value else ""
    yield f"{name}_high", value.high if value else ""
