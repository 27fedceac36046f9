"""Burst and sustained: the time of a call right after a pause, and in thermal and power steady state.

Calls run back to back, warm.  (A sample of a round is a single call after a flush and a wait.)  A burst ends
before power regulation reacts; sustained load runs until the time of a call has settled, at most a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from compare.model.result import Estimate
from compare.timing.statistics import estimate
from compare.timing.stopwatch import BackToBack, Clock, Timer

PAUSE_S = 0.1
BURSTS = 7
BURST_US = 1000.0
"""Approximate GPU time of a burst; at least one call."""
BURST_HOST_US = 4_000.0
"""Most host time of a burst."""

BATCH_US = 20_000.0
"""Approximate GPU time of a batch of sustained load."""
BATCH_HOST_US = 8_000.0
"""Most host time of a batch."""
LEAST_S = 0.3
MOST_S = 1.0
SETTLED = 0.01
"""Settled: `IN_A_ROW` successive batches differ by at most this share."""
IN_A_ROW = 6


@dataclass(frozen=True)
class Endurance:
    burst_us: Estimate
    sustained_us: Estimate
    settled: bool
    """Whether the time of a call settled within `MOST_S`."""
    exposed: bool
    """Whether a time contains host time."""


def endure(
    timer: Timer,
    clock: Clock,
    cold_us: float,
    launch_us: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Endurance:
    """Times of bursts, then of sustained load, on the first set of inputs.

    Args:
        timer: of the implementation.
        clock: measures the duration of sustained load.
        cold_us: approximate GPU time of a call.
        launch_us: approximate host time of a call.
        sleep: waits that many seconds with the GPU idle.
    """
    exposed = False

    def sample(repeats: int, kind: BackToBack) -> float:
        nonlocal exposed
        reading = timer.warm(0, repeats, kind)
        exposed = exposed or reading.exposed
        return round(reading.gpu_us, 3)  # to the nanosecond, as all samples are

    bursts = []
    repeats = _repeats(BURST_US, BURST_HOST_US, cold_us, launch_us)
    for _ in range(1 + BURSTS):
        sleep(PAUSE_S)
        bursts.append(sample(repeats, "burst"))
    most_repeats = _repeats(BATCH_US, BATCH_HOST_US, cold_us, launch_us)
    batches, settled = _sustained(lambda repeats: sample(repeats, "sustained"), clock, most_repeats)
    # The first burst teaches the stopwatch the host's time.
    return Endurance(estimate(bursts[1:]), estimate(batches), settled, exposed)


def _sustained(sample: Callable[[int], float], clock: Clock, most_repeats: int) -> tuple[list[float], bool]:
    """The last `IN_A_ROW` batches if they settled, else the later half; and whether they settled."""
    batches: list[float] = []
    repeats, begin = 1, clock.now_s()
    while True:
        # Doubles each time: the stopwatch learns the host's time for the next batch from this one.
        repeats = min(2 * repeats, most_repeats)
        batches.append(sample(repeats))
        spent_s = clock.now_s() - begin
        last = batches[-IN_A_ROW:]
        level = len(last) == IN_A_ROW and max(last) <= (1 + SETTLED) * min(last)
        if level and spent_s >= LEAST_S:
            return last, True
        if spent_s >= MOST_S:
            return batches[len(batches) // 2 :], False


def _repeats(gpu_us: float, host_us: float, cold_us: float, launch_us: float) -> int:
    """Number of calls that take about ``gpu_us`` of GPU time and at most ``host_us`` of host time."""
    return max(1, round(min(gpu_us / max(cold_us, 0.5), host_us / max(launch_us, 0.5))))
