"""What rounds need of an implementation; `compare.worker.timing.Remote` is one, and a fake in tests."""

from __future__ import annotations

from typing import Literal, Protocol

from compare.timing.stopwatch import Reading

BackToBack = Literal["warm", "burst", "sustained"]
"""Kinds of sample that repeat the call itself: in a round, after a pause, and under sustained load."""
Kind = Literal["cold", "graph", BackToBack]


class Timed(Protocol):
    """One implementation on several sets of inputs, ready to be timed."""

    sets: int
    """How many sets of inputs there are; ``which`` counts them from 0."""
    output_dtype: str | None
    """The output's dtype, known after `first`."""

    def first(self) -> float:
        """Host time of a call and of the GPU work it starts, in ms."""

    def capture(self) -> None:
        """Capture a CUDA graph of the call.  Raises where it cannot be captured."""

    def cold(self, which: int) -> Reading:
        """One call with none of its data in the L2."""

    def warm(self, which: int, repeats: int, kind: BackToBack = "warm") -> Reading:
        """``repeats`` calls back to back, right after one that is not timed."""

    def graph(self, repeats: int) -> Reading:
        """``repeats`` replays of the captured graph, as in `warm`."""

    def exposed(self, kind: Kind) -> bool:
        """Whether some sample of that kind holds host time, however long the wait."""
