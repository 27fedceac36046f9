"""Parallel jobs in threads of the judge, each waiting for a worker most of the time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_OWN_CROWD = 16
"""A process group with more threads for each core waits for itself."""

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def waited_s(group: int) -> float:
    """The seconds that a process group waited for a core, as others had it: the most of its threads.

    0 where the kernel does not count them, and where its own threads are too many.
    """
    threads = [
        thread
        for process in Path("/proc").glob("[0-9]*")
        if _group_of(process) == group
        for thread in process.glob("task/*/schedstat")
    ]
    if len(threads) > _OWN_CROWD * cores():
        return 0.0
    waited_ns = [0]
    for thread in threads:
        with suppress(OSError, ValueError, IndexError):  # it has ended
            waited_ns.append(int(thread.read_text().split()[1]))
    return max(waited_ns) / 1e9


def _group_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except (OSError, ValueError, IndexError):  # it has ended
        return None


def run_parallel(
    job: Callable[[T], R], things: Sequence[T], width: int, stop: Callable[[], None]
) -> Iterator[tuple[T, R]]:
    """Yield each thing with the result of ``job``, as they finish; one job at a time if ``width`` is 1.

    Args:
        job: must not raise.
        things: started in this order.
        width: most jobs at once.
        stop: makes running jobs return soon; called where an exception, such as Ctrl-C, ends the loop.
    """
    if width <= 1:
        for thing in things:
            yield thing, job(thing)
        return
    with ThreadPoolExecutor(width) as pool:
        futures = {pool.submit(job, thing): thing for thing in things}
        try:
            for done in as_completed(futures):
                yield futures[done], done.result()
        except BaseException:
            for future in futures:
                future.cancel()
            stop()
            raise
