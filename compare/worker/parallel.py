"""Jobs side by side, each in a thread of the judge that waits for a worker most of the time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def abreast(
    job: Callable[[T], R], things: Sequence[T], width: int, stop: Callable[[], None]
) -> Iterator[tuple[T, R]]:
    """Each thing with what ``job`` makes of it, as they get done; one job after the other if ``width`` is 1.

    Args:
        job: must not raise.
        things: begun in this order.
        width: how many jobs may be under way.
        stop: makes the jobs that are under way return soon; called where something else ends the work.
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
