"""The crossover: the size of one dimension at which the fastest way changes, and what binds on each side.

At every size a way is represented by its best implementation.  The leaders are the fastest way and those
within noise of it (`figures.differs`).  Two sizes without a common leader enclose a change.  A coarse
geometric grid finds such pairs; bisection narrows them from both sides, until no round size is left between
the last size that one side leads and the first that the other leads.  That pair is the crossover's interval:
in between the ways are within noise, or no size was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from compare.model.op import Case, Op, UsageError, is_library, way_of
from compare.model.result import CaseComparison, Comparison, Options, Row
from compare.records import archive
from compare.timing import figures

GRID_FACTOR = 4
STEPS = 8
"""Sizes are multiples of an eighth of their power of two: round enough for any alignment, and a finer result
would reflect alignment."""
CLOSE = 1.25
"""Bisection times the implementations that came within this of their way's best at either end."""
MEMORY_SHARE = 8
"""A case may take at most 1/8 of the memory: checking and timing hold several copies."""


Bottleneck = Literal["bandwidth", "arithmetic", "launch"]


@dataclass(frozen=True)
class Bound:
    """What binds an implementation on a case."""

    limit: Bottleneck | None
    """None: not known."""
    nearest: Bottleneck | None
    """Bandwidth or arithmetic, by the measured ridge; None without ceilings."""
    share: float | None
    """The share of that ceiling."""


@dataclass(frozen=True)
class Standing:
    """How the ways stand at one size."""

    size: int
    best: dict[str, Row]
    """By way, fastest first: its fastest implementation."""
    leaders: frozenset[str]
    """The fastest way and those within noise of it; empty where nothing was timed."""
    comparison: CaseComparison


@dataclass(frozen=True)
class Crossover:
    op: str
    dim: str
    base: Case
    """The other dimensions, and the dtype."""
    standings: tuple[Standing, ...]
    """By growing size."""
    runs: tuple[Comparison, ...] = ()
    """The runs it was measured in; empty where it is from records."""
    recorded_on: str = ""
    """Device and date of the record; empty where it was measured."""
    interrupted: bool = False


def find(
    op: Op,
    dim: str,
    base: Case,
    options: Options,
    memory_bytes: int,
    run: Callable[[Options], Comparison],
) -> Crossover:
    """Measure sizes of ``dim`` until every change of the fastest way is enclosed.

    Args:
        op: what is computed.
        dim: the dimension that grows.
        base: the other dimensions and the dtype.
        options: as for a comparison; its cases are replaced.
        memory_bytes: of the device; larger cases are not tried.
        run: compares what its options ask for.
    """
    standings: dict[int, Standing] = {}
    runs: list[Comparison] = []
    sizes = grid(_swept(op, dim, base, memory_bytes))
    interrupted = False
    while sizes and not interrupted:
        size, *sizes = sizes
        only = options.only or _contenders(size, standings)
        each = replace(options, cases=(_sized(base, dim, size),), only=only, resources=False)
        try:
            comparison = run(each)
        except KeyboardInterrupt:
            interrupted = True
            break
        runs.append(comparison)
        interrupted = comparison.interrupted or not comparison.cases
        if comparison.cases:
            standings[size] = standing(size, comparison.cases[0])
            sizes = sizes or next_sizes(standings)
    ordered = tuple(standings[size] for size in sorted(standings))
    return Crossover(op.name, dim, base, ordered, tuple(runs), interrupted=interrupted)


def recorded(op: Op, dim: str, base: Case, root: Path = archive.RESULTS) -> Crossover:
    """The crossover of the sizes in ``results/``, on the device with most of them.

    Raises:
        UsageError: fewer than two of them are on record.
    """
    of_device: dict[str, dict[int, Standing]] = {"": {}}
    dates: dict[str, str] = {}
    for run in archive.runs_of(op.name, root):
        standings = of_device.setdefault(run.environment.device, {})
        for comparison in run.cases:
            case = Case.parse(comparison.case, op)
            if any(row.timing for row in comparison.rows) and _sized(base, dim, case[dim]) == case:
                standings.setdefault(case[dim], standing(case[dim], comparison))
                dates.setdefault(run.environment.device, run.created[:10])
    device, standings = max(of_device.items(), key=lambda item: len(item[1]))
    if len(standings) < 2:
        raise UsageError(
            f"--crossover {dim}: there is no GPU here, and results/ holds {len(standings)} size(s) of {dim} "
            f"for {base}. Name another --case, or run it on a machine with a GPU"
        )
    ordered = tuple(standings[size] for size in sorted(standings))
    return Crossover(op.name, dim, base, ordered, recorded_on=f"{device}, {dates[device]}")


# --------------------------------------------------------------------------- standings


def standing(size: int, case: CaseComparison) -> Standing:
    """The best of each way, and which of them lead."""
    best = best_of_ways(case)
    first = next(iter(best.values()), None)
    leaders = (way for way, row in best.items() if first and not figures.differs(first, row))
    return Standing(size, best, frozenset(leaders), case)


