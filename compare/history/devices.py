"""Ways across devices: only ratios of one device's own times stand side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from compare.history.map import Map, Place
from compare.model.op import UsageError, is_library
from compare.model.result import Comparison, Environment
from compare.timing import figures

PAIRS = (("triton", "cuda"), ("triton", "torch"), ("cuda", "torch"))
"""The first way's speedup over the second's."""


@dataclass(frozen=True)
class Speedup:
    """Of one way's fastest implementation over another's, on one device."""

    median: float
    lowest: float
    highest: float
    within_noise: bool
    """On more than half of the cases, or by no more than 2% in the median."""
    changed: bool
    """A source has changed since."""


@dataclass(frozen=True)
class Across:
    """An op on the cases that every device has on record."""

    op: str
    cases: int
    speedups: dict[tuple[str, str], tuple[Speedup | None, ...]]
    """By pair of ways, one for each device; None: a way is not on record there."""


@dataclass(frozen=True)
class Devices:
    """What is on record of several devices."""

    names: tuple[str, ...]
    environments: tuple[Environment, ...]
    """Of the newest run of each."""
    ops: tuple[Across, ...]
    alone: tuple[str, ...]
    """Ops without a case that all devices have."""


def side_by_side(maps: Sequence[Map], runs: Sequence[Comparison]) -> Devices:
    """What several devices' maps have in common.

    Args:
        maps: one for each device.
        runs: of all of them.

    Raises:
        UsageError: they are of one device, or have no case in common.
    """
    names = tuple(chart.device for chart in maps)
    if len(names) < 2:
        raise UsageError(
            f"--devices compares devices, and these records are of {', '.join(names)} alone. Record on "
            "another one, or name more with --records"
        )
    places = [{(place.op, place.case): place for place in chart.places} for chart in maps]
    common = [key for key in places[0] if all(key in others for others in places)]
    ops = dict.fromkeys(op for op, _ in common)
    if not ops:
        raise UsageError(f"--devices: no case is on record on each of {', '.join(names)}")
    across = [_across(op, [[each[key] for key in common if key[0] == op] for each in places]) for op in ops]
    newest = {run.environment.device: run for run in sorted(runs, key=lambda run: run.created)}
    alone = {op for each in places for op, _ in each} - ops.keys()
    return Devices(
        names, tuple(newest[name].environment for name in names), tuple(across), tuple(sorted(alone))
    )


def _across(op: str, places: Sequence[Sequence[Place]]) -> Across:
    speedups = {pair: tuple(_speedup(mine, *pair) for mine in places) for pair in PAIRS}
    return Across(op, len(places[0]), speedups)


def _speedup(places: Sequence[Place], first: str, second: str) -> Speedup | None:
    both = [place for place in places if {first, second} <= place.by_way.keys()]
    if not both:
        return None
    bests = [(place.by_way[first], place.by_way[second]) for place in both]
    ratios = [theirs.cold_us.median / mine.cold_us.median for mine, theirs in bests]
    noise = sum({first, second} <= {*place.leaders} for place in both)
    return Speedup(
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        2 * noise > len(both) or figures.near(statistics.median(ratios)),
        any(best.changed for pair in bests for best in pair if not is_library(best.label)),
    )
