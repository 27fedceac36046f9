"""A simulated clock and implementations: rounds of samples without a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compare.model.op import Implementation
from compare.model.result import Timing
from compare.timing.rounds import Entry, Plan, Rounds
from compare.timing.stopwatch import HOT_KEPT, HOT_TOTAL, BackToBack, Call, HotReading, Kind, Reading


class World:
    """`Clock` of a simulated GPU: a call takes the time that the test sets, warm half of it."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.seconds = 0.0
        self.log: list[tuple[str, str]] = []
        self.repeats: dict[tuple[str, str], list[int]] = {}
        """By kind and label."""
        self.drift: Callable[[float], float] = lambda seconds: 1.0
        self.slow, self.heats_s, self.hot = 1.0, 0.1, 0.0
        """A card kept busy for ``heats_s`` is ``slow`` times slower; `sleep` cools it."""
        self.tick_us = 0.0
        """The grain of readings."""
        self.waiting: set[tuple[Kind, str]] = set()
        """Kind and label of samples that contain host time."""
        self.event_us = 0.1
        self.host_us = 7.0
        self.after_idle_us = 70.0
        self.noisy_hot: list[float] = []
        """Factors of the host time of the next hot readings, one half of their blocks."""
        self.graphs = True
        self.pending_us = 0.0

    def implementation(self, label: str, us: float, **options: Any) -> Fake:
        """One that takes ``us``; see `Fake`."""
        return Fake(self, label, us, **options)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.hot = 0.0

    def now_s(self) -> float:
        return self.seconds

    def empty_us(self) -> float:
        return self.event_us

    def cold(self, name: str, call: Call, written: int = 0) -> Reading:
        return Reading(self.take("cold", name, call), self.host_us, ("cold", name) in self.waiting)

    def warm(self, name: str, call: Call, repeats: int, kind: Kind = "warm") -> Reading:
        self.repeats.setdefault((kind, name), []).append(repeats)
        us = self.take(kind, name, call, repeats, share=0.5)
        return Reading(us, self.host_us, (kind, name) in self.waiting, self.after_idle_us)

    def hot_blocks(self, name: str, gpu_us: float, limit_s: float) -> HotReading:
        """As many blocks as fit into the limit; a call takes the longer of host and GPU time."""
        us = max(self.host_us, gpu_us)
        self.seconds += us * HOT_TOTAL / 1e6
        self.log.append(("hot", name))
        noise = self.noisy_hot.pop(0) if self.noisy_hot else 1.0
        blocks = HOT_KEPT if us * HOT_TOTAL <= limit_s * 1e6 else HOT_KEPT - 1
        host = [self.host_us, self.host_us * noise] * (HOT_KEPT // 2)
        return HotReading(tuple(host[:blocks]), (us,) * blocks)

    def order(self) -> list[tuple[str, ...]]:
        """Labels in the order of their cold samples, round after round."""
        cold = [name for kind, name in self.log if kind == "cold"]
        size = len(set(cold))
        return [tuple(cold[at : at + size]) for at in range(0, len(cold), size)]

    def take(self, kind: str, name: str, call: Call, repeats: int = 1, share: float = 1.0) -> float:
        call()
        heat = 1 + (self.slow - 1) * min(1.0, self.hot)
        us = share * self.pending_us * self.drift(self.seconds) * heat
        busy_s = us * repeats / 1e6
        self.seconds += busy_s + 1e-4
        self.hot += busy_s / self.heats_s
        self.log.append((kind, name))
        if self.tick_us:  # a call begins at a random point between two ticks
            us = max(self.tick_us, int(us / self.tick_us + self.random.random()) * self.tick_us)
        return us


@dataclass
class Fake:
    """`Timer` in a `World`."""

    world: World
    label: str
    us: float
    noise: float = 0.0
    """A call takes ``us``, give or take."""
    level: str = "vendor"
    accumulator: str = "fp32"
    act: Callable[[int], None] = lambda count: None
    """Told the number of each call, from 1."""
    output_dtype: str | None = "torch.float32"
    count: int = 0

    @property
    def impl(self) -> Implementation:
        return Implementation("op", self.label, self.level, self.call, accumulator=self.accumulator)  # type: ignore[arg-type]

    def call(self) -> None:
        self.count += 1
        self.act(self.count)
        self.world.pending_us = self.us * self.world.random.lognormvariate(0, self.noise)

    def first(self) -> float:
        return self.world.take("first", "", self.call) / 1e3

    def capture(self) -> None:
        if not self.world.graphs:
            raise RuntimeError("operation not permitted when stream is capturing\nand more lines")

    def cold(self, number: int) -> Reading:
        return self.world.cold(self.label, self.call)

    def warm(self, number: int, repeats: int, kind: BackToBack = "warm") -> Reading:
        return self.world.warm(self.label, self.call, repeats, kind)

    def hot(self, limit_s: float) -> HotReading:
        return self.world.hot_blocks(self.label, self.us / 2, limit_s)


QUICK = Plan(warm_up_s=0.0, min_s=0.0)


def rounds_of(
    world: World,
    *fakes: Fake,
    plan: Plan = QUICK,
    baseline: str = "",
    first_ms: float | None = None,
    **options: Any,
) -> Rounds:
    """Rounds of ``fakes``; the default baseline is the first."""
    entries = [Entry(fake.impl, fake, first_ms) for fake in fakes]
    return Rounds(baseline or entries[0].label, entries, world, plan, **options)


def timing(rounds: Rounds, label: str) -> Timing:
    found = rounds.results()[label]
    assert isinstance(found, Timing), found
    return found
