"""The figures of the report: Vega-Lite specifications, and what each case puts into them."""

from __future__ import annotations

import importlib
import math
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from compare.report import tables
from compare.spec import CaseComparison, Comparison, Row, UsageError, way_of
from compare.timing import figures

REQUIREMENT = "vl-convert-python>=1.9"

Json = dict[str, Any]

SHAPES = {"torch": "circle", "triton": "triangle-up", "cupy": "square", "pybind": "diamond", "library": "cross"}
"""By route, as Vega names them."""
_WAYS = ("torch", "triton", "cuda", "library")
_DIGITS = 5
"""Of a sample: the event clock resolves no more."""


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


# --------------------------------------------------------------------------- specifications

_CONFIG: Json = {
    "background": None,
    "font": "system-ui, sans-serif",
    "padding": 4,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--faint)",
        "titleColor": "var(--faint)",
        "gridColor": "var(--rule)",
        "domainColor": "var(--rule)",
        "tickColor": "var(--rule)",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelOverlap": True,
    },
}
_COLOR: Json = {
    "field": "way",
    "type": "nominal",
    "scale": {"domain": list(_WAYS), "range": [f"var(--{way})" for way in _WAYS]},
    "legend": None,
}
_SHAPE: Json = {
    "field": "route",
    "type": "nominal",
    "scale": {"domain": list(SHAPES), "range": list(SHAPES.values())},
    "legend": None,
}
_POINT: Json = {"type": "point", "filled": True, "size": 60, "opacity": 1}
_TOLD: list[Json] = [
    {"field": "label", "title": "implementation"},
    {"field": "us", "title": "us, cold", "format": ",.4~r"},
    {"field": "share", "title": "share of ceiling", "format": ".0%"},
]
_HEIGHT = 320


def _spec(height: int | Json, *layers: Json, **more: Any) -> Json:
    return {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": _CONFIG,
        "data": {"name": "rows"},
        **more,
        "layer": list(layers),
    }


def _number(field: str, title: str | None, scale: Json, **axis: Any) -> Json:
    return {"field": field, "type": "quantitative", "scale": scale, "axis": {"title": title, **axis}}


def _log(low: str, high: str, **more: Any) -> Json:
    """A logarithmic scale between two parameters of the figure."""
    return {"type": "log", "nice": False, "domain": [{"expr": low}, {"expr": high}], **more}


def _strip() -> Json:
    """All cold samples of every row, with median and 95% interval."""
    x = _number(
        "us",
        "us, cold (logarithmic)",
        _log("least", "most", range=[0, {"expr": "max(40, width - 56)"}]),
        format=",.3~r",
        values={"expr": "ticks"},
    )
    y = {
        "field": "label",
        "type": "nominal",
        "sort": None,
        "axis": {"title": None, "domain": False, "ticks": False, "labelColor": "var(--ink)", "labelLimit": 130},
    }
    interval = "format(datum.low, ',.4~r') + ' to ' + format(datum.high, ',.4~r')"
    return _spec(
        {"step": 19},
        {
            "transform": [{"flatten": ["samples"], "as": ["sample"]}],
            "mark": {"type": "tick", "size": 12, "thickness": 1, "opacity": 0.3},
            "encoding": {"x": {"field": "sample", "type": "quantitative"}},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 3},
            "encoding": {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}},
        },
        {
            "transform": [
                {"calculate": interval, "as": "interval"},
                {"calculate": "length(datum.samples)", "as": "count"},
            ],
            "mark": {**_POINT, "size": 50, "stroke": "var(--paper)", "strokeWidth": 1},
            "encoding": {
                "shape": _SHAPE,
                "tooltip": [*_TOLD, {"field": "interval", "title": "95% interval"},
                            {"field": "count", "title": "samples"}],
            },
        },
        {
            "mark": {"type": "text", "align": "right", "fontSize": 11},
            "encoding": {
                "x": {"value": {"expr": "width"}},
                "text": {"field": "us", "format": ",.4r"},
                "color": {"value": "var(--ink)"},
            },
        },
        encoding={"x": x, "y": y, "color": _COLOR},
    )  # fmt: skip


