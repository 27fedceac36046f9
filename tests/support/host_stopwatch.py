"""A stopwatch for workers on a machine without a GPU, by the host's clock."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from compare.timing.stopwatch import HOT_CALLS, HOT_KEPT, Call, HotReading, Reading


class HostStopwatch:
    """`compare.timing.stopwatch.Stopwatch` by the host's clock."""

    def __init__(self, device: torch.device, cycles_per_us: float | None = None) -> None:
        self.behind: Call | None = None
        self.cycles_per_us = cycles_per_us
        torch.set_num_threads(1)  # parallel tests share the cores

    def now_s(self) -> float:
        return time.perf_counter()

    def cold(self, name: str, call: Call, written: int = 0) -> Reading:
        return self._read(call, 1)

    def warm(self, name: str, call: Call, repeats: int) -> Reading:
        begin = time.perf_counter_ns()
        call()
        after_idle_us = (time.perf_counter_ns() - begin) / 1e3
        return replace(self._read(call, repeats), after_idle_us=after_idle_us)

    def hot(self, call: Call, limit_s: float) -> HotReading:
        us = tuple(self._read(call, HOT_CALLS).host_us for _ in range(HOT_KEPT))
        return HotReading(us, us)

    def capture(self, call: Call) -> Call:
        call()
        return call

    def empty_us(self) -> float:
        return 0.0

    def _read(self, call: Call, repeats: int) -> Reading:
        took = []
        for _ in range(repeats):
            begin = time.perf_counter_ns()
            call()
            took.append((time.perf_counter_ns() - begin) / 1e3)
        if self.behind is not None:
            self.behind()
        us = statistics.median(took)
        return Reading(us, us)
