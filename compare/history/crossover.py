"""The crossover: the size of one dimension at which the fastest way changes, and what binds on each side.

At every size a way is represented by its best implementation.  The leaders are the fastest way and those
within noise of it (`figures.differs`).  Two sizes without a common leader enclose a change.  A coarse
geometric grid finds such pairs; bisection narrows them from both sides, until no round size is left between
the last size that one side leads and the first that the other leads.  That pair is the crossover's interval:
in between the ways are within noise, or no size was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from compare.model.op import Case, Cost, Op, UsageError, is_library, way_of
from compare.model.result import CaseComparison, Ceilings, Comparison, Options, Row
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
BINDS = 0.6
"""The share of its ceiling from which bandwidth or arithmetic binds."""


Bottleneck = Literal["bandwidth", "arithmetic", "launch"]


@dataclass(frozen=True)
class Bound:
    """What binds an implementation on a case."""

    limit: Bottleneck | None
    """None: not known."""
    nearest: Bottleneck | None
    """Bandwidth or arithmetic, whichever ceiling is closer; None without ceilings."""
    share: float | None
    """The share of that ceiling."""
    launch_us: float
    """Launch overhead (host)."""


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
class Crossing:
    """Between these two the fastest way changes."""

    below: Standing
    above: Standing


@dataclass(frozen=True)
class Crossover:
    op: str
    dim: str
    base: Case
    """The other dimensions, and the dtype."""
    standings: tuple[Standing, ...]
    """By growing size."""
    crossings: tuple[Crossing, ...]
    runs: tuple[Comparison, ...]
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
    leaders: dict[int, frozenset[str]] = {}
    runs: list[Comparison] = []
    sizes = grid(_swept(op, dim, base, memory_bytes))
    interrupted = False
    while sizes and not interrupted:
        size, *sizes = sizes
        only = options.only or _contenders(size, standings)
        case = _sized(base, dim, size)
        try:
            comparison = run(replace(options, cases=(case,), only=only, resources=False))
        except KeyboardInterrupt:
            interrupted = True
            break
        runs.append(comparison)
        interrupted = comparison.interrupted
        if comparison.cases:
            standings[size] = standing(size, comparison.cases[0])
        leaders[size] = standings[size].leaders if size in standings else frozenset()
        sizes = sizes or next_sizes(leaders)
    ordered = tuple(standings[size] for size in sorted(standings))
    return Crossover(op.name, dim, base, ordered, crossings(ordered), tuple(runs), interrupted=interrupted)


def recorded(op: Op, dim: str, base: Case, root: Path = archive.RESULTS) -> Crossover:
    """The crossover of the sizes in ``results/``, on the device recorded last.

    Raises:
        UsageError: fewer than two of them are on record.
    """
    found: dict[int, Standing] = {}
    origin = ""
    for run in archive.runs_of(op.name, root):
        here = f"{run.environment.device}, {run.created[:10]}"
        if origin and not origin.startswith(f"{run.environment.device}, "):
            continue
        for comparison in run.cases:
            case = Case.parse(comparison.case, op)
            if _sized(base, dim, case[dim]) == case and figures.timed_cases(
                replace(run, cases=(comparison,))
            ):
                found.setdefault(case[dim], standing(case[dim], comparison))
                origin = origin or here
    if len(found) < 2:
        raise UsageError(
            f"--crossover {dim}: there is no GPU here, and results/ holds {len(found)} size(s) of {dim} "
            f"for {base}. Name another --case, or run it on a machine with a GPU"
        )
    standings = tuple(found[size] for size in sorted(found))
    return Crossover(op.name, dim, base, standings, crossings(standings), (), recorded_on=origin)


# --------------------------------------------------------------------------- standings


def standing(size: int, case: CaseComparison) -> Standing:
    """The best of each way, and which of them lead."""
    best = best_of_ways(case)
    first = next(iter(best.values()), None)
    leaders = (way for way, row in best.items() if first and not figures.differs(first, row))
    return Standing(size, best, frozenset(leaders), case)


def best_of_ways(case: CaseComparison) -> dict[str, Row]:
    """By way, fastest first: its fastest implementation of those that compute in the baseline's precision."""
    best: dict[str, Row] = {}
    unequal = {row.label for row in figures.unequal_terms(case, figures.baseline_of(case))}
    for row in sorted(case.rows, key=figures.cold_us):
        if is_library(row.label):
            continue
        if row.status == "ok" and math.isfinite(figures.cold_us(row)) and row.label not in unequal:
            best.setdefault(way_of(row.label), row)
    return best


