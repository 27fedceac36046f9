"""What a run is doing, on stderr while it does it: a bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from compare.stages.meter import Progress


def of_run(name: str, told: Progress | None) -> AbstractContextManager[Progress]:
    """Where the run of one op reports itself: to ``told``, else to a bar if stderr is a terminal."""
    if told is not None:
        return nullcontext(told)
    return _bar(name) if sys.stderr.isatty() else nullcontext(lambda what, done: None)


@contextmanager
def _bar(name: str) -> Iterator[Progress]:
    """Gone when the work is done."""
    columns = (TextColumn("{task.fields[what]}"), BarColumn(bar_width=None), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        task = bars.add_task("", total=1.0, what=f"starting {name}")
        yield lambda what, done: bars.update(task, completed=done, what=what)
