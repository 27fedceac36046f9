"""Rounds of samples: their order, when to stop, and the times and ratios that follow.

Each round takes a cold sample from every implementation, in a new random order, so that a drift of clocks,
power or temperature affects all alike; the first rounds take one of each other kind as well.  A ratio is the
median of the cold ratios within rounds.  Rounds end when every ratio's 95% interval is tight or the time
budget is used, but not before each implementation has its least number of samples: a slow one is sampled less
often, a fast one never starves.  Every sample is kept.  GPU times are the difference of two events.  The time
of an empty pair is not subtracted; a note gives it where it matters.

Nothing here touches a GPU; time comes from a `Timer` of each implementation and a `Clock`.
"""

from __future__ import annotations

import math
import random
import statistics
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from compare.model.op import Implementation
from compare.model.result import Estimate, Options, Ratio, Timing
from compare.timing.ceilings import CeilingMeter
from compare.timing.statistics import estimate, outliers, within
from compare.timing.stopwatch import Clock, Timer
from compare.timing.sustained import Endurance, endure

RoundProgress = Callable[[float], None]
"""Called after every round with the share of the timing that is done, 0 to 1."""

Result = Timing | Exception

NOTICEABLE = 0.05
"""Share of a cold time from which a note gives the time of an empty event pair."""

RESOLUTION = 4.0
"""A cold time shorter than this many empty event pairs is at the clock's resolution."""

OTHER_CLOCK = 0.01
"""Difference of two implementations' SM clocks from which a note gives both."""

MANY_OUTLIERS = 0.05
"""Share of a series from which a note counts its outliers."""


FAIR = 2.0
"""Most time of one implementation, as a multiple of an equal share; then it is left out of further rounds."""


@dataclass(frozen=True)
class Plan:
    """When to stop, and how long one sample may take."""

    min_rounds: int = Options.samples[0]
    """Least cold samples of each implementation, whatever the budget."""
    min_slow: int = Options.samples[1]
    """The same for an implementation whose call takes more than `slow_ms`."""
    max_rounds: int = 300
    warm_rounds: int = 10
    """Rounds that sample warm, graph and launch as well: verdicts and ratios are of cold times only."""
    min_s: float = 0.5
    """Least duration: ten rounds of a small case would cover one moment of the card only."""
    tight: float = 0.01
    """Half the width of a ratio's interval, as a share of the ratio."""
    warm_up_s: float = 0.1
    """Discarded rounds, at least one: they raise the clocks and fill the allocator's cache."""
    batch_us: float = 100.0
    """Approximate GPU time of the repeated calls of a warm sample."""
    batch_host_us: float = 500.0
    """Most host time of a warm sample."""
    most_repeats: int = 20
    """Most calls of a warm sample."""
    slow_ms: float = 10.0
    """A slower call gets no warm-up round, one warm sample and no graph."""
    sustained: bool = False
    """Time bursts and sustained load after the rounds: about two seconds each."""


def reference(label: str, impls: Sequence[Implementation]) -> str | None:
    """Reference implementation for ``label`` at its optimisation level, or None.

    Triton's implementation of the same variant, else the level's first in PyTorch, else its first in Triton.
    """
    own = next(impl for impl in impls if impl.label == label)
    peers = [impl for impl in impls if impl.level == own.level]
    candidates = [impl for impl in peers if impl.way == "triton" and impl.variant == own.variant]
    candidates += [impl for impl in peers if impl.way == "torch"]
    candidates += [impl for impl in peers if impl.way == "triton"]
    first = candidates[0].label if candidates else label
    return None if first == label else first


Series = Literal["cold_us", "warm_us", "launch_us", "graph_us", "sm_mhz"]
"""Microseconds of one kind of sample; or the card's clock in MHz, right after a cold call."""


