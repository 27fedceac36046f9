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
FIRST_S, EVERY_S = 2.0, 10.0
"""Where stderr is not a terminal: from the start to the first line, and between two."""


def of_run(
    name: str, steps: Progress | None, begun_s: float | None = None
) -> AbstractContextManager[Progress]:
    """Where the run of one op reports its progress: ``steps``, a bar on a terminal, or lines.

    Args:
        name: of the op.
        steps: of ``--verbose``.
        begun_s: when the command began, by `time.monotonic`; None: now.
    """
    if steps is None and sys.stderr.isatty():
        return _bar(name)
    return nullcontext(steps or lines(name, begun_s=begun_s))


def lines(name: str, clock_s: Callable[[], float] = time.monotonic, begun_s: float | None = None) -> Progress:
    """Prints a line `FIRST_S` after the begin (None: now) and then for one step in `EVERY_S`:
    ``softmax: 40% after 12 s, checking ...``."""
    begin_s = clock_s() if begun_s is None else begun_s
    next_s = begin_s + FIRST_S

    def step(what: str, done: float) -> None:
        nonlocal next_s
        now_s = clock_s()
        if now_s >= next_s:
            next_s = now_s + EVERY_S
            text = f"{name}: {done:.0%} after {now_s - begin_s:.0f} s, {_brief(what)}"
            print(text, file=sys.stderr, flush=True)

    return step


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
