"""Effort against speed as a picture, by matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from compare.history.map import Map, Point
from compare.model.op import way_of
from compare.report.html.palette import LIGHT

_PANEL = 7.2, 5.4  # inches, wide and high
_SMALL_PANEL = 5.4, 3.9
_FEW = 4
"""Up to so many panels are large ones."""
_ROUTES = {
    "torch": ("PyTorch", "o"),
    "triton": ("Triton", "^"),
    "cupy": ("CUDA through cupy", "s"),
    "pybind": ("CUDA through pybind11", "D"),
    "library": ("a library", "X"),
}
"""Each route's name and shape; its colour is its way's."""
_ENTRY, _CHARACTER = 2.4, 0.09
"""Inches: the width of an entry of the legend, and of a character of the title."""
_FONT = 8.0
_GREY = LIGHT["faint"]


def save(chart: Map, file: Path) -> None:
    """Draw `figure` into a file, as its ending says; one record makes one file.

    Raises:
        OSError: it cannot be written.
    """
    kind = file.suffix[1:].lower()
    # Without a date, and with identifiers that are not drawn at random.
    undated = {"Date": None} if kind == "svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "map"}):
        figure(chart).savefig(file, format=kind, dpi=150, metadata=undated)


def figure(chart: Map) -> Any:
    """A panel for each op, a point for each implementation, and a line through the Pareto front."""
    ops = list(dict.fromkeys(point.op for point in chart.points))
    columns = math.ceil(math.sqrt(len(ops)))  # as wide as a screen, which is wider than high as panels are
    rows = math.ceil(len(ops) / columns)
    wide, high = _PANEL if len(ops) <= _FEW else _SMALL_PANEL
    width = wide * columns
    drawn = Figure((width, high * rows + 1.2), layout="constrained")
    FigureCanvasAgg(drawn)
    panels = drawn.subplots(rows, columns, squeeze=False).flatten()
    handles: dict[str, Any] = {}
    labels = []
    for panel, op in zip(panels, ops, strict=False):
        labels.append((panel, _panel(panel, [point for point in chart.points if point.op == op])))
        handles |= {handle.get_label(): handle for handle in panel.get_legend_handles_labels()[0]}
    for panel in panels[len(ops) :]:
        panel.set_visible(False)
    for panel in panels[max(0, len(ops) - columns) : len(ops)]:
        panel.set_xlabel("effort: tokens to read (logarithmic)")
    for panel in panels[: len(ops) : columns]:
        panel.set_ylabel("speed: share of the ceiling")
    across = max(1, int(width / _ENTRY))
    drawn.legend(handles=[*handles.values()], loc="outside lower center", ncols=across, frameon=False)
    some = "; (2/3): of 2 of these 3" * any(point.cases < point.of for point in chart.points)
    title = (
        f"What effort buys, as recorded on {chart.device}, {' to '.join(chart.dates)}",
        "effort: all the project's code that a call needs; speed: the median of the cases in which launching "
        f"does not bind{some}",
        "* its source has changed since" * bool(chart.changed),
    )
    drawn.suptitle("\n".join(textwrap.fill(line, int(width / _CHARACTER)) for line in title if line))
    drawn.draw_without_rendering()  # where everything is, is known only then
    for panel, texts in labels:
        _keep_apart(panel, texts)
    return drawn


def _panel(panel: Any, points: Sequence[Point]) -> list[Any]:
    """One op; its labels, those of the front first.  A kernel's two routes have one between them."""
    for route, (name, marker) in _ROUTES.items():
        mine = [point for point in points if point.label.startswith(f"{route}.")]
        if mine:
            tokens, shares = [point.tokens for point in mine], [point.share for point in mine]
            panel.scatter(
                tokens, shares, s=36, color=LIGHT[way_of(f"{route}.")], marker=marker, label=name, zorder=3
            )
    front = [point for point in points if point.front]
    edge = max(point.tokens for point in points) * 2
    panel.plot(
        [*(point.tokens for point in front), edge],
        [*(point.share for point in front), front[-1].share],
        color=_GREY,
        drawstyle="steps-post",
        linewidth=1,
        label="Pareto front: the most for so many tokens",
        zorder=2,
    )
    panel.set_xscale("log")
    panel.set_xlim(min(point.tokens for point in points) / 2, edge)
    panel.set_ylim(-0.03, max(1.05, *(point.share * 1.08 for point in points)))
    panel.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.grid(color=LIGHT["rule"], linewidth=0.5)
    panel.set_title(points[0].op)
    panel.set_title("1 case" if points[0].of == 1 else f"{points[0].of} cases", loc="right", fontsize=_FONT)
    kernels: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.label.startswith("pybind.")):
        kernels.setdefault(point.label.replace("pybind.", "cupy.", 1), []).append(point)
    for routes in kernels.values():
        if len(routes) > 1:
            ends = [point.tokens for point in routes], [point.share for point in routes]
            panel.plot(
                *ends, color=_GREY, linestyle=":", linewidth=1, zorder=1, label="one kernel, cupy and pybind"
            )
    named = sorted(kernels.values(), key=lambda routes: not any(point.front for point in routes))
    return [_label(panel, routes[0], any(point.front for point in routes)) for routes in named]


def _label(panel: Any, point: Point, bold: bool) -> Any:
    """``onepass *``, and on how many of the cases where these are not all."""
    text = point.label.partition(".")[2]
    text += " *" * point.changed + f" ({point.cases}/{point.of})" * (point.cases < point.of)
    return panel.annotate(
        text,
        (point.tokens, point.share),
        (0, 0),
        textcoords="offset points",
        fontsize=_FONT,
        fontweight="bold" if bold else "normal",
        color=LIGHT["ink"],
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
    )


def _keep_apart(panel: Any, texts: Sequence[Any]) -> None:
    """Move each label to the nearest place beside its point that no other point or label takes."""
    scale = panel.figure.dpi / 72  # pixels a point
    points = [xy for group in panel.collections for xy in group.get_offsets().tolist()]
    taken = [
        Bbox.from_bounds(x - 4 * scale, y - 4 * scale, 8 * scale, 8 * scale)
        for x, y in panel.transData.transform(points).tolist()
    ]
    room = panel.get_window_extent()
    for text in texts:
        x, y = panel.transData.transform(text.xy)
        size = text.get_window_extent()
        places = (
            (beside, (rise - 1) * _FONT / 2)
            for step in range(30)
            for rise in dict.fromkeys((step, -step))
            for beside in (6.0, -6.0 - size.width / scale)
        )
        for across, up in places:
            box = Bbox.from_bounds(x + across * scale, y + up * scale, size.width, size.height)
            inside = room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1
            if inside and not box.count_overlaps(taken):
                text.set_position((across, up))
                taken.append(box)
                break
