"""The map: the fastest way on every recorded op and case, its speedup and its code size.

Nothing is measured here.  A speedup is from pairs of samples of the same round, or from two medians
(`statistics.between`) where the two rows were recorded in different runs.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from compare import registry
from compare.history import crossover, reading
from compare.history.crossover import Bound
from compare.history.recorded import merged
from compare.model.op import UsageError, is_library
from compare.model.result import CaseComparison, CodeSize, Comparison, Estimate, Row
from compare.records.archive import changed_since
from compare.timing import figures
from compare.tuning.matching import registered_as

Ranking = Literal["fastest", "within 2%", "within noise", "by case"]


@dataclass(frozen=True)
class Best:
    """The fastest implementation of a way on one case."""

    way: str
    label: str
    """Of cupy and pybind within noise ``cuda.VARIANT``, with the lines of cupy's."""
    cold_us: Estimate
    share: float | None
    """Of the ceiling that binds the case by its measured ridge: see `Place.share_of`."""
    bound: Bound
    lines: int | None
    """Of code to read; None: not counted."""
    tokens: int | None
    changed: bool
    """Its source has changed since."""


@dataclass(frozen=True)
class Place:
    """One op on one case."""

    op: str
    case: str
    share_of: str
    """``copy bandwidth`` or ``peak (measured)``."""
    ways: tuple[Best, ...]
    """Fastest first."""
    leaders: tuple[str, ...]
    """The fastest way, and those within noise of it."""
    lead: Estimate | None
    """The speedup of the first over the second; above 1.  None: there is no second."""
    differs: bool
    """Whether that is a difference: its interval excludes 1."""
    rounds: int | None
    """The rounds it rests on, where they are too few for an interval."""
    across: bool
    """The two were recorded in different runs."""

    @property
    def second(self) -> Best | None:
        return self.ways[1] if len(self.ways) > 1 else None

    @property
    def about_kernels(self) -> bool:
        """Whether something else than launch overhead binds the fastest; else no kernel matters."""
        return self.ways[0].bound.limit != "launch"

    @property
    def by_way(self) -> dict[str, Best]:
        return {best.way: best for best in self.ways}


@dataclass(frozen=True)
class Point:
    """One implementation: its code size, and the share of the ceiling that it reaches."""

    op: str
    label: str
    lines: int
    tokens: int
    share: float
    """Of the ceiling, the median over `cases`,"""
    lowest: float
    highest: float
    cases: int
    """On how many it was timed, of the cases in which launch overhead does not bind the fastest,"""
    of: int
    """and how many of these there are."""
    least: float
    """The least relative difference that counts there."""
    front: bool
    """On the Pareto front: no implementation with as few tokens reaches as much."""
    changed: bool


@dataclass(frozen=True)
class Map:
    device: str
    dates: tuple[str, ...]
    """Of the oldest and the newest run; one if they are the same."""
    places: tuple[Place, ...]
    points: tuple[Point, ...]
    """By op, by growing effort."""
    changed: tuple[tuple[str, str], ...]
    """Op and label of every implementation whose source has changed since it was recorded."""


@dataclass(frozen=True)
class Summary:
    """One op.  All its figures are over the same cases: those in which `first` and `second` were both timed
    and launch overhead does not bind the fastest (where it binds all, over all)."""

    op: str
    cases: int
    of: int
    """Cases on record."""
    verdict: Ranking
    """``fastest``: one way is the fastest alone on more than half of the cases; ``within 2%``: it is, by no
    more than that in the median; ``within noise``: on more than half several ways are; ``by case``: none of
    these."""
    first: Best
    """The way that is usually nearest to the fastest, with the implementation that is most often its best."""
    second: Best | None
    """The next way, likewise; None: there is one way only."""
    level: tuple[Best, ...]
    """The ways that are within noise of the fastest on more than half of the cases, the least code first."""
    leads: tuple[float, ...]
    """The speedup of the first way over the second on each case: below 1 where the second is faster."""
    share: float | None
    """Share of the ceiling that the first way reaches: the median."""
    alone: Counter[str]
    """By way: on how many cases it is the fastest alone."""
    noise: int
    """On how many cases several ways are within noise of the fastest."""
    binds: str | None


