"""What this machine cannot tell apart: an implementation held against itself, and what follows from it.

An A/A pair is one call under two names, in two processes and timed like any two implementations.  Whatever
difference such a pair shows is none; so a difference counts only if it is larger than what pairs of that size
show here, with headroom, and if its interval excludes 1 (`statistics.differs`).

``python -m compare doctor --calibrate`` measures it and keeps it by device; until then the built-in limits
hold, which are wide.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from compare import records
from compare.spec import (
    Calibration,
    Case,
    CaseComparison,
    Implementation,
    Op,
    Options,
    Row,
    SizeClass,
    Timing,
)
from compare.statistics import estimate

if TYPE_CHECKING:
    import torch

    from compare.contained.crew import Crew
    from compare.contest import Plan
    from compare.stopwatch import Stopwatch

BUILT_IN = Calibration(
    (SizeClass(10.0, 0.05), SizeClass(100.0, 0.02), SizeClass(float("inf"), 0.01)), tick_us=0.032
)

HEADROOM = 1.5
"""How far above the largest difference seen among equals the least that counts is set: over a hundred pairs
of each class have been seen, and a run of all sizes makes hundreds more."""

LEAST = 0.002
"""No machine is believed to tell apart less."""

COPIES = 8
"""Names under which the same call is timed; every two of them are a pair."""
CONTESTS = 2
"""How often that is done for each size: by other processes, in other orders."""
CONTEST_S = 2.0
TARGETS_US = (2.0, 7.0, 20.0, 60.0, 200.0, 1000.0)
"""About how long the call is to take: two sizes for each class."""

Series = Sequence[Sequence[float]]
"""The cold samples, in microseconds, of one contest of equals, round by round."""

Progress = Callable[[float], None]


def detectable(time_us: float, calibration: Calibration | None = None) -> float:
    """The least difference, as a share of a time, that counts as one; never less than a tick of the clock."""
    found = calibration or BUILT_IN
    share = next((size.share for size in found.classes if time_us < size.below_us), found.classes[-1].share)
    return max(share, found.tick_us / time_us) if time_us > 0 else 1.0


def marked(case: CaseComparison, calibration: Calibration | None) -> CaseComparison:
    """``case`` with what can be told apart beside every time; replayed rows keep what their record says."""

    def mark(row: Row) -> Row:
        if row.replayed or row.timing is None or row.timing.cold_us is None:
            return row
        share = round(detectable(row.timing.cold_us.median, calibration), 6)
        return replace(row, timing=replace(row.timing, detectable=share))

    return replace(case, rows=tuple(map(mark, case.rows)))


def derived(contests: Iterable[Series], created: str) -> Calibration:
    """A calibration from contests of equals.  A class without any keeps its built-in limit.

    Raises:
        ValueError: there is no contest with two series.
    """
    pairs: dict[float, list[tuple[float, bool]]] = {size.below_us: [] for size in BUILT_IN.classes}
    gaps: list[float] = []
    for series in contests:
        ticks = sorted({round(sample, 3) for samples in series for sample in samples})
        gaps += [after - before for before, after in itertools.pairwise(ticks)]
        for mine, theirs in itertools.combinations(series, 2):
            ratio = estimate([b / a for a, b in zip(mine, theirs, strict=True)])
            time_us = estimate(mine).median
            below_us = next(size.below_us for size in BUILT_IN.classes if time_us < size.below_us)
            off = max(ratio.median, 1 / ratio.median) - 1
            pairs[below_us].append((off, not ratio.low <= 1 <= ratio.high))
    if not any(pairs.values()):
        raise ValueError("no two series to hold against each other")

    def size_class(built_in: SizeClass) -> SizeClass:
        found = pairs[built_in.below_us]
        if not found:
            return built_in
        largest = max(off for off, _ in found)
        share = max(HEADROOM * largest, LEAST)
        return SizeClass(built_in.below_us, share, len(found), largest, sum(apart for _, apart in found))

    tick_us = round(min(gaps), 3) if gaps else BUILT_IN.tick_us
    return Calibration(tuple(map(size_class, BUILT_IN.classes)), tick_us, created)


def subject() -> Op:
    """The op whose baseline is held against itself: of those that compute, the one that does so least.  What
    only moves may be the driver's own copy, which has no code in a process."""
    from compare import registry

    def least(op: Op) -> tuple[int, float]:
        cost = op.cost(op.cases.default)
        return len(op.dims), cost.flops / cost.bytes

    return min((op for op in map(registry.get_op, registry.op_names()) if not op.only_moves), key=least)


