"""The card's state: its SM clock after each sample; power, temperature and throttling once a round.

A query of the driver takes tens of microseconds, and the GPU idles meanwhile.  Queries come between timed
sections only, and take at most `ALLOWED_MS` a round on average.  Where the driver is slow, some samples have
no clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import torch

from compare.device import clock_readers
from compare.spec import Card

Reader = Callable[[], float | str]

ALLOWED_MS = 1.0

_CLOCK = "sm_mhz"
_STATE = ("power_w", "temperature_c", "throttle")


class Monitor:
    """Queries the driver by ``readers``; one that fails is not called again."""

    def __init__(self, readers: Mapping[str, Reader], now_s: Callable[[], float] = time.perf_counter) -> None:
        self._readers = {name: readers[name] for name in (_CLOCK, *_STATE) if name in readers}
        self._clocks, self._state = _Purse(now_s), _Purse(now_s)
        self._log: dict[str, list[float | str]] = {}
        self._asking_ms: list[float] = []

    @classmethod
    def on(cls, device: torch.device) -> Monitor:
        return cls(clock_readers(device))

    def clock_mhz(self) -> float | None:
        """The SM clock now; None where it is unknown or the round's query time is used up."""
        found = self._ask(_CLOCK, self._clocks) if self._clocks.left_ms > 0 else None
        return found if isinstance(found, float) else None

    def end_round(self) -> None:
        """Record the card's state, once a round."""
        if self._state.left_ms > 0:
            for name in (_CLOCK, *_STATE):
                found = self._ask(name, self._state)
                if found is not None:
                    self._log.setdefault(name, []).append(found)
        self._asking_ms.append(round(self._clocks.end_round() + self._state.end_round(), 4))

    def restart(self) -> None:
        """Forget the warm-up rounds."""
        self._log.clear()
        self._asking_ms.clear()

    def card(self) -> Card | None:
        """The recorded states; None if there are none."""
        if not self._log:
            return None
        numbers = {name: _numbers(self._log.get(name, [])) for name in (_CLOCK, "power_w", "temperature_c")}
        throttle = tuple(map(str, self._log.get("throttle", [])))
        return Card(**numbers, throttle=throttle, asking_ms=tuple(self._asking_ms))

    def _ask(self, name: str, purse: _Purse) -> float | str | None:
        read = self._readers.get(name)
        if read is None:
            return None
        found: float | str | None = None
        with suppress(Exception), purse.pays():
            found = read()
        if found is None:
            del self._readers[name]
        return found


class _Purse:
    """A budget of query time: each round adds half of `ALLOWED_MS`; later rounds repay an overdraft."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.left_ms = ALLOWED_MS / 2
        self._spent_ms = 0.0

    @contextmanager
    def pays(self) -> Iterator[None]:
        begin = self._now_s()
        try:
            yield
        finally:
            took_ms = (self._now_s() - begin) * 1e3
            self.left_ms -= took_ms
            self._spent_ms += took_ms

    def end_round(self) -> float:
        """The round's query time in ms."""
        spent_ms, self._spent_ms = self._spent_ms, 0.0
        self.left_ms = min(ALLOWED_MS / 2, self.left_ms + ALLOWED_MS / 2)
        return spent_ms


def _numbers(values: list[float | str]) -> tuple[float, ...]:
    return tuple(value for value in values if isinstance(value, float))
