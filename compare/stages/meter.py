"""Progress of a run: steps of unequal weight as the share of the run that is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, float], None]
"""``progress(what, done)``: the current step, and the share of the run that is over, 0 to 1."""


def silent(what: str, done: float) -> None:
    """No progress shown."""


class Meter:
    """Reports steps and the share of the run to a `Progress`.

    Args:
        progress: told at every step.
        total: the weight of the whole run.
    """

    def __init__(self, progress: Progress, total: float) -> None:
        self._progress, self._total = progress, max(total, 1.0)
        self._done = 0.0

    def say(self, what: str) -> None:
        self._progress(what, min(1.0, self._done / self._total))

    def step(self, what: str) -> None:
        """Begin a step of weight 1."""
        self.say(what)
        self._done += 1

    @contextmanager
    def part(self, what: str, weight: float) -> Iterator[Callable[[float], None]]:
        """A step that reports its own share, 0 to 1."""
        start = self._done

        def advance(share: float) -> None:
            self._done = start + weight * share
            self.say(what)

        advance(0.0)
        yield advance
        self._done = start + weight
