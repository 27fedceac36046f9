"""The interface of an implementation to rounds: `compare.worker.timing.Remote`, and a fake in tests."""

from __future__ import annotations

from typing import Literal, Protocol

from compare.timing.stopwatch import Reading

BackToBack = Literal["warm", "burst", "sustained"]
"""Kinds of sample that repeat the call: in a round, after a pause, and under sustained load."""
Kind = Literal["cold", "graph", BackToBack]


class Timed(Protocol):
    """One implementation on several sets of inputs, ready to be timed."""

    sets: int
    """Number of sets of inputs; ``which`` counts them from 0."""
    output_dtype: str | None
    """The output's dtype, known after `first`."""

    def first(self) -> float:
        """Host time of a call and of its GPU work, in ms."""

    def capture(self) -> None:
        """Capture a CUDA graph of the call.  Raises where it cannot be captured."""

    def cold(self, which: int) -> Reading:
        """One call with a cold L2."""

    def warm(self, which: int, repeats: int, kind: BackToBack = "warm") -> Reading:
        """``repeats`` calls back to back, after an untimed one."""

    def graph(self, repeats: int) -> Reading:
        """``repeats`` replays of the captured graph, as in `warm`."""

    def exposed(self, kind: Kind) -> bool:
        """Whether a sample of that kind contains host time."""
