"""The figures of the report as Vega-Lite specifications; `compare.report.html.figures` has their data."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

SHAPES = {
    "torch": "circle",
    "triton": "triangle-up",
    "cupy": "square",
    "pybind": "diamond",
    "library": "cross",
}
"""By route, as Vega names them."""
_WAYS = ("torch", "triton", "cuda", "library")

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
        "labelSeparation": 8,
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
    {"field": "shown", "title": "us, cold"},
    {"field": "share", "title": "share of ceiling", "format": ".0%"},
]
_HEIGHT = 320


def _spec(height: int, *layers: Json, **more: Any) -> Json:
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
        "axis": {
            "title": None,
            "domain": False,
            "ticks": False,
            "labelColor": "var(--ink)",
            "labelLimit": 130,
        },
    }
    interval = "format(datum.low, ',.4~r') + ' to ' + format(datum.high, ',.4~r')"
    return _spec(
        _HEIGHT,
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
                "text": {"field": "shown"},
                "color": {"value": "var(--ink)"},
            },
        },
        encoding={"x": x, "y": y, "color": _COLOR},
    )  # fmt: skip


def _roofline() -> Json:
    """Achieved arithmetic rate over operational intensity, below the ceilings measured in the run."""
    x = _number(
        "x",
        "operational intensity, FLOP/B (logarithmic)",
        _log("left", "right"),
        values={"expr": "xs"},
        format=",.3~r",
    )
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
        "tokens of own code and the op's helpers (logarithmic)",
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
            "mark": {
                "type": "line",
                "interpolate": "step-after",
                "color": "var(--faint)",
                "strokeWidth": 1.5,
            },
            "encoding": {"order": {"field": "tokens"}},
        },
        {
            "name": "all",
            "transform": [
                {"filter": "isValid(datum.front)"},
                # The label transform takes them in this order, and leaves out what finds no room.
                {
                    "window": [{"op": "row_number", "as": "place"}],
                    "sort": [{"field": "front", "order": "descending"}],
                },
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