# --------------------------------------------------------------------------- case by case


def survey(runs: Sequence[Comparison], ops: Sequence[str] = (), only: Sequence[str] = ()) -> Map:
    """The map of what ``runs`` have recorded.

    Args:
        runs: of one device.
        ops: only these; none means all.
        only: glob patterns over labels; none means all.

    Raises:
        UsageError: they are of several devices, or hold no times of these ops.
    """
    reading.check_device(runs)
    runs = sorted(runs, key=lambda run: run.created, reverse=True)
    places: list[Place] = []
    points: list[Point] = []
    rows: dict[tuple[str, str], list[Row]] = {}
    for op in sorted({run.op for run in runs if not ops or run.op in ops}):
        comparison = merged([run for run in runs if run.op == op])
        if comparison is None:
            continue
        cases = {case.case: _counted(case, only) for case in comparison.cases}
        newest = dict.fromkeys(case.case for run in runs if run.op == op for case in run.cases)
        charted = [cases[name] for name in newest if name in cases and crossover.best_of_ways(cases[name])]
        sizes = comparison.code_sizes
        mine = [_place(op, case, sizes) for case in charted]
        about_kernels = [case for case, place in zip(charted, mine, strict=True) if place.about_kernels]
        places += mine
        points += _points(op, about_kernels or charted, sizes)
        for row in (row for case in charted for row in case.rows):
            rows.setdefault((op, row.label), []).append(row)
    if not places:
        command = " ".join(["map", *ops, *(f"--only {pattern}" for pattern in only)])
        raise UsageError(f"{command}: these records hold no times of that: it was not timed, or not recorded")
    dates = sorted(row.run[:10] for each in rows.values() for row in each)
    return Map(
        runs[0].environment.device,
        tuple(dict.fromkeys((dates[0], dates[-1]))),
        tuple(places),
        tuple(points),
        tuple(key for key, each in rows.items() if any(map(changed_since, each))),
    )


def _counted(case: CaseComparison, only: Sequence[str]) -> CaseComparison:
    """With the correct and timed rows in the baseline's precision, without those of ``--tune``."""
    unequal = {row.label for row in figures.unequal_terms(case, figures.baseline_of(case))}
    rows = (
        row
        for row in case.rows
        if row.status == "ok"
        and row.timing
        and row.timing.cold_us
        and row.label not in unequal
        and registered_as(row.label) == row.label
        and registry.is_among(row.label, only)
    )
    return replace(case, rows=tuple(rows))


def _place(op: str, case: CaseComparison, sizes: Mapping[str, CodeSize]) -> Place:
    best = crossover.best_of_ways(case)
    first, *others = best.values()
    second = others[0] if others else None
    return Place(
        op,
        case.case,
        figures.share_of(case),
        tuple(_best(way, case, row, sizes) for way, row in best.items()),
        tuple(way for way, row in best.items() if not figures.differs(first, row)),
        figures.ratio(first, second) if second else None,
        differs=second is not None and figures.differs(first, second),
        rounds=(figures.few(first, second) or None) if second else None,
        across=second is not None and first.run != second.run,
    )


def _best(way: str, case: CaseComparison, row: Row, sizes: Mapping[str, CodeSize]) -> Best:
    assert row.timing is not None
    assert row.timing.cold_us is not None
    label, shown = figures.represented(case, row)
    size = sizes.get(shown.label)
    return Best(
        way,
        label,
        replace(row.timing.cold_us, samples=()),
        figures.share(case, row),
        crossover.bound(case, row),
        size.lines if size else None,
        size.tokens if size else None,
        changed_since(row),
    )


