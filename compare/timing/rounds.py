"""Rounds of samples: their order, when to stop, and the times and ratios that follow.

What is timed:

- *first call*: host time of the first call in the process and the GPU work it starts, compilation included;
- *cold*: GPU time of one call with the L2 flushed, on inputs that rotate through several sets;
- *warm*: GPU time a call, several back to back on the same inputs;
- *graph*: GPU time of one replay of the call captured as a CUDA graph, warm;
- *launch*: host time until the call returns while the GPU is busy; the median of a batch is one sample.

Each round takes a cold sample from every implementation, in a new random order, so that a drift of clocks,
power or temperature affects all alike; the first rounds take one of each other kind as well.  A ratio is the
median of the cold ratios within rounds.  Rounds end when every ratio's 95% interval is tight or the time
budget is used, but not before each implementation has its least number of samples: a slow one is sampled less
often, a fast one never starves.  Every sample is kept.  GPU times are the difference of two events.  The time
of an empty pair is not subtracted; a note gives it where it matters.

Nothing here touches a GPU; time comes from `Timed` implementations and a `Clock`.
"""

from __future__ import annotations

import math
import random
import statistics
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from compare.spec import Estimate, Implementation, Options, Ratio, Timing
from compare.timing.ceilings import CeilingMeter
from compare.timing.statistics import estimate, outliers, within
from compare.timing.stopwatch import Clock
from compare.timing.sustained import Endurance, endure
from compare.timing.timed import Timed

Progress = Callable[[float], None]
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


@dataclass(frozen=True)
class Sample:
    """The times of one implementation in one round, in microseconds."""

    cold_us: float
    warm_us: float | None = None
    launch_us: float | None = None
    graph_us: float | None = None
    sm_mhz: float | None = None
    """The card's clock right after the cold call."""


