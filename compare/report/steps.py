"""What a run says on stderr without a bar: what it loads at the start, and for ``--verbose`` every step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

BEGUN_S = time.monotonic()
"""When this process began, nearly: a command imports this before PyTorch."""


class Steps:
    """Prints each step when the next one begins, or at the `end`, with the wall-clock seconds it took."""

    def __init__(self) -> None:
        self._first_s = self._begin_s = time.perf_counter()
        self._what = ""

    def __call__(self, what: str, done: float = 0.0) -> None:
        if what == self._what:
            return
        now_s = time.perf_counter()
        if self._what:
            _line(now_s - self._begin_s, self._what)
        self._what, self._begin_s = what, now_s

    def end(self) -> None:
        """The last step is over; say what all of them took."""
        self("")
        _line(self._begin_s - self._first_s, "in all")


def _line(seconds: float, what: str) -> None:
    print(f"{seconds:8.2f} s  {what}", file=sys.stderr, flush=True)


@contextmanager
def steps(verbose: bool) -> Iterator[Steps | None]:
    """The `Steps` of a whole command if it is to be ``verbose``; they end with it, however it ends."""
    if not verbose:
        yield None
        return
    every = Steps()
    try:
        yield every
    finally:
        every.end()


@contextmanager
def starting(what: str, steps: Steps | None) -> Iterator[None]:
    """Show on a terminal, until the end of the block, what is loaded before there is any progress.

    Without a thread, unlike a bar: the workers' server is forked meanwhile.
    """
    shows = steps is None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if shows:
        print(what, end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shows:
            print("\x1b[K", end="", file=sys.stderr, flush=True)