def _points(op: str, cases: Sequence[CaseComparison], sizes: Mapping[str, CodeSize]) -> Iterator[Point]:
    """Every implementation with a code size, by growing effort."""
    points = []
    for label in dict.fromkeys(row.label for case in cases for row in case.rows):
        mine = [(case, row) for case in cases if (row := figures.row_of(case, label))]
        shares = [share for case, row in mine if (share := figures.share(case, row)) is not None]
        if shares and label in sizes:
            point = Point(
                op,
                label,
                sizes[label].lines,
                sizes[label].tokens,
                statistics.median(shares),
                min(shares),
                max(shares),
                len(shares),
                len(cases),
                statistics.median(figures.detectable(row) for _, row in mine),
                front=False,
                changed=any(changed_since(row) for _, row in mine),
            )
            points.append(point)
    return with_front(points)


def with_front(points: Iterable[Point]) -> Iterator[Point]:
    """Points by growing effort, those of the Pareto front marked: each reaches more than all before it, by
    more than noise.  A library baseline is not on it, as its code is in a library."""
    highest = 0.0
    for point in sorted(points, key=lambda point: (point.tokens, -point.share)):
        counts = not is_library(point.label)
        front = counts and point.share > highest * (1 + point.least)
        highest = max(highest, point.share if counts else 0.0)
        yield replace(point, front=front)


# --------------------------------------------------------------------------- op by op


def summaries(places: Iterable[Place]) -> list[Summary]:
    """A line for each op, in the order of the places."""
    return [_summary(op, list(mine)) for op, mine in groupby(places, lambda place: place.op)]


def _summary(op: str, places: Sequence[Place]) -> Summary:
    big = [place for place in places if place.about_kernels] or places
    first, *others = _ranked(big)
    second = next((way for way in others if any({first, way} <= place.by_way.keys() for place in big)), None)
    counted = [place for place in big if {first, second or first} <= place.by_way.keys()]
    alone = Counter(place.leaders[0] for place in counted if len(place.leaders) == 1)
    leading = Counter(way for place in counted for way in place.leaders).most_common()
    noise, many = len(counted) - alone.total(), len(counted) / 2
    level = [_usual(counted, way) for place, (way, count) in enumerate(leading) if count > many or place < 2]
    mine = [place.by_way[first] for place in counted]
    shares = [best.share for best in mine if best.share is not None]
    binds = Counter(best.bound.limit or best.bound.nearest for best in mine)
    theirs = [place.by_way[second].cold_us.median for place in counted] if second else []
    leads = tuple(us / best.cold_us.median for best, us in zip(mine, theirs, strict=False))
    verdict: Ranking = "fastest" if alone[first] > many else "within noise" if noise > many else "by case"
    if verdict == "fastest" and leads and figures.near(statistics.median(leads)):
        verdict = "within 2%"
    return Summary(
        op,
        len(counted),
        len(places),
        verdict,
        _usual(counted, first),
        _usual(counted, second) if second else None,
        tuple(sorted(level, key=lambda best: best.tokens if best.tokens is not None else float("inf"))),
        leads,
        statistics.median(shares) if shares else None,
        alone,
        noise,
        binds.most_common(1)[0][0],
    )


def _ranked(places: Sequence[Place]) -> list[str]:
    """The ways by how far they are behind the fastest of each case, in the median and then on average; one
    that was timed on fewer than half of the cases is last."""
    ratios: dict[str, list[float]] = {}
    for place in places:
        for best in place.ways:
            ratios.setdefault(best.way, []).append(best.cold_us.median / place.ways[0].cold_us.median)

    def behind(way: str) -> tuple[bool, float, float]:
        mine = ratios[way]
        return 2 * len(mine) < len(places), statistics.median(mine), statistics.fmean(mine)

    return sorted(ratios, key=behind)


def _usual(places: Sequence[Place], way: str) -> Best:
    """Of a way's fastest implementations the most frequent one, as it stands on the last case it leads."""
    bests = [place.by_way[way] for place in places if way in place.by_way]
    label = Counter(best.label for best in bests).most_common(1)[0][0]
    return [best for best in bests if best.label == label][-1]
