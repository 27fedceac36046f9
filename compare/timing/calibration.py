"""The noise of this machine: the variance between processes, from implementations timed against themselves.

An A/A pair is one call under two names, in two processes, timed like any two implementations.  Any difference
of such a pair is noise.  The largest of A/A pairs of that size, with headroom, is a part of the interval of
every ratio (`statistics.widened`).  So one process an implementation is enough in a run, which would take
three times as long to start with three.

``python -m compare doctor --calibrate`` measures it and keeps it by device; until then wide built-in limits
hold.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from compare.model.op import UsageError
from compare.model.result import Calibration, CaseComparison, Row, SizeClass
from compare.records import archive
from compare.records.encoding import decode, encode, write_whole
from compare.records.reading import read_text
from compare.timing.statistics import estimate
from cuda_impl import build

BUILT_IN = Calibration(
    (SizeClass(10.0, 0.05), SizeClass(100.0, 0.02), SizeClass(float("inf"), 0.01)), tick_us=1.2
)
"""With these, 1% of 726 recorded pairs of equal machine code (cupy's and pybind's) have an interval that
excludes 1, at most 2% in each class.  A process changes a call of several launches by up to 1.2 us."""

HEADROOM = 1.5
"""The part between processes, as a multiple of the largest difference of an A/A pair: over two hundred pairs
of each class are measured, and a run of all sizes makes hundreds more."""

LEAST = 0.002
"""Lower limit of that part, on any machine."""

ColdSamples = Sequence[Sequence[float]]
"""Cold samples of one A/A measurement, in microseconds, by name and round."""


def detectable(time_us: float, calibration: Calibration | None = None) -> float:
    """The largest difference between equals, as a share of the time: at least ``tick_us``."""
    limits = calibration or BUILT_IN
    share = next((size.share for size in limits.classes if time_us < size.below_us), limits.classes[-1].share)
    return min(1.0, max(share, limits.tick_us / time_us)) if time_us > 0 else 1.0


def with_noise_floor(case: CaseComparison, calibration: Calibration | None) -> CaseComparison:
    """``case`` with the largest difference between equals in every row; replayed rows keep their record's."""

    def mark(row: Row) -> Row:
        if row.recorded or row.timing is None or row.timing.cold_us is None:
            return row
        share = round(detectable(row.timing.cold_us.median, calibration), 6)
        return replace(row, timing=replace(row.timing, detectable=share))

    return replace(case, rows=tuple(map(mark, case.rows)))


def derived(contests: Iterable[ColdSamples], created: str) -> Calibration:
    """A calibration from A/A measurements.  A class without any keeps its built-in limit.

    Raises:
        ValueError: no measurement has two series.
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
        raise ValueError("no measurement has two series of samples to compare")

    def size_class(built_in: SizeClass) -> SizeClass:
        measured = pairs[built_in.below_us]
        if not measured:
            return built_in
        largest = max(off for off, _ in measured)
        share = max(HEADROOM * largest, LEAST)
        return SizeClass(
            built_in.below_us, share, len(measured), largest, sum(apart for _, apart in measured)
        )

    tick_us = round(min(gaps), 3) if gaps else BUILT_IN.tick_us
    return Calibration(tuple(map(size_class, BUILT_IN.classes)), tick_us, created)


# --------------------------------------------------------------------------- kept by device


def path_of(device: str) -> Path:
    """The file of a device's calibration, in the cache folder."""
    return build.cache_dir() / "calibration" / f"{archive.device_slug(device)}.json"


def stored(device: str) -> Calibration:
    """The calibration kept for a device of that name, else the built-in limits.

    Raises:
        UsageError: what is kept is damaged.
    """
    try:
        path = path_of(device)
    except build.BuildError:  # no cache folder
        return BUILT_IN
    if not path.exists():  # not measured
        return BUILT_IN
    text = read_text(path)
    try:
        return decode(Calibration, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is damaged: {error}. Delete it, or run python -m compare doctor --calibrate"
        ) from None


def store(device: str, calibration: Calibration) -> Path:
    """Keep a calibration for later runs; returns the path.

    Raises:
        OSError: it cannot be written.
    """
    path = path_of(device)
    write_whole(path, json.dumps(encode(calibration), indent=1) + "\n")
    return path
