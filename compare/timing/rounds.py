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
from compare.model.result import Options, Ratio, Timing
from compare.timing.ceilings import CeilingMeter
from compare.timing.statistics import estimate, outliers, paired, within
from compare.timing.stopwatch import HOT_KEPT, HOT_TOTAL, Clock, HotReading, Timer
from compare.timing.sustained import bursts, repeats_for, sustained

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
    """Rounds that sample warm and graph as well: verdicts and ratios are of cold times only."""
    hot_s: float = 0.5
    """Most time of the calls back to back that measure launch overhead.  A row whose calls take longer has
    none: their number must not depend on GPU time, and beside 2 ms of GPU time no launch overhead matters."""
    hot_again_s: float = 0.1
    """They are repeated in as many warm rounds as fit into this.  The lowest reading counts, because other
    processes on the host only add to it."""
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


Series = Literal[
    "cold_us",
    "warm_us",
    "graph_us",
    "hot_launch_us",
    "back_to_back_us",
    "after_idle_us",
    "sm_mhz",
    "burst_us",
    "sustained_us",
]
"""Microseconds of one kind of sample; or the card's clock in MHz, right after a cold call."""

Samples = dict[Series, float]
"""One implementation's samples of one round, to the nanosecond."""


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
    host_us: float = 0.0
    """Host time of a call of its last warm sample."""
    hot_s: float = 0.0
    """Time of the calls that measured its launch overhead."""
    spent_s: float = 0.0
    """Cost of its samples so far."""
    has_graph: bool = False
    repeats: int = 1
    samples: dict[Series, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of completed rounds, from the first: once left out of a round, it is left out of all later ones."""
    exposed: bool = False
    """A GPU time contains host time."""
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
            with self._contained(entry):
                self._prepare(entry)
        self._share_s = budget_s * FAIR / max(1, len(self._active()))
        begin = self.clock.now_s()
        self._warm_up(begin + min(self.plan.warm_up_s, budget_s))
        check_at = self.plan.min_rounds
        while due := self._due():
            self._keep(self._round(self.count, due))
            self._empty_us.append(self.clock.empty_us())
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
            if entry.label == self.baseline and len(due) > 1:
                continue  # it is in the others' ratios
            ratios, _ = self._ratios(entry)
            values = [ratio.value for ratio in ratios] or [estimate(entry.samples["cold_us"])]
            if not all(within(value, self.plan.tight) for value in values):
                return False
        return True

    def results(self) -> dict[str, Result]:
        """By label, in the order of the entries: the times, or the error."""
        results: dict[str, Result] = {}
        for label, entry in self.entries.items():
            if entry.error is not None:
                results[label] = entry.error
            elif entry.sampled:
                results[label] = self._timing(entry)
            elif entry.first_ms is not None:
                note = "interrupted before its first round"
                results[label] = Timing(first_call_ms=entry.first_ms, notes=(note,))
        return results

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
            discarded = self._round(number, due)
            for entry in due:
                samples = discarded[entry.label]
                call_us = samples.get("cold_us", 0.0), entry.host_us
                repeats = repeats_for(plan.batch_us, plan.batch_host_us, *call_us)
                entry.repeats = min(repeats, plan.most_repeats)
            number -= 1
            if self.clock.now_s() >= until_s:
                break
        for entry in self._active():
            entry.spent_s = 0.0
        if self.ceilings is not None:
            self.ceilings.monitor.restart()

    def _round(self, number: int, due: Sequence[Entry]) -> dict[str, Samples]:
        """One sample of each kind from each entry that is ``due``, in a new random order for each kind."""
        taken: dict[str, Samples] = {entry.label: {} for entry in due}
        for entry in self._shuffled(due):  # close together: ratios are of these
            with self._contained(entry):
                self._sample_cold(entry, number, taken[entry.label])
        if self.ceilings is not None:
            self.ceilings.sample()
        for entry in self._shuffled(due):
            if entry.sampled < (1 if self._is_slow(entry) else self.plan.warm_rounds):
                with self._contained(entry):
                    self._sample_warm(entry, number, taken[entry.label])
        return taken

    def _keep(self, taken: dict[str, Samples]) -> None:
        """Keep the samples of a round, which is complete: Ctrl-C leaves out those of its last one."""
        for label, samples in taken.items():
            for kind, value in samples.items():
                self.entries[label].samples[kind].append(value)
        self.count += 1

    def _sample_cold(self, entry: Entry, number: int, samples: Samples) -> None:
        reading = entry.timer.cold(number)
        entry.exposed |= reading.exposed
        samples["cold_us"] = round(reading.gpu_us, 3)
        entry.call_ms = min(entry.call_ms, reading.gpu_us / 1e3)
        clock_mhz = self.ceilings.monitor.clock_mhz() if self.ceilings else None
        if clock_mhz is not None:
            samples["sm_mhz"] = clock_mhz

    def _sample_warm(self, entry: Entry, number: int, samples: Samples) -> None:
        """The host time of the first call after idle, and the GPU times of calls back to back."""
        reading = entry.timer.warm(number, entry.repeats)
        entry.host_us = reading.host_us
        samples["after_idle_us"] = round(reading.after_idle_us, 3)
        if number >= 0:
            self._measure_launch(entry)
        if entry.cold_only:
            return
        samples["warm_us"] = round(reading.gpu_us, 3)
        entry.exposed |= reading.exposed
        if entry.has_graph:
            samples["graph_us"] = round(entry.timer.warm(number, entry.repeats, "graph").gpu_us, 3)

    def _measure_launch(self, entry: Entry) -> None:
        """Launch overhead, hot.  All other workers wait for a request meanwhile, or are stopped."""
        limit_s, kept = self.plan.hot_s, entry.samples.get("hot_launch_us", [])
        next_s = entry.call_ms * HOT_TOTAL / 1e3
        if entry.hot_s and entry.hot_s + next_s > self.plan.hot_again_s:
            return
        begin_s, reading = self.clock.now_s(), HotReading((), ())
        if next_s <= limit_s:
            reading = entry.timer.hot(limit_s)
        entry.hot_s += self.clock.now_s() - begin_s
        if len(reading.host_us) < HOT_KEPT:
            entry.hot_s = math.inf
            entry.notes.append(f"launch overhead not measured: {HOT_TOTAL} calls take over {limit_s:g} s")
        elif not kept or statistics.median(reading.host_us) < statistics.median(kept):
            entry.samples["hot_launch_us"] = [round(us, 3) for us in reading.host_us]
            entry.samples["back_to_back_us"] = [round(us, 3) for us in reading.back_to_back_us]

    def _endure(self) -> None:
        for entry in self._shuffled(self._active()):
            if not entry.cold_only:
                with self._contained(entry):
                    self._load(entry)

    def _load(self, entry: Entry) -> None:
        """Bursts, and sustained load."""
        cold_us = statistics.median(entry.samples["cold_us"])
        burst = bursts(entry.timer, cold_us, entry.host_us)
        steady, settled = sustained(entry.timer, self.clock, cold_us, entry.host_us)
        entry.samples["burst_us"] = [round(reading.gpu_us, 3) for reading in burst]
        entry.samples["sustained_us"] = [round(reading.gpu_us, 3) for reading in steady]
        if not settled:
            entry.notes.append("its time under sustained load did not settle within the time limit")
        if any(reading.exposed for reading in (*burst, *steady)):
            entry.notes.append(
                "its burst and sustained times include host time: the host is slower than the GPU"
            )

    @contextmanager
    def _contained(self, entry: Entry) -> Iterator[None]:
        """An exception ends the timing of ``entry`` and of no other; the time that passes is its cost."""
        begin = self.clock.now_s()
        try:
            yield
        except Exception as error:
            release(error)
            entry.error = error
        entry.spent_s += self.clock.now_s() - begin

    def _shuffled(self, entries: Sequence[Entry]) -> list[Entry]:
        order = [entry for entry in entries if entry.error is None]
        self._random.shuffle(order)
        return order

    # ----------------------------------------------------------------------- what follows

    def _timing(self, entry: Entry) -> Timing:
        times = {kind: estimate(us) for kind, us in entry.samples.items() if us}
        ratios, notes = self._ratios(entry)
        clock = times.get("sm_mhz")
        return Timing(
            cold_us=times.get("cold_us"),
            warm_us=times.get("warm_us"),
            graph_us=times.get("graph_us"),
            hot_launch_us=times.get("hot_launch_us"),
            back_to_back_us=times.get("back_to_back_us"),
            after_idle_us=times.get("after_idle_us"),
            first_call_ms=entry.first_ms,
            ratios=tuple(ratios),
            rounds=entry.sampled,
            converged=self.converged,
            notes=(*entry.notes, *notes, *self._remarks(entry)),
            unverified=entry.unverified,
            sm_mhz=clock.median if clock else None,
            burst_us=times.get("burst_us"),
            sustained_us=times.get("sustained_us"),
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
            if other is None or why is not None:
                notes.append(f"no ratio to {label}: {why}")
            elif pairs := paired(entry.samples["cold_us"], other.samples["cold_us"]):
                ratios.append(Ratio(label, estimate([round(ratio, 5) for ratio in pairs])))
                notes.extend(self._clocks_apart(entry, other))
            else:
                notes.append(f"no ratio to {label}: no round timed both")
        return ratios, notes

    def _clocks_apart(self, entry: Entry, other: Entry) -> Iterator[str]:
        """A note where the two ran at different SM clocks: a power-hungry kernel lowers its own clock."""
        series = [each.samples["sm_mhz"] for each in (entry, other)]
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

    def _remarks(self, entry: Entry) -> Iterator[str]:
        cold = entry.samples["cold_us"]
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


def release(error: BaseException) -> None:
    """Clear the frames of an exception's traceback: they hold tensors, after an out-of-memory error too."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__context__


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
