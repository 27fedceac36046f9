"""Burst and sustained: the time of a call right after a pause, and in thermal and power steady state.

The samples of rounds are neither: each is alone, behind a flush and a wait.  Here calls run back to back,
warm.  A burst ends before the power regulation reacts to it; sustained load goes on until the time of a call
has settled, or for a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from compare.spec import Estimate
from compare.timing.statistics import estimate
from compare.timing.stopwatch import Clock
from compare.timing.timed import Timed

PAUSE_S = 0.1
BURSTS = 7
BURST_US = 1000.0
"""A burst takes about so much of the GPU's time, one call at least,"""
BURST_HOST_US = 4_000.0
"""and the host no longer than this."""

BATCH_US = 20_000.0
"""Sustained load is read in batches of about this long,"""
BATCH_HOST_US = 8_000.0
"""shorter where the host would take longer than this to enqueue one."""
LEAST_S = 0.3
MOST_S = 1.0
SETTLED = 0.01
"""Settled: so many batches in a row differ by no more than this share."""
IN_A_ROW = 6


@dataclass(frozen=True)
class Endurance:
    burst_us: Estimate
    sustained_us: Estimate
    settled: bool
    """The time of a call had stopped changing before `MOST_S` were over."""


def endure(
    timed: Timed,
    clock: Clock,
    cold_us: float,
    launch_us: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Endurance:
    """Time bursts, then sustained load, always on the first set of inputs.

    Args:
        timed: the implementation.
        clock: says when sustained load has lasted long enough.
        cold_us: about how long a call takes the GPU,
        launch_us: and the host.
        sleep: waits that many seconds with the GPU idle.
    """
    bursts = []
    repeats = _repeats(BURST_US, BURST_HOST_US, cold_us, launch_us)
    for number in range(1 + BURSTS):
        sleep(PAUSE_S)
        taken = timed.warm(0, repeats, "burst")
        if number > 0:  # from the first the stopwatch learns how long the host takes
            bursts.append(taken.gpu_us)
    batches, settled = _sustained(timed, clock, _repeats(BATCH_US, BATCH_HOST_US, cold_us, launch_us))
    return Endurance(estimate(_rounded(bursts)), estimate(_rounded(batches)), settled)


def _sustained(timed: Timed, clock: Clock, most_repeats: int) -> tuple[list[float], bool]:
    """The batches that count, and whether they settled: the last `IN_A_ROW` then, else the later half."""
    batches: list[float] = []
    repeats, begin = 1, clock.now_s()
    while True:
        # Twice as many each time: the stopwatch learns from a batch how long the host takes for the next.
        repeats = min(2 * repeats, most_repeats)
        batches.append(timed.warm(0, repeats, "sustained").gpu_us)
        spent_s = clock.now_s() - begin
        last = batches[-IN_A_ROW:]
        level = len(last) == IN_A_ROW and max(last) <= (1 + SETTLED) * min(last)
        if level and spent_s >= LEAST_S:
            return last, True
        if spent_s >= MOST_S:
            return batches[len(batches) // 2 :], False


def _repeats(gpu_us: float, host_us: float, cold_us: float, launch_us: float) -> int:
    """How many calls take the GPU about ``gpu_us`` and the host no longer than ``host_us``."""
    return max(1, round(min(gpu_us / max(cold_us, 0.5), host_us / max(launch_us, 0.5))))


def _rounded(samples: list[float]) -> list[float]:
    """To the nanosecond, as all samples are."""
    return [round(sample, 3) for sample in samples]
