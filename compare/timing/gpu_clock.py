"""The card's state: its SM clock after each sample; power, temperature and throttling once a round.

A query of the driver takes tens of microseconds, and the GPU idles meanwhile.  Queries come between timed
sections only.  Where they took more than `ALLOWED_MS` in a round, so many rounds follow without any that they
take at most that on average.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

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
        self._log: dict[str, list[Any]] = defaultdict(list)

    def clock_mhz(self) -> float | None:
        """The SM clock now; None where it is unknown, or in a round without queries."""
        mhz = self._query(_CLOCK)
        return mhz if isinstance(mhz, float) else None

    def end_round(self) -> None:
        """Record the card's state, once a round."""
        for name in _STATE:
            value = self._query(name)
            if value is not None:
                self._log[name].append(value)
        self._log["asking_ms"].append(round(self._spent_ms, 4))
        self._rounds_without = max(self._rounds_without, math.ceil(self._spent_ms / ALLOWED_MS)) - 1
        self._spent_ms = 0.0

    def restart(self) -> None:
        """Forget the warm-up rounds."""
        self._rounds_without = 0
        self._log.clear()

    def card(self) -> Card | None:
        """The recorded states; None if there are none."""
        if self._log.keys() <= {"asking_ms"}:
            return None
        return Card(**{name: tuple(values) for name, values in self._log.items()})

    def _query(self, name: str) -> float | str | None:
        read = self._readers.get(name)
        if read is None or self._rounds_without > 0:
            return None
        value: float | str | None = None
        begin = self._now_s()
        with suppress(Exception):
            value = read()
        self._spent_ms += (self._now_s() - begin) * 1e3
        if value is None:
            del self._readers[name]
        return value
