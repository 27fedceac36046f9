"""The records of one device, op by op and case by case: the best of each way, and effort against speed.

Nothing is measured here.  A speedup is from pairs of samples of the same round, or from two medians
(`statistics.between`) where the two rows were recorded in different runs.
"""

from __future__ import annotations

import statistics as plain
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compare import registry
from compare.code_size.hashes import source_hash
from compare.history import crossover
from compare.history.crossover import Bound
from compare.history.map import reading
from compare.model.op import UsageError, is_library
from compare.model.result import CodeSize, Comparison, Estimate, Row
from compare.records import archive
from compare.records.archive import Recorded, newest
from compare.timing import figures
from compare.tuning.matching import registered_as


@dataclass(frozen=True)
class Best:
    """The fastest implementation of a way on one case."""

    way: str
    label: str
    cold_us: Estimate
    share: float | None
    """Of the ceiling that binds the case: see `Place.share_of`."""
    bound: Bound
    lines: int | None
    """Of own code and the op's helpers; None: not counted."""
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


def survey(
    runs: Sequence[Comparison],
    hashes: Mapping[tuple[str, str], str],
    ops: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Map:
    """The map of what ``runs`` have recorded.

    Args:
        runs: of one device.
        hashes: of the sources as they are now, by op and label.
        ops: only these; none means all.
        only: glob patterns over labels; none means all.

    Raises:
        UsageError: they are of several devices, or hold no times of these ops.
    """
    reading.check_device(runs)
    runs = sorted(
        (run for run in runs if not ops or run.op in ops), key=lambda run: run.created, reverse=True
    )
    by_case: dict[tuple[str, str], list[Recorded]] = {}
    for (op, case, _), recorded in newest(runs).items():
        by_case.setdefault((op, case), []).append(recorded)
    charts = (_Chart(op, rows, only) for (op, _), rows in sorted(by_case.items(), key=lambda one: one[0][0]))
    charted = [chart for chart in charts if chart.best]
    if not charted:
        asked = " ".join(["map", *ops, *(f"--only {pattern}" for pattern in only)])
        raise UsageError(f"{asked}: these records hold no times of that: it was not timed, or not recorded")
    sizes = {(run.op, label): size for run in reversed(runs) for label, size in run.code_sizes.items()}
    stale = {
        (chart.op, label): None
        for chart in charted
        for label, recorded in chart.rows.items()
        if hashes.get((chart.op, label)) != recorded.row.source_hash
    }
    dates = sorted(recorded.run.created[:10] for chart in charted for recorded in chart.rows.values())
    points = (
        point
        for op in dict.fromkeys(chart.op for chart in charted)
        for point in _points([chart for chart in charted if chart.op == op], sizes, stale)
    )
    return Map(
        runs[0].environment.device,
        tuple(dict.fromkeys((dates[0], dates[-1]))),
        tuple(_place(chart, sizes, stale) for chart in charted),
        tuple(points),
        tuple(stale),
    )


Sizes = Mapping[tuple[str, str], CodeSize]
Stale = Collection[tuple[str, str]]


class _Chart:
    """The records of one case: the newest row of every implementation, in the baseline's precision."""

    def __init__(self, op: str, recorded: Sequence[Recorded], only: Sequence[str]) -> None:
        measured = [
            replace(each, row=replace(each.row, recorded=archive.provenance(each, each.row.source_hash)))
            for each in recorded
            if not each.row.recorded  # that is another run's, and maybe another device's
        ]
        self.op = op
        self.case = replace(measured[0].comparison, rows=tuple(each.row for each in measured))
        unequal = {row.label for row in figures.unequal_terms(self.case, figures.baseline_of(self.case))}
        self.rows = {
            each.row.label: each
            for each in measured
            if registered_as(each.row.label) == each.row.label
            and each.row.label not in unequal
            and each.row.status == "ok"
            and each.row.timing
            and each.row.timing.cold_us
            and registry.is_among(each.row.label, only)
        }
        kept = replace(self.case, rows=tuple(recorded.row for recorded in self.rows.values()))
        best = crossover.best_of_ways(kept)
        self.best = {way: self.rows[row.label] for way, row in best.items()}

    def bound(self, recorded: Recorded) -> Bound:
        return crossover.bound(recorded.row, self.case.cost, recorded.comparison.ceilings)

    @property
    def fastest(self) -> Bound:
        """The bound of the fastest."""
        return self.bound(next(iter(self.best.values())))

    def share(self, recorded: Recorded) -> float | None:
        """Of the ceiling that binds the case by its measured ridge, as reached in the row's own run."""
        of = figures.share_of_product if figures.compute_bound(self.case) else figures.share_of_copy
        return of(recorded.comparison, recorded.row)


def _place(chart: _Chart, sizes: Sizes, stale: Stale) -> Place:
    first, *others = chart.best.values()
    apart = {way: figures.differs(first.row, other.row) for way, other in list(chart.best.items())[1:]}
    return Place(
        chart.op,
        chart.case.case,
        figures.share_of(chart.case),
        tuple(_best(chart, way, recorded, sizes, stale) for way, recorded in chart.best.items()),
        (next(iter(chart.best)), *(way for way, differs in apart.items() if not differs)),
        figures.ratio(first.row, others[0].row) if others else None,
        next(iter(apart.values()), False),
        rounds=(figures.few(first.row, others[0].row) or None) if others else None,
        across=bool(others) and first.row.run != others[0].row.run,
    )


def _best(chart: _Chart, way: str, recorded: Recorded, sizes: Sizes, stale: Stale) -> Best:
    label = recorded.row.label
    size = sizes.get((chart.op, label))
    return Best(
        way,
        label,
        replace(_cold_us(recorded.row), samples=()),
        chart.share(recorded),
        chart.bound(recorded),
        size.lines if size else None,
        size.tokens if size else None,
        (chart.op, label) in stale,
    )


def _cold_us(row: Row) -> Estimate:
    assert row.timing is not None
    assert row.timing.cold_us is not None
    return row.timing.cold_us


def is_about_kernels(fastest: Bound) -> bool:
    """Whether something else than launch overhead binds the fastest; else no kernel matters."""
    return fastest.limit != "launch"


# --------------------------------------------------------------------------- effort against speed


def _points(charts: Sequence[_Chart], sizes: Sizes, stale: Stale) -> list[Point]:
    """Of one op: every implementation, by growing effort."""
    charts = [chart for chart in charts if is_about_kernels(chart.fastest)] or list(charts)
    found = []
    for label in dict.fromkeys(label for chart in charts for label in chart.rows):
        op, mine = charts[0].op, [chart for chart in charts if label in chart.rows]
        shares = [share for chart in mine if (share := chart.share(chart.rows[label])) is not None]
        size = sizes.get((op, label))
        if shares and size:
            found.append(
                Point(
                    op,
                    label,
                    size.lines,
                    size.tokens,
                    plain.median(shares),
                    min(shares),
                    max(shares),
                    len(shares),
                    len(charts),
                    plain.median(figures.detectable(chart.rows[label].row) for chart in mine),
                    front=False,
                    changed=(op, label) in stale,
                )
            )
    return list(with_front(found))


def with_front(points: Iterable[Point]) -> Iterator[Point]:
    """Points by growing effort, those of the Pareto front marked: each reaches more than all before it, by
    more than noise.  A library baseline is not on it, as its code is in a library."""
    highest = 0.0
    for point in sorted(points, key=lambda point: (point.tokens, -point.share)):
        counts = not is_library(point.label)
        front = counts and point.share > highest * (1 + point.least)
        highest = max(highest, point.share if counts else 0.0)
        yield replace(point, front=front)


def hashes(ops: Iterable[str]) -> dict[tuple[str, str], str]:
    """The source hash of every implementation of these ops, as they are now."""
    here = [op for op in dict.fromkeys(ops) if op in registry.op_names()]
    return {(op, impl.label): source_hash(impl) for op in here for impl in registry.implementations(op)}
