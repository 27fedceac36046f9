"""The pictures of docs/ops/: which program, block, warp and lane computes what, from ``docs/ops/OP.json``.

A description has these keys; a *grid* is ``{"title", "cells", "width", "height"}``, with a string a row in
``cells`` and its cells' labels apart by spaces.  ``~`` in a label is shown as a space, ``.`` is no label, and
``*`` behind a label chooses the cell: it is in the colour of the program that the rest of the picture shows.
A cell is outlined and not filled where it stands for more cells, ``…`` or ``⋮``, or is in parentheses.

    alt     what the picture shows, for readers who do not see it
    data    grids side by side: the tensors, a cell a tile
    triton  a grid: the program's tile, and ``notes``, lines below it
    cuda    a grid: the same tile, a cell a warp's part; equal labels, up to a colon, have one
            colour, and ``notes``
    warp    a grid: one of cuda's parts, a cell a lane's; its title begins with the part's label and a
            colon; and ``notes``
    steps   rows ``[step, Triton's code, CUDA's code]``
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare.model.op import UsageError
from compare.registry import ROOT
from tools.docs import svg

WIDTH = 700
_MARGIN, _GAP, _PADDING = 8, 8, 10
_PANEL = (WIDTH - 2 * _MARGIN - _GAP) / 2
_LINE = 17
_STEP_WIDTH = 72
_COLOURS = 8
_TEXT = {"title": (13, 0.58), "label": (11, 0.6), "note": (12, 0.54), "code": (11, 0.61), "step": (12, 0.72)}
"""Each class of text: its font size, and the width of a character as a share of that, rounded up."""


@dataclass
class _Drawing:
    """Rectangles ``(class, x, y, width, height)`` and texts ``(class, x, y, anchor, text)``."""

    name: str
    rectangles: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    texts: list[tuple[str, float, float, str, str]] = field(default_factory=list)

    def text(self, kind: str, x: float, y: float, text: str, width: float, anchor: str = "start") -> None:
        """A `UsageError` if it is wider than ``width``."""
        size, share = _TEXT[kind]
        if len(text) * size * share > width:
            most = int(width / size / share)
            raise UsageError(f"docs/ops/{self.name}.json: {text!r} is longer than {most} characters")
        self.texts.append((kind, x, y, anchor, text))

    def grid(self, grid: dict[str, Any], x: float, y: float, plain: str = "") -> float:
        """The y below it.  Cells are of class ``plain``, or of a colour for each label."""
        width, height = grid["width"], grid["height"]
        self.text("title", x, y + 12, grid["title"], max(width, _PANEL - 2 * _PADDING))
        y += 20
        rows = [row.split() for row in grid["cells"]]
        colours: dict[str, str] = {}
        for r, row in enumerate(rows):
            for c, cell in enumerate(row):
                label = cell.removesuffix("*").replace("~", " ")
                colour = plain or colours.setdefault(_part(label), f"part{len(colours) % _COLOURS}")
                kind = "chosen" if cell != cell.removesuffix("*") else colour
                if label[0] in "…⋮(":
                    kind = "more"
                w, h = width / len(row), height / len(rows)
                self.rectangles.append((kind, x + c * w, y + r * h, w, h))
                if label != ".":
                    self.text("label", x + (c + 0.5) * w, y + (r + 0.5) * h + 4, label, w, "middle")
        return float(y + height)

    def notes(self, lines: Sequence[str], x: float, y: float) -> float:
        for line in lines:
            y += _LINE
            self.text("note", x, y, line, _PANEL - 2 * _PADDING)
        return y


def draw(path: Path) -> str:
    """The SVG of a description."""
    told = json.loads(path.read_text())
    drawing = _Drawing(path.stem)
    x, bottom = float(_MARGIN + _PADDING), 0.0
    for grid in told["data"]:
        bottom = max(bottom, drawing.grid(grid, x, _MARGIN, "plain"))
        x += max(grid["width"], len(grid["title"]) * _TEXT["title"][0] * _TEXT["title"][1]) + 24
        if x > WIDTH + 24:
            raise UsageError(f"docs/ops/{path.stem}.json: the grids of data are wider than {WIDTH} pixels")

    top = bottom + 16
    left, right = _MARGIN + _PADDING, _MARGIN + _PANEL + _GAP + _PADDING
    y_left = drawing.grid(told["triton"], left, top + _PADDING, "chosen")
    y_left = drawing.notes(told["triton"]["notes"], left, y_left + 4)
    y_right = drawing.grid(told["cuda"], right, top + _PADDING)
    y_right = drawing.notes(told["cuda"]["notes"], right, y_right + 4)
    y_right = drawing.grid(told["warp"], right, y_right + 14, _colour_of(told["cuda"], told["warp"]))
    y_right = drawing.notes(told["warp"]["notes"], right, y_right + 4)

    y = max(y_left, y_right) + 14
    rule = y
    code_x = left + _STEP_WIDTH
    for step, triton, cuda in told["steps"]:
        y += _LINE
        drawing.text("step", left, y, step, _STEP_WIDTH)
        drawing.text("code", code_x, y, triton, _MARGIN + _PANEL - code_x)
        drawing.text("code", right, y, cuda, WIDTH - _MARGIN - right)
    height = y + _PADDING + _MARGIN
    panels = [(start, top, _PANEL, height - _MARGIN - top) for start in (_MARGIN, _MARGIN + _PANEL + _GAP)]
    return svg.drawn(
        "pictures",
        alt=told["alt"],
        width=WIDTH,
        height=round(height),
        panels=panels,
        rule=rule,
        margin=_MARGIN,
        rectangles=drawing.rectangles,
        texts=drawing.texts,
        colours=_COLOURS,
    )


def _part(label: str) -> str:
    return label.partition(":")[0]


def _colour_of(tile: dict[str, Any], warp: dict[str, Any]) -> str:
    """The colour of the warp that is drawn lane by lane: its title begins with the part's name."""
    parts = list(dict.fromkeys(_part(cell) for row in tile["cells"] for cell in row.split()))
    if _part(warp["title"]) not in parts:
        raise UsageError(f"{warp['title']!r}: begin it with one of {', '.join(parts)} and a colon")
    return f"part{parts.index(_part(warp['title'])) % _COLOURS}"


def pictures() -> dict[Path, Callable[[], str]]:
    """Every picture, relative to the root, and what draws it."""
    found = sorted((ROOT / "docs" / "ops").glob("*.json"))
    return {path.relative_to(ROOT).with_suffix(".svg"): lambda path=path: draw(path) for path in found}  # type: ignore[misc]
