"""The card's state: its SM clock after each sample; power, temperature and throttling once a round.

A query of the driver takes tens of microseconds, and the GPU idles meanwhile.  Queries come between timed
sections only.  Where they took more than `ALLOWED_MS` in a round, so many rounds follow without any that they
take at most that on average.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import torch

from compare.device import clock_readers
from compare.model.result import Card

Reader = Callable[[], float | str]

ALLOWED_MS = 1.0

_CLOCK = "sm_mhz"
_STATE = (_CLOCK, "power_w", "temperature_c", "throttle")


class Monitor:
    """Queries the driver by ``readers``; one that fails is not called again."""

    def __init__(self, readers: Mapping[str, Reader], now_s: Callable[[], float] = time.perf_counter) -> None:
        self._readers = {name: readers[name] for name in _STATE if name in readers}
        self._now_s = now_s
        self._rounds_without = 0
        self._spent_ms = 0.0
        self._log: dict[str, list[float | str]] = {}
        self._asking_ms: list[float] = []

    @classmethod
    def on(cls, device: torch.device) -> Monitor:
        return cls(clock_readers(device))

    def clock_mhz(self) -> float | None:
        """The SM clock now; None where it is unknown, or in a round without queries."""
        found = self._ask(_CLOCK)
        return found if isinstance(found, float) else None

    def end_round(self) -> None:
        """Record the card's state, once a round."""
        for name in _STATE:
            found = self._ask(name)
            if found is not None:
                self._log.setdefault(name, []).append(found)
        self._asking_ms.append(round(self._spent_ms, 4))
        self._rounds_without = max(self._rounds_without, math.ceil(self._spent_ms / ALLOWED_MS)) - 1
        self._spent_ms = 0.0

    def restart(self) -> None:
        """Forget the warm-up rounds."""
        self._rounds_without = 0
        self._log.clear()
        self._asking_ms.clear()

    def card(self) -> Card | None:
        """The recorded states; None if there are none."""
        if not self._log:
            return None
        numbers = {name: _numbers(self._log.get(name, [])) for name in _STATE if name != "throttle"}
        throttle = tuple(map(str, self._log.get("throttle", [])))
        return Card(**numbers, throttle=throttle, asking_ms=tuple(self._asking_ms))

    def _ask(self, name: str) -> float | str | None:
        read = self._readers.get(name)
        if read is None or self._rounds_without > 0:
            return None
        found: float | str | None = None
        begin = self._now_s()
        with suppress(Exception):
            found = read()
        self._spent_ms += (self._now_s() - begin) * 1e3
        if found is None:
            del self._readers[name]
        return found


def _numbers(values: list[float | str]) -> tuple[float, ...]:
    return tuple(value for value in values if isinstance(value, float))
