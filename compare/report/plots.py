"""``map --plot``: whether the picture can be drawn, and drawing it.  `figure` does that, by matplotlib."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import places
from compare.model.op import UsageError

if TYPE_CHECKING:
    from compare.history.map import Map

ENDINGS = (".png", ".svg")


def check(file: Path) -> None:
    """Find out before anything is read whether the picture can be drawn.

    Raises:
        UsageError: of another kind than `ENDINGS`, or matplotlib is missing.
    """
    if file.suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot {file}: name a file that ends in {' or '.join(ENDINGS)}")
    _figure()


def draw(chart: Map, file: Path) -> None:
    """A panel for each op, a point for each implementation, and a line through the Pareto front.

    Raises:
        UsageError: there is nothing to draw, or the file cannot be written.
    """
    if not chart.points:
        raise UsageError(
            "--plot: no implementation on record has both a code size and a share of its ceiling"
        )
    try:
        _figure().save(chart, file)
    except OSError as error:
        raise UsageError(f"{file} could not be written: {error}") from None


def _figure() -> Any:
    return imported("compare.report.figure", "plot", "--plot draws with matplotlib")


def imported(module: str, extra: str, why: str) -> Any:
    """A module that is, or needs, an optional package.

    Raises:
        UsageError: it cannot be imported; says ``why`` it is needed, and how to install it.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # of whatever is installed under that name: anything
        how = places.to_install(extra)
        raise UsageError(f"{why}, which cannot be imported ({error}). To install it: {how}") from None
