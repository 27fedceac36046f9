"""What each case puts into the figures of the report, and the package that draws them."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from compare.model.result import CaseComparison, Comparison
from compare.report import plots
from compare.report.lines import Line
from compare.report.tables import number
from compare.timing import figures, statistics
from compare.tuning import sweep
from compare.tuning.matching import registered_as

Json = dict[str, Any]

_SAME = 0.15
"""Two ceilings that differ less are drawn as one."""
_LEAST_SIZES = 3
"""Fewer points make no curve."""


@functools.cache  # making it takes a second or two, and a run of several ops writes the page after each
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, from the optional package that carries them.

    Raises:
        UsageError: it cannot be imported.
    """
    package = plots.imported("vl_convert", "html", "--html draws with Vega-Lite from vl-convert-python")
    return str(package.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def of_case(case: CaseComparison, every: Sequence[Line]) -> Json:
    """What the figures show of a case: its timed ``rows``, fastest first, and its ``roofline`` or None.

    A row with code size has ``front``: whether it is on the Pareto front, so that no row is both shorter and
    faster. A row of ``--tune``, and its default, has ``tuned``, its ``values`` and their ``place``.

    Args:
        case: the case.
        every: its lines.
    """
    timed = sorted((line for line in every if line.us), key=lambda line: line.us or 0.0)
    named = {figures.baseline_of(case), *{line.way: line.label for line in reversed(timed)}.values()}
    rows = [
        _row(line) | {"named": line.label in named, "intensity": figures.intensity(case)} for line in timed
    ]
    groups = [group for group in figures.trials(case) if figures.timed_trials(group)]
    trials = {
        row.label: {
            "tuned": registered_as(row.label),
            "values": sweep.worded(row.configuration.parameters),
            "place": place,
        }
        for group in groups
        for place, row in enumerate(group)
    }
    rows = [row | trials.get(row["label"], {}) for row in rows]
    highest = 0.0
    sized = [row for row in rows if row["tokens"] and row["share"] is not None]
    for row in sorted(sized, key=lambda row: (row["tokens"], -row["share"])):
        # A library baseline is measured beside the three ways.
        row["front"] = row["way"] != "library" and row["share"] > highest
        highest = row["share"] if row["front"] else highest
    return {"rows": rows, "roofline": _roofline(case, rows) if rows else None}


def _row(line: Line) -> Json:
    cold = line.timing.cold_us
    assert cold is not None
    few = len(cold.samples) < statistics.ENOUGH  # for an interval
    return {
        "label": line.label,
        "way": line.way,
        "route": line.route,
        "us": cold.median,
        "low": cold.median if few else cold.low,
        "high": cold.median if few else cold.high,
        "shown": grouped(number(cold.median, 4)),
        "samples": cold.samples or (cold.median,),
        "share": line.share,
        "tflops": line.tflops,
        "gbs": line.gbs,
        "tokens": line.tokens if figures.stands(line.row) else None,
        "recorded": line.row.recorded is not None,
        "lines": line.lines,
    }


def grouped(figure: str) -> str:
    """``271,488``"""
    whole, dot, rest = figure.partition(".")
    return f"{int(whole):,}{dot}{rest}" if whole.isdecimal() else figure


def _roofline(case: CaseComparison, rows: Sequence[Json]) -> Json | None:
    """A roof for the peak of this dtype and one for fp16, each along the slope to its ridge and on; names."""
    ceilings = case.ceilings or next((row.ceilings for row in case.rows if row.ceilings), None)
    intensity = figures.intensity(case)
    if ceilings is None or not intensity:
        return None
    copy = ceilings.copy_gbs / 1e3
    own, fp16 = ceilings.product_tflops, ceilings.matmul_tflops
    peaks = {name: peak for name, peak in (("this dtype", own), ("fp16", fp16)) if peak}
    if own and fp16 and abs(fp16 / own - 1) < _SAME:
        del peaks["fp16"]
    ridges = [{"x": peak / copy, "y": peak} for peak in peaks.values()]
    reach = [intensity, *(ridge["x"] for ridge in ridges)]
    left, right = min(reach) / 8, max(reach) * 8
    slope = {"x": left, "y": left * copy}
    roofs = [[slope, ridge, {"x": right, "y": ridge["y"]}] for ridge in ridges]
    reached = [slope["y"], intensity * copy, *peaks.values(), *(row["tflops"] for row in rows)]
    return {
        "domain": {"x": (left, right), "y": (min(reached) * 0.7, max(reached) * 2.5)},
        "datasets": {
            "roof": roofs[0] if roofs else [slope, {"x": right, "y": right * copy}],
            "other": roofs[1] if len(roofs) > 1 else [],
            "ridges": ridges,
            "slope": [slope | {"name": f"copy: {ceilings.copy_gbs:,.0f} GB/s"}],
            "flat": [
                {"x": right, "y": peak, "name": f"measured matmul, {name}: {number(peak)} TFLOP/s"}
                for name, peak in peaks.items()
            ],
        },
        "caption": f"This case: {number(intensity)} FLOP/B. {_binds(intensity, reach[1:])}",
    }


def _binds(intensity: float, ridges: Sequence[float]) -> str:
    if not ridges:
        return "No matmul was measured here: memory binds."
    what = "arithmetic" if intensity > ridges[0] else "memory"
    return f"Measured ridge: {number(ridges[0])} FLOP/B, so {what} binds."


def sweeps(comparison: Comparison) -> dict[str, Json]:
    """By name, ``N at M=4096, fp32``: the cases that lie on one curve, and where, most cases first."""
    curves: dict[str, dict[str, int]] = defaultdict(dict)
    for case in figures.timed_cases(comparison):
        for name, x in _curves_through(case.case):
            curves[name][case.case] = x
    return {
        name: {"cases": cases, "x": f"{name.split()[0].strip(',')} (logarithmic)"}
        for name, cases in sorted(curves.items(), key=lambda curve: -len(curve[1]))
        if len(cases) >= _LEAST_SIZES
    }


def _curves_through(case: str) -> Iterator[tuple[str, int]]:
    """Every curve that a case may lie on, and where: one size varies, or all sizes are equal."""
    dims = {dim: int(size) for dim, size in re.findall(r"(\w+)=(\d+)", case)}
    words = [word for word in case.split(",") if "=" not in word]
    if not all(dims.values()):
        return
    for dim, size in dims.items():
        fixed = ", ".join([*(f"{other}={dims[other]}" for other in dims if other != dim), *words])
        yield f"{dim}{' at' if len(dims) > 1 else ','} {fixed}", size
    if len(dims) > 1 and len(set(dims.values())) == 1:
        yield f"{'='.join(dims)}, {', '.join(words)}", next(iter(dims.values()))