def equals(impl: Implementation, copies: int = COPIES) -> list[Implementation]:
    """An implementation under several names."""
    return [replace(impl, label=f"{impl.label}:{number}", base=impl.label) for number in range(copies)]


def contest(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    device: torch.device,
    crew: Crew,
    *,
    seed: int,
    budget_s: float = CONTEST_S,
    plan: Plan | None = None,
    local: Stopwatch | None = None,
    stopwatch: str = "",
) -> list[tuple[float, ...]]:
    """Time what ought to be equal, by the rules of every comparison; the cold samples of each.

    Each is in a process of its own, as implementations are: where a process finds room for its code and its
    context can make more of a difference than the clock does.

    Args:
        op, impls, case, device, seed, budget_s, plan: as those of `compare.contained.contest.measure`.
        crew: their workers.
        local, stopwatch: this process's and the workers' own; those of a GPU, if not given.

    Raises:
        Exception: what a call raised.
    """
    from compare.check import Yardstick, expected_output
    from compare.contained.contest import CUDA_STOPWATCH, measure
    from compare.contained.stage import Exchange, WorkerStage
    from compare.stopwatch import CudaStopwatch

    crew.start(impls)
    workers = {impl.label: crew.of(impl) for impl in impls}
    op = replace(op, baseline=impls[0].label)
    with Exchange(op, case, device, expected_output(op, case, device), timed=True) as exchange:
        found = measure(
            op,
            impls,
            case,
            device,
            workers,
            exchange,
            Yardstick(op, WorkerStage(workers[op.baseline], exchange)),
            local=local or CudaStopwatch(device),
            seed=seed,
            budget_s=budget_s,
            plan=plan,
            stopwatch=stopwatch or CUDA_STOPWATCH,
        )
    for result in found.values():
        if isinstance(result, Exception):
            raise result
    timings = [result for result in found.values() if isinstance(result, Timing)]
    return [timing.cold_us.samples for timing in timings if timing.cold_us]


def measured(device: torch.device, progress: Progress = lambda share: None) -> Calibration:
    """Hold PyTorch's own implementation against itself on a GPU, at sizes for every class; about a minute."""
    import torch

    from compare import registry
    from compare.ceilings import measure_ceilings
    from compare.contained.crew import Crew

    op = subject()
    (impl,) = registry.implementations(op.name, [op.baseline])
    found: list[Series] = []
    with torch.cuda.device(device):
        bytes_per_us = measure_ceilings(device).copy_gbs * 1e3
        moved = op.cost(op.cases.default).bytes / op.cases.default.shape[0]
        for seed in range(CONTESTS):
            with Crew(op, device, Options.timeout_s) as crew:
                for target_us in TARGETS_US:
                    size = max(256, round(target_us * bytes_per_us / moved))
                    case = replace(op.cases.default, dims=((op.dims[0], size),))
                    found.append(contest(op, equals(impl), case, device, crew, seed=seed))
                    progress(len(found) / (len(TARGETS_US) * CONTESTS))
    return derived(found, datetime.now(timezone.utc).isoformat(timespec="seconds"))


# --------------------------------------------------------------------------- kept by device


def path_of(device: str) -> Path:
    """Where the calibration of a device of that name is kept: beside what has been compiled."""
    from cuda_impl import build

    return build.cache_dir() / "calibration" / f"{records.device_slug(device)}.json"


def stored(device: str) -> Calibration:
    """What was measured on this machine's device of that name, else the built-in limits."""
    try:
        return records.decode(Calibration, json.loads(path_of(device).read_text()))
    except (OSError, ValueError, TypeError, RuntimeError):  # none there, damaged, or no cache at all
        return BUILT_IN


def store(device: str, calibration: Calibration) -> Path:
    """Keep it for every comparison to come; the path.

    Raises:
        OSError: it cannot be written.
    """
    path = path_of(device)
    records.write_whole(path, json.dumps(records.encoded(calibration), indent=1) + "\n")
    return path
