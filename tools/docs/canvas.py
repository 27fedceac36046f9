"""A picture of cells, labels and arrows, in pixels from the top left; and constants read from the sources.

A picture shows what a kernel does, so its numbers are the kernel's own: `constant` reads one from a source
file, `parameter` an implementation's default, `expression` a formula.  If one changes, so does the picture.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compare import registry
from compare.model.op import UsageError
from compare.registry import ROOT
from tools.docs import svg

_CHARACTERS = {"title": 7.6, "note": 6.5, "small": 5.4, "code": 6.7, "": 6.4}
"""Pixels of a character, rounded up, by class of text."""
COLOURS = 8


@dataclass
class Canvas:
    """Rectangles of a class, texts with an anchor, and paths in SVG's own words."""

    title: str
    width: int
    rectangles: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    texts: list[tuple[str, float, float, str, str]] = field(default_factory=list)
    paths: list[tuple[str, str]] = field(default_factory=list)

    def cell(self, kind: str, x: float, y: float, width: float, height: float, label: str = "") -> None:
        """A rectangle, with its label in the middle where there is room for it."""
        self.rectangles.append((kind, x, y, width, height))
        size = "small" if height < 15 or len(label) * _CHARACTERS[""] > width else ""
        if label and len(label) * _CHARACTERS[size] <= width + 3:
            self.texts.append((size, x + width / 2, y + height / 2 + (3 if size else 4), "middle", label))

    def text(self, kind: str, x: float, y: float, text: str, anchor: str = "start") -> None:
        """A `UsageError` if it ends outside of the picture."""
        extent = len(text) * _CHARACTERS[kind]
        begin = x - {"start": 0.0, "middle": extent / 2, "end": extent}[anchor]
        if begin < 0 or begin + extent > self.width + 4:
            raise UsageError(f"{self.title[:40]}: {text!r} is too long at {x:.0f} of {self.width} pixels")
        self.texts.append((kind, x, y, anchor, text))

    def line(self, path: str, kind: str = "line") -> None:
        self.paths.append((kind, path))

    def lanes(self, names: Sequence[str], x: float, y: float, height: float) -> None:
        """Names at the left of horizontal lines, one below the other, from ``x`` to the right end."""
        for i, name in enumerate(names):
            middle = y + (i + 0.5) * height
            self.line(f"M{x:.0f} {middle:.0f}H{self.width - 8}")
            self.text("", x - 8, middle + 4, name, "end")

    def drawn(self) -> str:
        """The picture as SVG, as high as what it holds."""
        lowest = max([y + h for _, _, y, _, h in self.rectangles] + [y for _, _, y, _, _ in self.texts])
        return svg.drawn(
            "canvas",
            title=self.title,
            width=self.width,
            height=round(lowest + 12),
            rectangles=self.rectangles,
            paths=self.paths,
            texts=self.texts,
        )


# --------------------------------------------------------------------------- from the sources


@functools.cache
def source(file: str) -> str:
    """A source file's text; relative to the root."""
    return (ROOT / file).read_text()


def expression(file: str, pattern: str) -> str:
    """What the pattern's group matches in a source file, as Python: ``/`` divides integers.

    Raises:
        UsageError: nothing matches, or more than one text does.
    """
    found = set(re.findall(pattern, source(file)))
    if len(found) != 1:
        raise UsageError(
            f"{file}: {pattern!r} matches {len(found)} texts; the picture drawn from it needs one"
        )
    return re.sub(r"/+", "//", found.pop())


def constant(file: str, name: str, values: Mapping[str, int] | None = None) -> int:
    """An integer constant of a source file, from its own formula.

    Args:
        file: relative to the root.
        name: of a ``constexpr int``, or of an assignment.
        values: what the formula's names are.

    >>> constant("cuda_impl/kernels/transpose.cuh", "TILE")
    32
    """
    formula = expression(file, rf"\b{name} = ([\w\s*/+()-]+?)(?=[,;\n])").replace("sizeof(T)", "SIZE")
    return int(eval(formula, {"__builtins__": {}}, dict(values or {})))


def parameter(op: str, label: str, name: str) -> int:
    """The default of an implementation's parameter; a `UsageError` if it has none of that name."""
    found = registry.keywords(registry.implementations(op, [label])[0].run)
    if name not in found:
        raise UsageError(f"{label} of {op} has no parameter {name}; there are {', '.join(found)}")
    return int(found[name])