@dataclass
class Entry:
    """One implementation while it is being timed."""

    impl: Implementation
    timed: Timed
    first_ms: float | None = None
    """Time of its first call, where that was timed earlier."""
    call_ms: float = 0.0
    """Host time of a call and its GPU work at the beginning of timing, or a later cold time that is less."""
    spent_s: float = 0.0
    """Cost of its samples so far."""
    sampled: int = 0
    """Number of rounds that sampled it."""
    has_graph: bool = False
    repeats: int = 1
    endurance: Endurance | None = None
    error: Exception | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.impl.label


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
        self.samples: list[dict[str, Sample]] = []
        """By label, round after round."""
        self.converged = False
        self._share_s = math.inf
        self._random = random.Random(seed)
        self._empty_us: list[float] = []

    def run(self, budget_s: float, progress: Progress | None = None) -> None:
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
            self.samples.append(self._round(len(self.samples), due))
            count, spent = len(self.samples), self.clock.now_s() - begin
            if progress is not None:
                progress(min(1.0, spent / budget_s) if budget_s > 0 else 1.0)
            if count >= check_at and spent >= min(self.plan.min_s, budget_s):
                self.converged = self.tight()
                check_at = max(count + 1, math.ceil(1.1 * count))
            done = (self.converged or spent >= budget_s) and not any(map(self._is_short, self._active()))
            if done or count >= self.plan.max_rounds:
                break
        if self.plan.sustained:
            self._endure()

    def _endure(self) -> None:
        for entry in self._shuffled(self._active()):
            with _contained(entry):
                cold_us, launch_us = (
                    statistics.median(self._series(entry.label, kind)) for kind in ("cold_us", "launch_us")
                )
                entry.endurance = endure(entry.timed, self.clock, cold_us, launch_us)

    def tight(self) -> bool:
        """Whether every ratio's interval is tight, or the cold time's where there is no ratio."""
        due = self._due()
        for entry in due:
            ratios = self._ratios(entry)[0]
            known = [ratio.value for ratio in ratios] or [estimate(self._series(entry.label, "cold_us"))]
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
            elif any(label in samples for samples in self.samples):
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
        entry.call_ms = entry.timed.first()
        if entry.first_ms is None:
            entry.first_ms = entry.call_ms
        if self._is_slow(entry):
            entry.call_ms = entry.timed.first()  # the first call may only have kept the host busy
        if self._is_slow(entry) and not entry.impl.foreign:  # a user's is verified by its graph
            return
        try:
            entry.timed.capture()
            entry.has_graph = True
        except Exception as error:
            entry.notes.append(f"no CUDA graph: {_first_line(error)}")
            release(error)

    def _is_slow(self, entry: Entry) -> bool:
        return entry.call_ms > self.plan.slow_ms

    def _warm_up(self, until_s: float) -> None:
        while True:
            samples = self._round(0, [each for each in self._active() if not self._is_slow(each)])
            for label, sample in samples.items():
                by_gpu = self.plan.batch_us / max(sample.cold_us, 0.1)
                by_host = self.plan.batch_host_us / max(sample.launch_us or 0.0, 0.1)
                wanted = round(min(by_gpu, by_host, self.plan.most_repeats))
                self.entries[label].repeats = max(1, wanted)
            for entry in self.entries.values():
                entry.spent_s, entry.sampled = 0.0, 0
            if not samples or self.clock.now_s() >= until_s:
                break
        self._empty_us.clear()
        if self.ceilings is not None:
            self.ceilings.restart()

    def _round(self, number: int, due: Sequence[Entry]) -> dict[str, Sample]:
        """One sample of each kind from each entry that is ``due``, in a new random order for each kind."""
        cold: dict[str, float] = {}
        clocks: dict[str, float | None] = {}
        samples: dict[str, Sample] = {}
        for entry in self._shuffled(due):  # close together: ratios are of these
            with _contained(entry), self._on_account_of(entry):
                cold[entry.label] = entry.timed.cold(number % entry.timed.sets).gpu_us
                entry.call_ms = min(entry.call_ms, cold[entry.label] / 1e3)
                clocks[entry.label] = self.ceilings.clock_mhz() if self.ceilings else None
        if self.ceilings is not None:
            self.ceilings.sample()
        for entry in self._shuffled(due):
            with _contained(entry), self._on_account_of(entry):
                sample = Sample(cold[entry.label], sm_mhz=clocks[entry.label])
                if entry.sampled < (1 if self._is_slow(entry) else self.plan.warm_rounds):
                    warm = entry.timed.warm(number % entry.timed.sets, entry.repeats)
                    graph_us = entry.timed.graph(entry.repeats).gpu_us if entry.has_graph else None
                    sample = replace(sample, warm_us=warm.gpu_us, launch_us=warm.host_us, graph_us=graph_us)
                samples[entry.label] = sample
                entry.sampled += 1
        self._empty_us.append(self.clock.empty_us())
        return samples

    @contextmanager
    def _on_account_of(self, entry: Entry) -> Iterator[None]:
        begin = self.clock.now_s()
        yield
        entry.spent_s += self.clock.now_s() - begin

    def _shuffled(self, entries: Sequence[Entry]) -> list[Entry]:
        order = [entry for entry in entries if entry.error is None]
        self._random.shuffle(order)
        return order

    # ----------------------------------------------------------------------- what follows

    def _series(self, label: str, kind: str) -> list[float]:
        """All samples of one kind, rounded to the nanosecond."""
        taken = (getattr(samples[label], kind) for samples in self.samples if label in samples)
        return [round(value, 3) for value in taken if value is not None]

    def _timing(self, entry: Entry) -> Timing:
        label = entry.label
        cold, graph = self._series(label, "cold_us"), self._series(label, "graph_us")
        ratios, notes = self._ratios(entry)
        return Timing(
            cold_us=estimate(cold),
            warm_us=estimate(self._series(label, "warm_us")),
            graph_us=estimate(graph) if graph else None,
            launch_us=estimate(self._series(label, "launch_us")),
            first_call_ms=entry.first_ms,
            ratios=tuple(ratios),
            rounds=len(cold),
            converged=self.converged,
            notes=(*entry.notes, *notes, *self._remarks(entry, cold), *_endured(entry)),
            sm_mhz=statistics.median(clocks) if (clocks := self._series(label, "sm_mhz")) else None,
            burst_us=entry.endurance.burst_us if entry.endurance else None,
            sustained_us=entry.endurance.sustained_us if entry.endurance else None,
        )

    def _ratios(self, entry: Entry) -> tuple[list[Ratio], list[str]]:
        """The ratios to the baseline and to the level's reference; a note for each missing one."""
        ratios: list[Ratio] = []
        notes: list[str] = []
        impls = [each.impl for each in self.entries.values()]
        for other in dict.fromkeys((self.baseline, reference(entry.label, impls))):
            if other is None or other == entry.label:
                continue
            why = self._incomparable(entry, self.entries.get(other))
            value = None if why else self._ratio(entry.label, other)
            if value is not None:
                ratios.append(Ratio(other, value))
                notes.extend(self._clocks_apart(entry.label, other))
            else:
                notes.append(f"no ratio to {other}: {why or 'no round timed both'}")
        return ratios, notes

    def _clocks_apart(self, label: str, other: str) -> Iterator[str]:
        """A note where the two ran at different SM clocks: a power-hungry kernel lowers its own clock."""
        series = [self._series(name, "sm_mhz") for name in (label, other)]
        if all(series):
            own, theirs = map(statistics.median, series)
            if theirs > 0 and abs(own / theirs - 1) > OTHER_CLOCK:
                yield f"it ran at {own:.0f} MHz and {other} at {theirs:.0f} MHz: part of their ratio"

    def _incomparable(self, own: Entry, other: Entry | None) -> str | None:
        """Why the two are not comparable; None where the terms are equal."""
        if other is None:
            return "it was not timed"
        if other.error is not None:
            return f"it failed ({_first_line(other.error)})"
        if own.impl.accumulator != other.impl.accumulator:
            return f"unequal terms, accumulator {own.impl.accumulator} vs {other.impl.accumulator}"
        if own.timed.output_dtype != other.timed.output_dtype:
            return f"unequal terms, output {own.timed.output_dtype} vs {other.timed.output_dtype}"
        return None

    def _ratio(self, label: str, other: str) -> Estimate | None:
        """Speedup of ``label`` vs. ``other``, from the rounds that timed both."""
        pairs = [(r[other].cold_us, r[label].cold_us) for r in self.samples if label in r and other in r]
        values = [theirs / own for theirs, own in pairs if own > 0 and theirs > 0]
        return estimate([round(value, 5) for value in values]) if values else None

    def _remarks(self, entry: Entry, cold: Sequence[float]) -> Iterator[str]:
        if entry.timed.exposed("cold") or entry.timed.exposed("warm"):
            yield "its call synchronizes, or its launch is slower than the GPU: GPU times include host time"
        rounds = len(self.samples)
        if len(cold) < rounds:
            yield f"timed in {len(cold)} of {rounds} rounds: these used its share of the time"
        odd = outliers(cold)
        if odd > MANY_OUTLIERS * len(cold):
            yield f"{odd} of {len(cold)} cold samples are outliers (kept)"
        empty_us = statistics.median(self._empty_us) if self._empty_us else 0.0
        if empty_us > NOTICEABLE * statistics.median(cold):
            at_resolution = statistics.median(cold) < RESOLUTION * empty_us
            lead = "its cold time is at the clock's resolution: " if at_resolution else ""
            yield f"{lead}an empty pair of events reads {empty_us:.1f} us, which is not subtracted"


def _endured(entry: Entry) -> Iterator[str]:
    if entry.endurance is not None and not entry.endurance.settled:
        yield "its time under sustained load did not settle within the time limit"
    if any(entry.timed.exposed(kind) for kind in ("burst", "sustained")):
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