def _roofline() -> Json:
    """Achieved arithmetic rate over operational intensity, below the ceilings measured in the run."""
    x = _number("x", "operational intensity, FLOP/B (logarithmic)", _log("left", "right"),
                values={"expr": "xs"}, format=",.3~r")
    y = _number("y", "TFLOP/s (logarithmic)", _log("low", "high"), values={"expr": "ys"}, format=",.3~r")
    name = {"type": "text", "fontSize": 11, "color": "var(--faint)"}
    return _spec(
        _HEIGHT,
        {
            "name": "roof",
            "data": {"name": "roof"},
            "mark": {"type": "line", "strokeWidth": 1.5, "color": "var(--ink)", "clip": True},
            "encoding": {"order": {"field": "x"}},
        },
        {
            "name": "other",
            "data": {"name": "other"},
            "mark": {"type": "rule", "color": "var(--faint)"},
            "encoding": {"x2": {"field": "right"}, "y2": {"field": "top"}},
        },
        {
            "data": {"name": "ridges"},
            "mark": {"type": "rule", "strokeDash": [3, 3], "color": "var(--faint)"},
            "encoding": {"y2": {"value": {"expr": "height"}}},
        },
        {
            "name": "slope",
            "data": {"name": "slope"},
            "mark": {**name, "align": "left", "dx": 10, "dy": 6},
            "encoding": {"text": {"field": "name"}},
        },
        {
            "name": "flat",
            "data": {"name": "flat"},
            "mark": {**name, "align": "right", "dx": -2, "dy": -8},
            "encoding": {"text": {"field": "name"}},
        },
        {
            "name": "all",
            "mark": {**_POINT, "opacity": 0.85},
            "encoding": {
                "color": _COLOR,
                "shape": _SHAPE,
                "tooltip": [
                    *_TOLD,
                    {"field": "y", "title": "TFLOP/s", "format": ",.3~r"},
                    {"field": "gbs", "title": "GB/s", "format": ",.4~r"},
                ],
            },
        },
        {
            "name": "named",
            "transform": [{"filter": "datum.named"}],
            "mark": {**_POINT, "opacity": 0},
            "encoding": {"color": _COLOR},
        },
        transform=[
            {"calculate": "intensity", "as": "x"},
            {"calculate": "flops / datum.us / 1e6", "as": "y"},
            {"calculate": "bytes / datum.us / 1e3", "as": "gbs"},
        ],
        encoding={"x": x, "y": y},
        usermeta={"labels": {"of": "named", "avoid": ["all", "roof", "flat", "slope", "other"]}},
    )


def _effort() -> Json:
    """Speed over the tokens that it takes, with the Pareto front."""
    x = _number(
        "tokens",
        "tokens of kernel, launch and binding (logarithmic)",
        _log("left", "right"),
        format=",",
        values={"expr": "xs"},
    )
    y = _number("share", "share of ceiling", {"domain": [0, {"expr": "high"}]}, format=".0%", tickCount=6)
    return _spec(
        _HEIGHT,
        {
            "name": "steps",
            "data": {"name": "steps"},
            "mark": {"type": "line", "interpolate": "step-after", "color": "var(--faint)", "strokeWidth": 1.5},
            "encoding": {"order": {"field": "tokens"}},
        },
        {
            "name": "all",
            "transform": [
                {"filter": "isValid(datum.front)"},
                # The label transform takes them in this order, and leaves out what finds no room.
                {"window": [{"op": "row_number", "as": "place"}], "sort": [{"field": "front", "order": "descending"}]},
            ],
            "mark": {**_POINT, "stroke": "var(--ink)"},
            "encoding": {
                "color": _COLOR,
                "shape": _SHAPE,
                "strokeWidth": {"condition": {"test": "datum.front", "value": 1.5}, "value": 0},
                "tooltip": [*_TOLD, {"field": "tokens"}, {"field": "lines"}],
            },
        },
        encoding={"x": x, "y": y},
        usermeta={"labels": {"of": "all", "avoid": ["steps"]}},
    )


def _sweep() -> Json:
    """Share of the ceiling over one dimension: every row thin, the best of each way thick."""
    x = _number(
        "x",
        None,
        {"type": "log", "base": 2, "nice": False},
        values={"expr": "sizes"},
        labelExpr="datum.value % 1048576 == 0 ? datum.value / 1048576 + 'M' : "
        "datum.value % 1024 == 0 ? datum.value / 1024 + 'K' : format(datum.value, ',')",
    )
    y = _number("share", "share of ceiling", {"zero": True}, format=".0%", tickCount=6)
    return _spec(
        _HEIGHT,
        {
            "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.35},
            "encoding": {"detail": {"field": "label"}},
        },
        {
            "mark": {**_POINT, "size": 22, "opacity": 0.55},
            "encoding": {"shape": _SHAPE, "tooltip": [*_TOLD, {"field": "case"}]},
        },
        {
            "transform": [
                {"joinaggregate": [{"op": "max", "field": "share", "as": "most"}], "groupby": ["way", "x"]},
                {"filter": "datum.share == datum.most && datum.way != 'library'"},
            ],
            "mark": {"type": "line", "strokeWidth": 2.5},
        },
        transform=[{"filter": "isValid(datum.share)"}],
        encoding={"x": x, "y": y, "color": _COLOR},
    )


SPECS: dict[str, Json] = {
    "strip": _strip(),
    "roofline": _roofline(),
    "effort": _effort(),
    "sweep": _sweep(),
}


# --------------------------------------------------------------------------- data


