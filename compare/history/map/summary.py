"""The map in a line per op: the fastest way over its cases, its speedup over the next way, its code size."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from compare.history.map.survey import Best, Place, is_about_kernels

Ranking = Literal["fastest", "within noise", "by case"]


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
    """One op.  All its figures are over the same cases: those in which `first` and `second` were both timed
    and launch overhead does not bind the fastest (where it binds all, over all)."""

    op: str
    cases: int
    of: int
    """Cases on record."""
    verdict: Ranking
    """``fastest``: one way is the fastest alone on more than half of the cases; ``within noise``: on more
    than half several ways are; ``by case``: neither."""
    first: Best
    """The way that is usually nearest to the fastest, with the implementation that is most often its best."""
    second: Best | None
    """The next way, likewise; None: there is one way only."""
    level: tuple[Best, ...]
    """The ways that are within noise of the fastest on more than half of the cases, the least code first."""
    lead: Spread | None
    """The speedup of the first way over the second: below 1 where the second is faster."""
    share: Spread | None
    """Share of the ceiling that the first way reaches."""
    alone: Mapping[str, int]
    """By way: on how many cases it is the fastest alone."""
    noise: int
    """On how many cases several ways are within noise of the fastest."""
    binds: str | None


def summaries(places: Iterable[Place]) -> list[Summary]:
    """A line for each op, in the order of the places."""
    by_op: dict[str, list[Place]] = {}
    for place in places:
        by_op.setdefault(place.op, []).append(place)
    return [_summary(op, mine) for op, mine in by_op.items()]


def _summary(op: str, places: Sequence[Place]) -> Summary:
    big = [place for place in places if is_about_kernels(place.ways[0].bound)] or places
    first, *others = _ranked([place.by_way for place in big])
    second = next((way for way in others if any({first, way} <= place.by_way.keys() for place in big)), None)
    counted = [place for place in big if {first, second or first} <= place.by_way.keys()]
    standings = [place.by_way for place in counted]
    mine = [standing[first] for standing in standings]
    other = [standing[second] for standing in standings] if second else []
    alone = Counter(place.leaders[0] for place in counted if len(place.leaders) == 1)
    noise = len(counted) - alone.total()
    many = len(counted) / 2
    leading = Counter(way for place in counted for way in place.leaders)
    level = [way for way, count in leading.most_common() if count > many]
    level += [way for way, _ in leading.most_common(2) if len(level) < 2 and way not in level]
    bests = [_usual([each[way] for each in standings if way in each]) for way in level]
    binds = Counter(best.bound.limit or best.bound.nearest for best in mine)
    return Summary(
        op,
        len(counted),
        len(places),
        "fastest" if alone[first] > many else "within noise" if noise > many else "by case",
        _usual(mine),
        _usual(other) if other else None,
        tuple(sorted(bests, key=lambda best: best.tokens if best.tokens is not None else float("inf"))),
        Spread.of([b.cold_us.median / a.cold_us.median for a, b in zip(mine, other, strict=False)]),
        Spread.of([best.share for best in mine if best.share is not None]),
        alone,
        noise,
        binds.most_common(1)[0][0],
    )


def _ranked(standings: Sequence[Mapping[str, Best]]) -> list[str]:
    """The ways by how far they are behind the fastest of each case, in the median and then on average; one
    that was timed on fewer than half of the cases is last."""

    def behind(way: str) -> tuple[float, float]:
        ratios = [
            standing[way].cold_us.median / min(best.cold_us.median for best in standing.values())
            for standing in standings
            if way in standing
        ]
        few = 2 * len(ratios) < len(standings)
        return (float("inf"),) * 2 if few else (statistics.median(ratios), statistics.fmean(ratios))

    return sorted(dict.fromkeys(way for standing in standings for way in standing), key=behind)


def _usual(bests: Sequence[Best]) -> Best:
    """Of a way's fastest implementations the most frequent one, as it stands on the last case it leads."""
    label = Counter(best.label for best in bests).most_common(1)[0][0]
    return [best for best in bests if best.label == label][-1]
