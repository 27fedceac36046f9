"""A clock and what it times, both made up: rounds of samples without a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from compare.spec import Implementation, Timing
from compare.timing.rounds import Contest, Plan
from compare.timing.stopwatch import Reading


class World:
    """A clock and the implementations it times: every call takes as long as the test says."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.seconds = 0.0
        self.log: list[tuple[str, str]] = []
        self.repeats: dict[str, int] = {}
        self.drift: Callable[[float], float] = lambda seconds: 1.0
        self.waiting: set[str] = set()
        self.lost = False
        self.event_us = 0.1
        self.host_us = 7.0
        self._pending_us = 0.0

    def implementation(
        self,
        label: str,
        us: float,
        *,
        noise: float = 0.0,
        rung: str = "vendor",
        accumulator: str = "fp32",
        act: Callable[[int], None] | None = None,
        output: object = None,
    ) -> Implementation:
        """One that takes ``us``, give or take ``noise``; ``act`` is told the number of each call, from 1."""
        count = 0

        def run(*_: object) -> object:
            nonlocal count
            count += 1
            if act is not None:
                act(count)
            self._pending_us = us * self.random.lognormvariate(0, noise)
            return output

        return Implementation("op", label, rung, run, accumulator=accumulator)  # type: ignore[arg-type]

    def now_s(self) -> float:
        return self.seconds

    def first_ms(self, call: Callable[[], object]) -> float:
        return self._take("first", "", call) / 1e3

    def cold(self, name: str, call: Callable[[], object]) -> Reading:
        return Reading(self._take("cold", name, call), self.host_us)

    def warm(self, name: str, call: Callable[[], object], repeats: int) -> Reading:
        self.repeats[name] = repeats
        return Reading(self._take("warm", name, call) / 2, self.host_us)

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        return call

    def empty_us(self) -> float:
        return self.event_us

    def exposed(self, name: str) -> bool:
        return name in self.waiting

    def recover(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def order(self) -> list[tuple[str, ...]]:
        """Who was sampled cold, in which order, round after round."""
        cold = [name for kind, name in self.log if kind == "cold"]
        size = len(set(cold))
        return [tuple(cold[at : at + size]) for at in range(0, len(cold), size)]

    def _take(self, kind: str, name: str, call: Callable[[], object]) -> float:
        call()
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        us = self._pending_us * self.drift(self.seconds)
        self.seconds += us / 1e6 + 1e-4
        self.log.append((kind, name))
        return us


QUICK = Plan(warm_up_s=0.0, min_s=0.0)


def contest(world: World, *impls: Implementation, plan: Plan = QUICK, **options: Any) -> Contest:
    return Contest(impls[0].label, impls, [()], world, plan, **options)


def timing(held: Contest, label: str) -> Timing:
    found = held.results()[label]
    assert isinstance(found, Timing), found
    return found