def of_case(comparison: Comparison, case: CaseComparison) -> Json:
    """``rows`` that the figures share, fastest first, and by figure its own ``datasets``, ``params`` and
    ``caption``.  A figure that the case has nothing for is None."""
    timed = sorted((row for row in case.rows if figures.cold_us(row) < math.inf), key=figures.cold_us)
    rows = [_row(comparison, case, row) for row in timed]
    return {
        "rows": rows,
        "strip": _strip_data(rows),
        "roofline": _roofline_data(case, timed, rows),
        "effort": _effort_data(rows),
    }


def _row(comparison: Comparison, case: CaseComparison, row: Row) -> Json:
    cold = row.timing.cold_us if row.timing else None
    assert cold is not None
    route = row.label.partition(".")[0]
    made: Json = {
        "label": row.label,
        "way": way_of(row.label),
        "route": route,
        "us": cold.median,
        "low": cold.low,
        "high": cold.high,
        "samples": cold.samples or (cold.median,),
        "share": figures.share(case, row),
    }
    size = comparison.code_sizes.get(row.label)
    if size and size.tokens and made["share"] is not None and row.status == "ok":
        made |= {"tokens": size.tokens, "lines": size.lines, "front": False}
    return made


def _strip_data(rows: Sequence[Json]) -> Json | None:
    samples = [sample for row in rows for sample in row["samples"] if sample > 0]
    if not samples:
        return None
    least, most = min(samples) * 0.97, max(samples) * 1.03
    return {"params": {"least": least, "most": most, "ticks": _ticks(least, most)}}


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis, at least four where there are as many."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps: Sequence[float]
    found: list[float] = []
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), [n / 10 for n in range(10, 100, 2)]):
        found = [step * 10.0**decade for decade in decades for step in steps]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= _LEAST_TICKS:
            break
    return found


_LEAST_TICKS = 4


def _roofline_data(case: CaseComparison, timed: Sequence[Row], rows: Sequence[Json]) -> Json | None:
    ceilings = case.ceilings or next((row.ceilings for row in timed if row.ceilings), None)
    cost = case.cost
    if ceilings is None or not timed or not cost.flops or not cost.bytes:
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
    roof = [{"x": x, "y": min([x * copy, *flat.values()][:2])} for x in (left, *[*ridges.values()][:1], right)]
    other = [{"x": ridges[name], "y": peak, "right": right, "top": peak} for name, peak in [*flat.items()][1:]]
    if other and ridges["fp16"] > ridges["this dtype"]:  # the slope goes on to the higher one
        first, last = ridges["this dtype"], ridges["fp16"]
        slanted = {"x": first, "y": first * copy, "right": last, "top": last * copy}
        other.append(slanted)
    named = [f"matmul, {name}: {tables.number(peak)} TFLOP/s" for name, peak in flat.items()]
    slope = {"x": left, "y": left * copy, "name": f"copy: {copy * 1e3:,.0f} GB/s"}
    rates = [cost.flops / row["us"] / 1e6 for row in rows]
    low, high = min(*rates, left * copy) * 0.7, max([*flat.values(), *rates, intensity * copy]) * 2.5
    return {
        "datasets": {
            "roof": roof,
            "other": other,
            "ridges": [{"x": x, "y": flat[name]} for name, x in ridges.items()],
            "slope": [slope],
            "flat": [{"x": right, "y": y, "name": name} for y, name in zip(flat.values(), named, strict=True)],
        },
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
    if not sized:
        return None
    front: list[Json] = []
    for row in sorted(sized, key=lambda row: (row["tokens"], -row["share"])):
        if not front or row["share"] > front[-1]["share"]:
            row["front"] = True
            front.append({"tokens": row["tokens"], "share": row["share"]})
    tokens = [row["tokens"] for row in sized]
    left, right = min(tokens) / 1.8, max(tokens) * 2.2
    return {
        "datasets": {"steps": [*front, {"tokens": right, "share": front[-1]["share"]}]},
        "params": {
            "left": left,
            "right": right,
            "xs": _ticks(left, right),
            "high": max(1.08, *(row["share"] * 1.08 for row in sized)),
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
    dims: dict[str, int] = {}
    words: list[str] = []
    for word in case.split(","):
        dim, equals, size = word.partition("=")
        if equals:
            dims[dim] = int(size)
        else:
            words.append(word)
    if not all(dims.values()):
        return
    for dim, size in dims.items():
        fixed = ", ".join([*(f"{other}={dims[other]}" for other in dims if other != dim), *words])
        yield f"{dim}{' at' if len(dims) > 1 else ','} {fixed}", size
    if len(dims) > 1 and len(set(dims.values())) == 1:
        yield f"{'='.join(dims)}, {', '.join(words)}", next(iter(dims.values()))


def compact(value: Any) -> Any:
    """The same with no more digits than a figure shows."""
    if isinstance(value, dict):
        return {key: compact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [compact(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value
