"""What a run is doing, on stderr while it does it: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

Progress = Callable[[str, float], None]
"""`compare.run` calls it with the current step, and the share of the run that is over."""
EVERY_S = 10.0
"""Between two lines where stderr is not a terminal."""


def of_run(name: str, told: Progress | None) -> AbstractContextManager[Progress]:
    """Where the run of one op reports its progress: ``told``, a bar on a terminal, or lines."""
    if told is None and sys.stderr.isatty():
        return _bar(name)
    return nullcontext(told or lines(name))


def lines(name: str, clock_s: Callable[[], float] = time.monotonic) -> Progress:
    """Prints a line for one step in `EVERY_S` seconds: ``softmax: 40% after 12 s, checking ...``."""
    begin_s = last_s = clock_s()

    def told(what: str, done: float) -> None:
        nonlocal last_s
        now_s = clock_s()
        if now_s - last_s >= EVERY_S:
            last_s = now_s
            said = _brief(what)
            print(f"{name}: {done:.0%} after {now_s - begin_s:.0f} s, {said}", file=sys.stderr, flush=True)

    return told


@contextmanager
def _bar(name: str) -> Iterator[Progress]:
    """A bar that is removed at the end."""
    columns = (TextColumn("{task.fields[what]}"), BarColumn(bar_width=None), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        task = bars.add_task("", total=1.0, what=f"starting {name}")
        yield lambda what, done: bars.update(task, completed=done, what=_brief(what))


def _brief(what: str) -> str:
    """A step without the seconds in brackets, which ``--verbose`` is for."""
    return what.partition(" (")[0]
