"""Parallel jobs in threads of the judge, each waiting for a worker most of the time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


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
