"""What a run says on stderr without a bar: what it loads at the start, and for ``--verbose`` every step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compare.report.progress import Progress
    from compare.report.trace import Timeline


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


@dataclass(frozen=True)
class Log:
    """Where a command's steps go: to stderr, to a trace, to both, or nowhere."""

    steps: Steps | None
    trace: Timeline | None
    begun_s: float = field(default_factory=time.monotonic)
    """When the command began, by `time.monotonic`."""

    def __call__(self, what: str) -> None:
        """A step begins that belongs to no op's run."""
        for each in (self.steps, self.trace):
            if each:
                each(what)

    def beside(self, op: str, progress: Progress) -> Progress:
        """The ``progress`` of an op's run, whose steps go to the trace too."""
        return self.trace.beside(op, progress) if self.trace else progress


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