@dataclass
class Entry:
    """One implementation while it is being timed."""

    impl: Implementation
    timer: Timer
    first_ms: float | None = None
    """Time of its first call, where that was timed earlier."""
    cold_only: bool = False
    """A user's: nothing would notice a kernel that leaves its result for the next of calls back to back."""
    unverified: str = ""
    """Why its times are its own process's word; empty where they are not."""
    notes: list[str] = field(default_factory=list)
    call_ms: float = 0.0
    """Host time of a call and its GPU work at the beginning of timing, or a later cold time that is less."""
    spent_s: float = 0.0
    """Cost of its samples so far."""
    has_graph: bool = False
    repeats: int = 1
    samples: dict[Series, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """By the round's number."""
    exposed: bool = False
    """A GPU time contains host time."""
    endurance: Endurance | None = None
    error: Exception | None = None

    @property
    def label(self) -> str:
        return self.impl.label

    @property
    def sampled(self) -> int:
        """Number of rounds that sampled it."""
        return len(self.samples["cold_us"])


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement; ``partial`` holds the results of the completed rounds."""

    def __init__(self, partial: dict[str, Result]) -> None:
        super().__init__()
        self.partial = partial


class Rounds:
    """Rounds of samples of ``entries``, and the times and ratios that follow.

    Args:
        baseline: label of the denominator of ratios.
        entries: correct implementations.
        clock: the clock of the run.
        plan: when to stop.
        seed: of the order within rounds.
        ceilings: sampled once a round, so that drift affects them alike.
    """

    def __init__(
        self,
        baseline: str,
        entries: Sequence[Entry],
        clock: Clock,
        plan: Plan,
        seed: int = 0,
        ceilings: CeilingMeter | None = None,
    ) -> None:
        self.baseline, self.clock, self.plan, self.ceilings = baseline, clock, plan, ceilings
        self.entries = {entry.label: entry for entry in entries}
        self.count = 0
        """Number of completed rounds."""
        self.converged = False
        self._share_s = math.inf
        self._random = random.Random(seed)
        self._empty_us: list[float] = []

    def run(self, budget_s: float, progress: RoundProgress | None = None) -> None:
        """Take samples until the intervals are tight or the budget is used.

        `results` has the completed rounds, after an exception too.
        """
        for entry in self._active():
            with _contained(entry):
                self._prepare(entry)
        self._share_s = budget_s * FAIR / max(1, len(self._active()))
        begin = self.clock.now_s()
        self._warm_up(begin + min(self.plan.warm_up_s, budget_s))
        check_at = self.plan.min_rounds
        while due := self._due():
            self._round(self.count, due)
            self.count += 1
            spent = self.clock.now_s() - begin
            if progress is not None:
                progress(min(1.0, spent / budget_s) if budget_s > 0 else 1.0)
            if self.count >= check_at and spent >= min(self.plan.min_s, budget_s):
                self.converged = self.tight()
                check_at = max(self.count + 1, math.ceil(1.1 * self.count))
            done = (self.converged or spent >= budget_s) and not any(map(self._is_short, self._active()))
            if done or self.count >= self.plan.max_rounds:
                break
        if self.plan.sustained:
            self._endure()

    def tight(self) -> bool:
        """Whether every ratio's interval is tight, or the cold time's where there is no ratio."""
        due = self._due()
        for entry in due:
            ratios = self._ratios(entry)[0]
            known = [ratio.value for ratio in ratios] or [estimate(self._series(entry, "cold_us"))]
            if entry.label == self.baseline and len(due) > 1:
                continue  # it is in the others' ratios
            if not all(within(value, self.plan.tight) for value in known):
                return False
        return True

    def results(self) -> dict[str, Result]:
        """By label, in the order of the entries: the times, or the error."""
        found: dict[str, Result] = {}
        for label, entry in self.entries.items():
            if entry.error is not None:
                found[label] = entry.error
            elif self._series(entry, "cold_us"):
                found[label] = self._timing(entry)
            elif entry.first_ms is not None:
                note = "interrupted before its first round"
                found[label] = Timing(first_call_ms=entry.first_ms, notes=(note,))
        return found

    # ----------------------------------------------------------------------- sampling

    def _active(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.error is None]

    def _due(self) -> list[Entry]:
        """The entries of the next round: without those that have used more than their share of the time."""
        return [
            entry
            for entry in self._active()
            if self._is_short(entry)
            or entry.label == self.baseline
            or entry.spent_s * (1 + 1 / max(1, entry.sampled)) <= self._share_s
        ]

    def _is_short(self, entry: Entry) -> bool:
        """Whether it has fewer samples than every implementation gets, whatever the budget."""
        least = self.plan.min_slow if self._is_slow(entry) else self.plan.min_rounds
        return entry.sampled < min(least, self.plan.max_rounds)

    def _prepare(self, entry: Entry) -> None:
        """Make the first call, then capture a graph: of a slow call none, as launching is no part of it."""
        entry.call_ms = entry.timer.first()
        if entry.first_ms is None:
            entry.first_ms = entry.call_ms
        if self._is_slow(entry):
            entry.call_ms = entry.timer.first()  # the first call may only have kept the host busy
        if self._is_slow(entry) or entry.cold_only:
            return
        try:
            entry.timer.capture()
            entry.has_graph = True
        except Exception as error:
            entry.notes.append(f"no CUDA graph: {_first_line(error)}")
            release(error)

    def _is_slow(self, entry: Entry) -> bool:
        return entry.call_ms > self.plan.slow_ms

    def _warm_up(self, until_s: float) -> None:
        """Discarded rounds, with negative numbers; they tell how often to repeat a call."""
        plan, number = self.plan, -1
        while due := [each for each in self._active() if not self._is_slow(each)]:
            self._round(number, due)
            for entry in due:
                by_gpu = plan.batch_us / max(entry.samples["cold_us"].get(number, 0.0), 0.1)
                by_host = plan.batch_host_us / max(entry.samples["launch_us"].get(number, 0.0), 0.1)
                entry.repeats = max(1, round(min(by_gpu, by_host, plan.most_repeats)))
                entry.spent_s = 0.0
                entry.samples.clear()
            number -= 1
            if self.clock.now_s() >= until_s:
                break
        self._empty_us.clear()
        if self.ceilings is not None:
            self.ceilings.restart()

    def _round(self, number: int, due: Sequence[Entry]) -> None:
        """One sample of each kind from each entry that is ``due``, in a new random order for each kind."""
        for entry in self._shuffled(due):  # close together: ratios are of these
            with self._on_account_of(entry):
                reading = entry.timer.cold(number)
                entry.exposed |= reading.exposed
                entry.samples["cold_us"][number] = reading.gpu_us
                entry.call_ms = min(entry.call_ms, reading.gpu_us / 1e3)
                clock_mhz = self.ceilings.clock_mhz() if self.ceilings else None
                if clock_mhz is not None:
                    entry.samples["sm_mhz"][number] = clock_mhz
        if self.ceilings is not None:
            self.ceilings.sample()
        for entry in self._shuffled(due):
            if entry.sampled <= (1 if self._is_slow(entry) else self.plan.warm_rounds):
                with self._on_account_of(entry):
                    self._sample_warm(entry, number)
        self._empty_us.append(self.clock.empty_us())

    def _sample_warm(self, entry: Entry, number: int) -> None:
        """Launch overhead, and the GPU times of calls back to back."""
        reading = entry.timer.warm(number, entry.repeats)
        entry.samples["launch_us"][number] = reading.host_us
        if entry.cold_only:
            return
        entry.samples["warm_us"][number] = reading.gpu_us
        entry.exposed |= reading.exposed
        if entry.has_graph:
            entry.samples["graph_us"][number] = entry.timer.warm(number, entry.repeats, "graph").gpu_us

    def _endure(self) -> None:
        for entry in self._shuffled(self._active()):
            if not entry.cold_only:
                with _contained(entry):
                    cold_us = statistics.median(self._series(entry, "cold_us"))
                    launch_us = statistics.median(self._series(entry, "launch_us"))
                    entry.endurance = endure(entry.timer, self.clock, cold_us, launch_us)

    @contextmanager
    def _on_account_of(self, entry: Entry) -> Iterator[None]:
        begin = self.clock.now_s()
        with _contained(entry):
            yield
        entry.spent_s += self.clock.now_s() - begin

    def _shuffled(self, entries: Sequence[Entry]) -> list[Entry]:
        order = [entry for entry in entries if entry.error is None]
        self._random.shuffle(order)
        return order

    # ----------------------------------------------------------------------- what follows

    def _completed(self, entry: Entry, kind: Series) -> dict[int, float]:
        """The samples of one kind of the completed rounds, by the round's number."""
        return {number: us for number, us in entry.samples[kind].items() if 0 <= number < self.count}

    def _series(self, entry: Entry, kind: Series) -> list[float]:
        """The same, rounded to the nanosecond."""
        return [round(us, 3) for us in self._completed(entry, kind).values()]

    def _estimate(self, entry: Entry, kind: Series) -> Estimate | None:
        series = self._series(entry, kind)
        return estimate(series) if series else None

    def _timing(self, entry: Entry) -> Timing:
        cold = self._series(entry, "cold_us")
        ratios, notes = self._ratios(entry)
        clocks = self._series(entry, "sm_mhz")
        return Timing(
            cold_us=estimate(cold),
            warm_us=self._estimate(entry, "warm_us"),
            graph_us=self._estimate(entry, "graph_us"),
            launch_us=self._estimate(entry, "launch_us"),
            first_call_ms=entry.first_ms,
            ratios=tuple(ratios),
            rounds=len(cold),
            converged=self.converged,
            notes=(*entry.notes, *notes, *self._remarks(entry, cold)),
            unverified=entry.unverified,
            sm_mhz=statistics.median(clocks) if clocks else None,
            burst_us=entry.endurance.burst_us if entry.endurance else None,
            sustained_us=entry.endurance.sustained_us if entry.endurance else None,
        )

    def _ratios(self, entry: Entry) -> tuple[list[Ratio], list[str]]:
        """The ratios to the baseline and to the level's reference; a note for each missing one."""
        ratios: list[Ratio] = []
        notes: list[str] = []
        impls = [each.impl for each in self.entries.values()]
        for label in dict.fromkeys((self.baseline, reference(entry.label, impls))):
            if label is None or label == entry.label:
                continue
            other = self.entries.get(label)
            why = self._incomparable(entry, other)
            value = None if why or other is None else self._ratio(entry, other)
            if value is not None and other is not None:
                ratios.append(Ratio(label, value))
                notes.extend(self._clocks_apart(entry, other))
            else:
                notes.append(f"no ratio to {label}: {why or 'no round timed both'}")
        return ratios, notes

    def _clocks_apart(self, entry: Entry, other: Entry) -> Iterator[str]:
        """A note where the two ran at different SM clocks: a power-hungry kernel lowers its own clock."""
        series = [self._series(each, "sm_mhz") for each in (entry, other)]
        if all(series):
            own, theirs = map(statistics.median, series)
            if theirs > 0 and abs(own / theirs - 1) > OTHER_CLOCK:
                yield f"it ran at {own:.0f} MHz and {other.label} at {theirs:.0f} MHz: part of their ratio"

    def _incomparable(self, own: Entry, other: Entry | None) -> str | None:
        """Why the two are not comparable; None where the terms are equal."""
        if other is None:
            return "it was not timed"
        if other.error is not None:
            return f"it failed ({_first_line(other.error)})"
        if own.impl.accumulator != other.impl.accumulator:
            return f"unequal terms, accumulator {own.impl.accumulator} vs {other.impl.accumulator}"
        if own.timer.output_dtype != other.timer.output_dtype:
            return f"unequal terms, output {own.timer.output_dtype} vs {other.timer.output_dtype}"
        return None

    def _ratio(self, entry: Entry, other: Entry) -> Estimate | None:
        """Speedup of ``entry`` vs. ``other``, from the completed rounds that timed both."""
        own, theirs = (self._completed(each, "cold_us") for each in (entry, other))
        pairs = [(theirs[number], us) for number, us in own.items() if number in theirs]
        values = [round(others / us, 5) for others, us in pairs if us > 0 and others > 0]
        return estimate(values) if values else None

    def _remarks(self, entry: Entry, cold: Sequence[float]) -> Iterator[str]:
        if entry.exposed:
            yield "its call synchronizes, or its launch is slower than the GPU: GPU times include host time"
        if entry.cold_only:
            yield "no warm times: back to back, a kernel may find its output there already"
        if len(cold) < self.count:
            yield f"timed in {len(cold)} of {self.count} rounds: these used its share of the time"
        odd = outliers(cold)
        if odd > MANY_OUTLIERS * len(cold):
            yield f"{odd} of {len(cold)} cold samples are outliers (kept)"
        empty_us = statistics.median(self._empty_us) if self._empty_us else 0.0
        if empty_us > NOTICEABLE * statistics.median(cold):
            at_resolution = statistics.median(cold) < RESOLUTION * empty_us
            lead = "its cold time is at the clock's resolution: " if at_resolution else ""
            yield f"{lead}an empty pair of events reads {empty_us:.1f} us, which is not subtracted"
        if entry.endurance is not None and not entry.endurance.settled:
            yield "its time under sustained load did not settle within the time limit"
        if entry.endurance is not None and entry.endurance.exposed:
            yield "its burst and sustained times include host time: the host is slower than the GPU"


@contextmanager
def _contained(entry: Entry) -> Iterator[None]:
    """An exception ends the timing of ``entry`` and of no other."""
    try:
        yield
    except Exception as error:
        release(error)
        entry.error = error


def release(error: BaseException) -> None:
    """Clear the frames of an exception's traceback: they hold tensors, after an out-of-memory error too."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__context__


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