def crossings(standings: Sequence[Standing]) -> tuple[Crossing, ...]:
    """The closest pairs without a common leader."""
    timed = [standing for standing in standings if standing.leaders]
    pairs = _apart([standing.leaders for standing in timed])
    return tuple(Crossing(timed[below], timed[above]) for below, above in pairs)


def bound(row: Row, cost: Cost, ceilings: Ceilings | None) -> Bound:
    """What binds ``row``.

    Bandwidth or arithmetic where `BINDS` of its ceiling is reached, the higher share of the two; else launch,
    where launch overhead exceeds GPU time; else it is not known, and the nearest of the two is given.
    """
    assert row.timing is not None
    assert row.timing.cold_us is not None
    cold_us = row.timing.cold_us.median
    shares: dict[Bottleneck, float] = {}
    if ceilings is not None:
        shares["bandwidth"] = cost.bytes / cold_us / 1e3 / max(ceilings.copy_gbs, ceilings.read_gbs)
        # A matmul in lower precision bounds only what computes in that precision.
        own = ceilings.product_tflops if row.accumulator == "fp32" else None
        best = own or ceilings.matmul_tflops
        if best:
            shares["arithmetic"] = cost.flops / cold_us / 1e6 / best
    nearest = max(shares, key=lambda limit: shares[limit], default=None)
    share = shares[nearest] if nearest else None
    launch_us = row.timing.launch_us.median if row.timing.launch_us else 0.0
    if share is not None and share >= BINDS:
        return Bound(nearest, nearest, share, launch_us)
    return Bound("launch" if launch_us > cold_us else None, nearest, share, launch_us)


def binding(row: Row, cost: Cost, ceilings: Ceilings | None) -> str:
    """`bound` in words, with the figure."""
    found = bound(row, cost, ceilings)
    of = "measured bandwidth" if found.nearest == "bandwidth" else "peak (measured)"
    if found.limit == "launch":
        return f"launch overhead binds ({found.launch_us:.3g} µs)"
    if found.nearest is None:
        return "the bound is not known"
    how = "binds," if found.limit else "is nearest, at"
    return f"{found.nearest} {how} {found.share:.0%} of {of}"


def _contenders(size: int, seen: dict[int, Standing]) -> tuple[str, ...]:
    """Between two timed sizes: the labels worth timing; empty elsewhere, as none is left out."""
    below = max((s for s in seen if s < size), default=None)
    above = min((s for s in seen if s > size), default=None)
    if below is None or above is None:
        return ()
    labels: dict[str, None] = {}
    for end in (seen[below], seen[above]):
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
    found = [low]
    while found[-1] * GRID_FACTOR < high:
        found.append(found[-1] * GRID_FACTOR)
    return [*found, high] if high > low else found


def middle(low: int, high: int) -> int | None:
    """A round size near the geometric mean, strictly between the two; None where there is none."""
    wanted = math.sqrt(low * high)
    step = max(1, 2 ** math.floor(math.log2(wanted)) // STEPS)
    near = round(wanted / step) * step
    return next((size for size in (near, near - step, near + step) if low < size < high), None)


def next_sizes(leaders: Mapping[int, frozenset[str]]) -> list[int]:
    """Round sizes that narrow the changes among those tried; none if every change is as narrow as it gets.

    Args:
        leaders: by size; empty where nothing was timed.
    """
    known = sorted(size for size, ways in leaders.items() if ways)
    # Sizes between two ends are within noise: the next ones are beside either end.
    gaps = (i for below, above in _apart([leaders[size] for size in known]) for i in (below, above - 1))
    middles = {middle(known[i], known[i + 1]) for i in gaps}
    return sorted(size for size in middles if size is not None and size not in leaders)


def _apart(leaders: Sequence[frozenset[str]]) -> list[tuple[int, int]]:
    """The closest pairs, by index, without a common leader; none encloses another."""
    found: list[tuple[int, int]] = []
    for above in range(len(leaders)):
        apart = (below for below in reversed(range(above)) if leaders[below].isdisjoint(leaders[above]))
        below = next(apart, None)
        if below is not None and (not found or below > found[-1][0]):
            found.append((below, above))
    return found


def _swept(op: Op, dim: str, base: Case, memory_bytes: int) -> list[int]:
    """Swept sizes of ``dim`` that fit: those beside the same other sizes if there are two, else all."""
    same = {case[dim] for case in op.cases.sweep if _sized(case, dim, 1) == _sized(base, dim, 1)}
    found = same if len(same) > 1 else {case[dim] for case in op.cases.sweep}
    found |= {base[dim]}
    fitting = [
        s for s in found if s > 0 and op.cost(_sized(base, dim, s)).bytes * MEMORY_SHARE <= memory_bytes
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
