"""What a run is doing, on stderr while it does it: a bar on a terminal, or a line a step with its seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from compare.stages.meter import Progress, silent


class Steps:
    """For ``--verbose``: each step as soon as it is over, with the wall-clock seconds it took.

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


def of_run(name: str, told: Steps | None) -> AbstractContextManager[Progress]:
    """Where the run of one op reports itself: to ``told``, else to a bar if stderr is a terminal."""
    if told is not None:
        return nullcontext(told)
    return _bar(name) if sys.stderr.isatty() else nullcontext(silent)


@contextmanager
def _bar(name: str) -> Iterator[Progress]:
    """Gone when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.fields[what]}"), BarColumn(bar_width=None), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        task = bars.add_task("", total=1.0, what=f"starting {name}")
        yield lambda what, done: bars.update(task, completed=done, what=what)
