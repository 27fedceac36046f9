"""What each case puts into the figures of the report, and the package that draws them."""

from __future__ import annotations

import functools
import importlib
import math
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from compare.model.op import UsageError
from compare.model.result import CaseComparison, Comparison
from compare.report import tables
from compare.report.lines import Line
from compare.timing import figures, statistics

Json = dict[str, Any]

REQUIREMENT = "vl-convert-python>=1.9"

_DIGITS = 5
"""Of a sample: the event clock resolves no more."""


@functools.cache  # making it takes a second or two, and a run of several ops writes the page after each
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, from the package that carries them.

    Raises:
        UsageError: it cannot be imported.
    """
    bundle: str = package().javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def package() -> Any:
    """The optional package that carries them, imported only here: nothing but ``--html`` needs it.

    Raises:
        UsageError: it cannot be imported.
    """
    try:
        return importlib.import_module("vl_convert")
    except Exception as error:  # of whatever is installed under that name: anything
        pip = f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(REQUIREMENT)}"
        raise UsageError(
            f"--html draws with Vega-Lite from vl-convert-python, which cannot be imported ({error}). "
            f"To install it: {pip}"
        ) from None


_ROW_HEIGHT = 19
"""Of the strip plot, whose height goes by its rows."""


# --------------------------------------------------------------------------- data


def of_case(case: CaseComparison, every: Sequence[Line]) -> Json:
    """What the figures show of a case.

    Args:
        case: the case.
        every: its lines.

    Returns:
        ``rows`` that they share, fastest first, and by figure its own ``datasets``, ``params``, ``height``
        and ``caption``; None of a figure that the case has nothing for.
    """
    rows = [_row(line) for line in sorted(every, key=lambda line: figures.cold_us(line.row)) if line.us]
    return {
        "rows": rows,
        "strip": _strip_data(rows),
        "roofline": _roofline_data(case, rows),
        "effort": _effort_data(rows),
    }


def _row(line: Line) -> Json:
    cold = line.timing.cold_us
    assert cold is not None
    few = len(cold.samples) < statistics.ENOUGH  # for an interval
    made: Json = {
        "label": line.row.label,
        "way": line.way,
        "route": line.route,
        "us": cold.median,
        "low": cold.median if few else cold.low,
        "high": cold.median if few else cold.high,
        "shown": grouped(tables.number(cold.median, 4)),
        "samples": cold.samples or (cold.median,),
        "share": line.share,
    }
    if line.tokens and line.share is not None and line.row.status == "ok":
        made |= {"tokens": line.tokens, "lines": line.lines, "front": False}
    return made


def grouped(figure: str) -> str:
    """``271,488``"""
    whole, dot, rest = figure.partition(".")
    return f"{int(whole):,}{dot}{rest}" if whole.isdecimal() else figure


def _strip_data(rows: Sequence[Json]) -> Json | None:
    samples = [sample for row in rows for sample in row["samples"] if sample > 0]
    if not samples:
        return None
    margin = max(1.005, (max(samples) / min(samples)) ** 0.03)
    least, most = min(samples) / margin, max(samples) * margin
    params = {"least": least, "most": most, "ticks": _ticks(least, most)}
    return {"params": params, "height": _ROW_HEIGHT * len(rows)}


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis, at least four where there are as many."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in _STEPS:
        found = [step * 10.0**decade for decade in decades for step in steps]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= _LEAST_TICKS:
            break
    return found


_LEAST_TICKS = 4
_STEPS: Sequence[Sequence[float]] = (
    (1,),
    (1, 2, 5),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    [n / 10 for n in range(10, 100, 2)],
    [n / 100 for n in range(100, 1000, 5)],
)
"""Within a decade, coarse to fine."""


def _roofline_data(case: CaseComparison, rows: Sequence[Json]) -> Json | None:
    ceilings = case.ceilings or next((row.ceilings for row in case.rows if row.ceilings), None)
    cost = case.cost
    if ceilings is None or not rows or not cost.flops or not cost.bytes:
        return None
    best: dict[str, str] = {}
    for row in rows:  # fastest first
        best.setdefault(row["way"], row["label"])
    for row in rows:
        row["named"] = row["label"] in {*best.values(), figures.baseline_of(case)}
    copy = ceilings.copy_gbs / 1e3
    peaks = {"this dtype": ceilings.product_tflops, "fp16": ceilings.matmul_tflops}
    flat = {name: peak for name, peak in peaks.items() if peak}
    if len(flat) == len(peaks) and abs(flat["fp16"] / flat["this dtype"] - 1) < _SAME:
        del flat["fp16"]
    intensity = cost.flops / cost.bytes
    ridges = {name: peak / copy for name, peak in flat.items()}
    left = min([intensity, *ridges.values()]) / 8
    right = max([intensity, *ridges.values()]) * 8
    rates = [cost.flops / row["us"] / 1e6 for row in rows]
    low, high = min(*rates, left * copy) * 0.7, max([*flat.values(), *rates, intensity * copy]) * 2.5
    return {
        "datasets": _roofs(copy, flat, ridges, left, right),
        "params": {
            "intensity": intensity,
            "flops": cost.flops,
            "bytes": cost.bytes,
            "left": left,
            "right": right,
            "xs": _ticks(left, right),
            "low": low,
            "high": high,
            "ys": _ticks(low, high),
        },
        "caption": _binds(intensity, ridges),
    }


def _roofs(copy: float, flat: Json, ridges: dict[str, float], left: float, right: float) -> Json:
    """The lines of the roofline and their names.

    Args:
        copy: TB/s.
        flat: peaks by dtype, TFLOP/s.
        ridges: of each peak, FLOP/B.
        left: where the drawing begins, FLOP/B.
        right: where it ends.
    """
    roof = [
        {"x": x, "y": min([x * copy, *flat.values()][:2])} for x in (left, *[*ridges.values()][:1], right)
    ]
    other = [
        {"x": ridges[name], "y": peak, "right": right, "top": peak} for name, peak in [*flat.items()][1:]
    ]
    if other and ridges["fp16"] > ridges["this dtype"]:  # the slope goes on to the higher one
        first, last = ridges["this dtype"], ridges["fp16"]
        other.append({"x": first, "y": first * copy, "right": last, "top": last * copy})
    return {
        "roof": roof,
        "other": other,
        "ridges": [{"x": x, "y": flat[name]} for name, x in ridges.items()],
        "slope": [{"x": left, "y": left * copy, "name": f"copy: {copy * 1e3:,.0f} GB/s"}],
        "flat": [
            {"x": right, "y": peak, "name": f"measured matmul, {name}: {tables.number(peak)} TFLOP/s"}
            for name, peak in flat.items()
        ],
    }


_SAME = 0.15
"""Two ceilings that differ less are drawn as one."""


def _binds(intensity: float, ridges: dict[str, float]) -> str:
    here = f"This case: {tables.number(intensity)} FLOP/B."
    if not ridges:
        return f"{here} No matmul was measured here: memory binds."
    ridge = next(iter(ridges.values()))
    what = "arithmetic" if intensity > ridge else "memory"
    return f"{here} Measured ridge: {tables.number(ridge)} FLOP/B, so {what} binds."


def _effort_data(rows: Sequence[Json]) -> Json | None:
    sized = [row for row in rows if "tokens" in row]
    front: list[Json] = []
    for row in sorted(sized, key=lambda row: (row["tokens"], -row["share"])):
        # A library baseline is measured beside the three ways, and is none of them.
        if row["way"] != "library" and (not front or row["share"] > front[-1]["share"]):
            row["front"] = True
            front.append({"tokens": row["tokens"], "share": row["share"]})
    if not front:
        return None
    tokens = [row["tokens"] for row in sized]
    left, right = min(tokens) / 1.8, max(tokens) * 2.2
    return {
        "datasets": {"steps": [*front, {"tokens": right, "share": front[-1]["share"]}]},
        "params": {
            "left": left,
            "right": right,
            "xs": _ticks(left, right),
            "high": max(row["share"] for row in sized) * 1.12 or 1.0,
        },
    }


def sweeps(comparison: Comparison) -> dict[str, Json]:
    """By name, ``N at M=4096, fp32``: the cases that lie on one curve, and where, most cases first."""
    lines: dict[str, dict[str, int]] = defaultdict(dict)
    for case in figures.timed_cases(comparison):
        for line, x in _lines_through(case.case):
            lines[line][case.case] = x
    return {
        line: {
            "cases": cases,
            "params": {"sizes": sorted(cases.values())},
            "x": f"{line.split()[0].strip(',')} (logarithmic)",
        }
        for line, cases in sorted(lines.items(), key=lambda entry: -len(entry[1]))
        if len(cases) >= _LEAST_SIZES
    }


_LEAST_SIZES = 3
"""Fewer points make no curve."""


def _lines_through(case: str) -> Iterator[tuple[str, int]]:
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


def rounded(value: Any) -> Any:
    """The same with no more digits than a figure shows."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value
