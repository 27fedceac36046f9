"""docs/effort.svg: code size against speed, a panel for each op, from the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from compare.history.map import Map, Point
from compare.model.op import WAYS, way_of
from compare.report.html.palette import DARK, LIGHT
from tools.docs import svg

COLUMNS = 5
CELL_WIDTH, CELL_HEIGHT = 154, 152
PLOT_WIDTH, PLOT_HEIGHT = 132, 100
LEFT, TOP = 34, 22
"""Room for the labels of the axes and for an op's name."""
TOKENS = 20, 20_000
"""Ends of the logarithmic axis."""
SHARE = 1.1
"""Upper end of the linear axis, which starts at 0."""


@dataclass(frozen=True)
class Mark:
    """An implementation as drawn, in pixels."""

    way: str
    x: float
    y: float
    front: bool
    said: str


@dataclass(frozen=True)
class Panel:
    op: str
    x: int
    y: int
    marks: list[Mark]
    front: str
    """The Pareto front as SVG's ``d``."""


def picture(found: Map) -> str:
    """One mark for each implementation, and a step line through the Pareto front."""
    ops = [(op, list(points)) for op, points in groupby(found.points, lambda point: point.op)]
    panels = [_panel(op, points, *divmod(place, COLUMNS)) for place, (op, points) in enumerate(ops)]
    row, column = divmod(len(ops), COLUMNS)
    return svg.drawn(
        "effort",
        device=found.device,
        ways=[*WAYS, "library"],
        light=LIGHT,
        dark=DARK,
        panels=panels,
        width=LEFT + COLUMNS * CELL_WIDTH,
        height=(row + 1) * CELL_HEIGHT,
        legend=(LEFT + column * CELL_WIDTH, row * CELL_HEIGHT + TOP),
        plot=(PLOT_WIDTH, PLOT_HEIGHT),
        x_ticks=[(_x(tokens), text) for tokens, text in ((100, "100"), (1000, "1k"), (10_000, "10k"))],
        y_ticks=[(_y(share), f"{share:.0%}") for share in (0, 0.5, 1)],
    )


def _panel(op: str, points: Sequence[Point], row: int, column: int) -> Panel:
    marks = [
        Mark(
            way_of(point.label),
            _x(point.tokens),
            _y(point.share),
            point.front,
            f"{point.label}: {point.tokens} tokens, {point.share:.0%}",
        )
        for point in points
    ]
    first, *others = (mark for mark in marks if mark.front)
    steps = "".join(f"H{mark.x}V{mark.y}" for mark in others)
    front = f"M{first.x} {first.y}{steps}H{PLOT_WIDTH}"
    return Panel(op, LEFT + column * CELL_WIDTH, row * CELL_HEIGHT + TOP, marks, front)


def _x(tokens: float) -> float:
    low, high = map(math.log, TOKENS)
    return round(PLOT_WIDTH * (math.log(tokens) - low) / (high - low), 1)


def _y(share: float) -> float:
    return round(PLOT_HEIGHT * (1 - min(share, SHARE) / SHARE), 1)
