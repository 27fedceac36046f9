"""The map in a line an op: the way that is fastest over its cases, by how much, and what it takes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compare.history.map.survey import Best, Place, is_about_kernels


@dataclass(frozen=True)
class Spread:
    """A figure over several cases."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Summary:
    """One op over the cases in which launching does not bind the fastest; over all, if there is none."""

    op: str
    cases: int
    of: int
    """How many are on record."""
    first: Best
    """Of the way that is fastest, the implementation that is its best most often, on one of these cases;"""
    second: Best | None
    """of the next way, the same.  None: there is one way only."""
    lead: Spread | None
    """How many times as fast the first way is as the next: below 1 where the next is the faster."""
    share: Spread | None
    """Of the ceiling, what the first way reaches."""
    alone: int
    """On how many of the cases the first way is the fastest alone,"""
    level: int
    """and on how many it and others cannot be told apart."""
    binds: str | None


def summaries(places: Iterable[Place]) -> list[Summary]:
    """A line for each op, in the order of the places."""
    by_op: dict[str, list[Place]] = {}
    for place in places:
        by_op.setdefault(place.op, []).append(place)
    return [_summary(op, mine) for op, mine in by_op.items()]


def _summary(op: str, places: Sequence[Place]) -> Summary:
    big = [place for place in places if is_about_kernels(place.ways[0].bound)] or places
    standings = [{best.way: best for best in place.ways} for place in big]
    first, *others = sorted(
        dict.fromkeys(way for standing in standings for way in standing),
        key=lambda way: _rank(way, standings),
    )
    second = others[0] if others else None
    both = [standing for standing in standings if first in standing and second in standing]
    mine = [standing[first] for standing in standings if first in standing]
    binds = Counter(best.bound.limit or best.bound.nearest for best in mine)
    return Summary(
        op,
        len(big),
        len(places),
        _usual(mine),
        _usual([standing[second] for standing in standings if second in standing]) if second else None,
        Spread.of([each[second].cold_us.median / each[first].cold_us.median for each in both])
        if second
        else None,
        Spread.of([best.share for best in mine if best.share is not None]),
        sum(place.leaders == (first,) for place in big),
        sum(first in place.leaders and len(place.leaders) > 1 for place in big),
        binds.most_common(1)[0][0],
    )


def _rank(way: str, standings: Sequence[dict[str, Best]]) -> tuple[float, float]:
    """How far a way is behind each case's fastest, usually and on the whole; one of few cases is last."""
    behind = [
        standing[way].cold_us.median / min(best.cold_us.median for best in standing.values())
        for standing in standings
        if way in standing
    ]
    if 2 * len(behind) < len(standings):
        return float("inf"), float("inf")
    return statistics.median(behind), statistics.fmean(behind)


def _usual(bests: Sequence[Best]) -> Best:
    """Of a way's fastest implementations the most frequent one, as it stands on the last case it leads."""
    label = Counter(best.label for best in bests).most_common(1)[0][0]
    return [best for best in bests if best.label == label][-1]
