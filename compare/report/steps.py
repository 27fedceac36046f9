"""For ``--verbose``: a line on stderr for each step, with its seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Steps:
    """Prints each step when it is over, with the wall-clock seconds it took.

    A step lasts until another one is named, or until `end`.
    """

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._first_s = self._begin_s = clock_s()
        self._what = ""

    def __call__(self, what: str, done: float = 0.0) -> None:
        if what != self._what:
            self._finish()
            self._what = what

    def end(self) -> None:
        """The last step is over; say what all of them took."""
        self._finish()
        self._line(self._begin_s - self._first_s, "in all")

    def _finish(self) -> None:
        now_s = self._clock_s()
        if self._what:
            self._line(now_s - self._begin_s, self._what)
        self._what, self._begin_s = "", now_s

    def _line(self, seconds: float, what: str) -> None:
        print(f"{seconds:8.2f} s  {what}", file=sys.stderr, flush=True)


@contextmanager
def steps(verbose: bool) -> Iterator[Steps | None]:
    """The `Steps` of a whole command if it is to be ``verbose``; they end with it, however it ends."""
    if not verbose:
        yield None
        return
    told = Steps()
    try:
        yield told
    finally:
        told.end()