def best_of_ways(case: CaseComparison) -> dict[str, Row]:
    """By way, fastest first: its fastest implementation of those that compute in the baseline's precision.

    With its default parameters: those of ``--tune`` are no implementation that a user calls.
    """
    best: dict[str, Row] = {}
    left_out = {row.label for row in figures.unequal_terms(case, figures.baseline_of(case))}
    left_out |= {row.label for row in case.rows if figures.is_trial(row) or is_library(row.label)}
    for row in sorted(filter(figures.stands, case.rows), key=figures.cold_us):
        if math.isfinite(figures.cold_us(row)) and row.label not in left_out:
            best.setdefault(way_of(row.label), row)
    return best


def crossings(standings: Iterable[Standing]) -> list[list[Standing]]:
    """The closest pairs without a common leader, each with the sizes in between, which are within noise."""
    timed = sorted((each for each in standings if each.leaders), key=lambda each: each.size)
    changes: list[list[Standing]] = []
    first = 0
    for i, above in enumerate(timed):
        apart = [j for j in range(first, i) if timed[j].leaders.isdisjoint(above.leaders)]
        if apart:
            changes.append(timed[apart[-1] : i + 1])
            first = apart[-1] + 1  # none encloses another
    return changes


def bound(case: CaseComparison, row: Row) -> Bound:
    """What binds ``row``, which was timed.

    The ceiling of the case where it reaches `figures.FAR` of that; else launch, where the host limits calls
    back to back; else it is not known, and only the ceiling is given.
    """
    share = figures.share(case, row)
    nearest: Bottleneck = "arithmetic" if figures.compute_bound(case) else "bandwidth"
    if share is not None and share >= figures.FAR:
        return Bound(nearest, nearest, share)
    limit: Bottleneck | None = "launch" if figures.launch_bound(row) else None
    return Bound(limit, None if share is None else nearest, share)


def _contenders(size: int, seen: Mapping[int, Standing]) -> tuple[str, ...]:
    """Between two timed sizes: the labels worth timing; empty elsewhere, as none is left out."""
    below, above = ([s for s in seen if s < size], [s for s in seen if s > size])
    if not below or not above:
        return ()
    labels: dict[str, None] = {}
    for end in (seen[max(below)], seen[min(above)]):
        for row in end.comparison.rows:
            best = end.best.get(way_of(row.label))
            if best is not None and figures.cold_us(row) <= CLOSE * figures.cold_us(best):
                labels[row.label] = None
    return tuple(labels)


# --------------------------------------------------------------------------- sizes


def check(op: Op, dim: str) -> None:
    """Whether ``dim`` is a dimension of ``op``; a `UsageError` if not."""
    if dim not in op.dims:
        raise UsageError(f"--crossover {dim}: {op.name} has the dimension(s) {', '.join(op.dims)}")


def grid(sizes: Sequence[int]) -> list[int]:
    """From the smallest to the largest, each `GRID_FACTOR` times the one before."""
    low, high = max(1, min(sizes)), max(sizes)
    steps = [low]
    while steps[-1] * GRID_FACTOR < high:
        steps.append(steps[-1] * GRID_FACTOR)
    return [*steps, high] if high > low else steps


def middle(low: int, high: int) -> int | None:
    """A round size near the geometric mean, strictly between the two; None where there is none."""
    mean = math.sqrt(low * high)
    step = max(1, 2 ** math.floor(math.log2(mean)) // STEPS)
    near = round(mean / step) * step
    return next((size for size in (near, near - step, near + step) if low < size < high), None)


def next_sizes(standings: Mapping[int, Standing]) -> list[int]:
    """Round sizes that narrow the changes among those tried; none if every change is as narrow as it gets."""
    # Sizes between two ends are within noise: the next ones are beside either end.
    gaps = (gap for sizes in crossings(standings.values()) for gap in (sizes[:2], sizes[-2:]))
    middles = {middle(low.size, high.size) for low, high in gaps}
    return sorted(size for size in middles if size is not None and size not in standings)


def _swept(op: Op, dim: str, base: Case, memory_bytes: int) -> list[int]:
    """Swept sizes of ``dim`` that fit: those beside the same other sizes if there are two, else all."""
    same = {case[dim] for case in op.cases.sweep if _sized(case, dim, 1) == _sized(base, dim, 1)}
    sizes = same if len(same) > 1 else {case[dim] for case in op.cases.sweep}
    sizes |= {base[dim]}
    fitting = [
        s for s in sizes if s > 0 and op.cost(_sized(base, dim, s)).bytes * MEMORY_SHARE <= memory_bytes
    ]
    if len(fitting) < 2:
        raise UsageError(
            f"--crossover {dim}: fewer than two sizes of {base} fit this device's memory. "
            "Make the other dimensions of --case smaller"
        )
    return sorted(fitting)


def _sized(base: Case, dim: str, size: int) -> Case:
    dims = tuple((name, size if name == dim else other) for name, other in base.dims)
    return replace(base, dims=dims)
