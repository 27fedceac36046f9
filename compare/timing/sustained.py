"""Burst and sustained: the time of a call right after a pause, and in thermal and power steady state.

Calls run back to back, warm, on the first set of inputs.  (A sample of a round is a single call after a flush
and a wait.)  A burst ends before power regulation reacts; sustained load runs until the time of a call has
settled, at most a second.  Both need the approximate GPU and host time of a call, to choose how many to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from compare.timing.stopwatch import Clock, Reading, Timer

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


def bursts(
    timer: Timer, cold_us: float, launch_us: float, sleep: Callable[[float], None] = time.sleep
) -> list[Reading]:
    """`BURSTS` bursts, each after a pause with the GPU idle; ``sleep`` waits that many seconds."""
    repeats = repeats_for(BURST_US, BURST_HOST_US, cold_us, launch_us)
    readings = []
    for _ in range(1 + BURSTS):
        sleep(PAUSE_S)
        readings.append(timer.warm(0, repeats, "burst"))
    return readings[1:]  # the first one teaches the stopwatch the host's time


def sustained(timer: Timer, clock: Clock, cold_us: float, launch_us: float) -> tuple[list[Reading], bool]:
    """The last `IN_A_ROW` batches if they settled, else the later half; and whether they settled."""
    most_repeats = repeats_for(BATCH_US, BATCH_HOST_US, cold_us, launch_us)
    batches: list[Reading] = []
    repeats, begin = 1, clock.now_s()
    while True:
        # Doubles each time: the stopwatch learns the host's time for the next batch from this one.
        repeats = min(2 * repeats, most_repeats)
        batches.append(timer.warm(0, repeats, "sustained"))
        spent_s = clock.now_s() - begin
        last = batches[-IN_A_ROW:]
        times_us = [reading.gpu_us for reading in last]
        if len(last) == IN_A_ROW and max(times_us) <= (1 + SETTLED) * min(times_us) and spent_s >= LEAST_S:
            return last, True
        if spent_s >= MOST_S:
            return batches[len(batches) // 2 :], False


def repeats_for(gpu_us: float, host_us: float, cold_us: float, launch_us: float) -> int:
    """Number of calls that take about ``gpu_us`` of GPU time and at most ``host_us`` of host time."""
    return max(1, round(min(gpu_us / max(cold_us, 0.5), host_us / max(launch_us, 0.5))))
