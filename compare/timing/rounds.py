"""Rounds: who is sampled when, when to stop, and what follows from the samples.

Nothing here touches a GPU; time comes from a `Stopwatch`.
"""

from __future__ import annotations

import math
import random
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from compare.spec import Estimate, Implementation, Ratio, Timing
from compare.timing.ceilings import CeilingMeter
from compare.timing.statistics import estimate, outliers, within
from compare.timing.stopwatch import Call, Stopwatch
from compare.timing.sustained import Endurance, endure

Progress = Callable[[float], None]
"""Called after every round with the share of the timing that is over, 0 to 1."""

Result = Timing | Exception

NOTICEABLE = 0.05
"""The share of a cold time from which the event pair's own time is worth a note."""

OTHER_CLOCK = 0.01
"""By how much the clocks of a ratio's two sides may differ before it is said."""

MANY_OUTLIERS = 0.05
"""The share of a series from which its outliers are worth a note; below, the samples themselves tell."""


FAIR = 2.0
"""How many times its equal share of the time an implementation may take before it sits out the rounds."""


@dataclass(frozen=True)
class Plan:
    """When to stop, and how much one sample may take."""

    min_rounds: int = 10
    max_rounds: int = 300
    min_s: float = 0.5
    """Rounds of small cases are so short that ten of them see one moment of the card only."""
    tight: float = 0.01
    """Half the width of a ratio's interval, as a share of the ratio."""
    warm_up_s: float = 0.1
    """Rounds thrown away first, one at least: they bring the clocks up and fill the allocator's cache."""
    batch_us: float = 100.0
    """A warm sample repeats its call until it takes the GPU about this long,"""
    batch_host_us: float = 500.0
    """but the host no longer than this,"""
    most_repeats: int = 20
    """and no more often."""
    slow_ms: float = 20.0
    """A call that takes this long needs no warming up: it does that itself."""
    sustained: bool = False
    """Time bursts and sustained load after the rounds: about two seconds each."""


def reference(label: str, impls: Sequence[Implementation]) -> str | None:
    """Whom ``label`` is held against on its own rung, None if it stands there alone.

    That is Triton's implementation of the same variant; failing that, the rung's first in PyTorch; failing
    that, its first in Triton.
    """
    own = next(impl for impl in impls if impl.label == label)
    peers = [impl for impl in impls if impl.rung == own.rung]
    candidates = [impl for impl in peers if impl.way == "triton" and impl.variant == own.variant]
    candidates += [impl for impl in peers if impl.way == "torch"]
    candidates += [impl for impl in peers if impl.way == "triton"]
    first = candidates[0].label if candidates else label
    return None if first == label else first


@dataclass(frozen=True)
class Sample:
    """What one round found of one implementation, in microseconds."""

    cold_us: float
    warm_us: float
    launch_us: float
    graph_us: float | None
    sm_mhz: float | None = None
    """The card's clock right after the cold call."""


@dataclass
class Contender:
    """One implementation while it is being timed."""

    impl: Implementation
    calls: list[Call]
    """One for each set of inputs."""
    first_ms: float | None = None
    call_ms: float = 0.0
    """Host time of a whole call, when it was ready to be timed."""
    spent_s: float = 0.0
    """What its samples have cost so far,"""
    sampled: int = 0
    """and how many rounds they are from."""
    output_dtype: object = None
    graph: Call | None = None
    repeats: int = 1
    endurance: Endurance | None = None
    error: Exception | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.impl.label


class _DeviceLostError(Exception):
    """An implementation left the GPU unusable for this process."""


class Contest:
    """Rounds of samples over any clock, and what follows from them."""

    def __init__(
        self,
        baseline: str,
        impls: Sequence[Implementation],
        inputs: Sequence[Sequence[Any]],
        watch: Stopwatch,
        plan: Plan,
        *,
        seed: int = 0,
        first_calls_ms: Mapping[str, float] | None = None,
        ceilings: CeilingMeter | None = None,
    ) -> None:
        self.baseline, self.impls, self.watch, self.plan = baseline, impls, watch, plan
        self.ceilings = ceilings
        self.rounds: list[dict[str, Sample]] = []
        self.converged = False
        self._share_s = math.inf
        self._random = random.Random(seed)
        self._empty_us: list[float] = []
        first = first_calls_ms or {}
        self.contenders = {
            impl.label: Contender(
                impl, [partial(impl.run, *tensors) for tensors in inputs], first.get(impl.label)
            )
            for impl in impls
        }

    def run(self, budget_s: float, progress: Progress | None = None) -> None:
        """Take samples until they suffice or the budget is used; the results hold whatever came of it."""
        try:
            for contender in self._active():
                with self._contained(contender):
                    self._prepare(contender)
            self._share_s = budget_s * FAIR / max(1, len(self._active()))
            begin = self.watch.now_s()
            self._warm_up(begin + min(self.plan.warm_up_s, budget_s))
            check_at = self.plan.min_rounds
            while playing := self._playing():
                self.rounds.append(self._round(len(self.rounds), playing))
                count, spent = len(self.rounds), self.watch.now_s() - begin
                if progress is not None:
                    progress(min(1.0, spent / budget_s) if budget_s > 0 else 1.0)
                if count >= check_at and spent >= min(self.plan.min_s, budget_s):
                    self.converged = self.tight()
                    check_at = max(count + 1, math.ceil(1.1 * count))
                if self.converged or spent >= budget_s or count >= self.plan.max_rounds:
                    break
            if self.plan.sustained:
                self._endure()
        except _DeviceLostError as lost:
            for contender in self._active():
                if contender.label in self._measured():
                    contender.notes.append(f"timing ended early: {lost}")
                else:
                    contender.error = RuntimeError(f"not timed: {lost}")

    def _endure(self) -> None:
        for contender in self._shuffled(self._active()):
            with self._contained(contender):
                cold_us, launch_us = (
                    statistics.median(self._series(contender.label, kind))
                    for kind in ("cold_us", "launch_us")
                )
                contender.endurance = endure(
                    self.watch, contender.label, contender.calls[0], cold_us, launch_us
                )

    def tight(self) -> bool:
        """Whether every ratio is known well enough; where there is none, the cold time itself."""
        for contender in self._playing():
            ratios = self._ratios(contender)[0]
            known = [ratio.value for ratio in ratios] or [estimate(self._series(contender.label, "cold_us"))]
            if contender.label == self.baseline and len(self._playing()) > 1:
                continue  # it is in the others' ratios
            if not all(within(value, self.plan.tight) for value in known):
                return False
        return True

    def results(self) -> dict[str, Result]:
        """By label, in the order given: what was measured, or what went wrong."""
        measured = self._measured()
        found: dict[str, Result] = {}
        for label, contender in self.contenders.items():
            if contender.error is not None:
                found[label] = contender.error
            elif label in measured:
                found[label] = self._timing(contender)
            elif contender.first_ms is not None:
                found[label] = Timing(
                    first_call_ms=contender.first_ms, notes=("interrupted before its first round",)
                )
        return found

    # ----------------------------------------------------------------------- sampling

    def _active(self) -> list[Contender]:
        return [contender for contender in self.contenders.values() if contender.error is None]

    def _playing(self) -> list[Contender]:
        """Who takes part in the next round: who has had more than a share of the time sits out the rest."""
        return [
            contender
            for contender in self._active()
            if not contender.sampled
            or contender.label == self.baseline
            or contender.spent_s * (1 + 1 / contender.sampled) <= self._share_s
        ]

    def _measured(self) -> set[str]:
        return {label for samples in self.rounds for label in samples}

    @contextmanager
    def _contained(self, contender: Contender) -> Iterator[None]:
        """What ``contender`` raises is its own affair, unless it took the GPU with it."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raised = error if isinstance(error, Exception) else RuntimeError(f"it called exit({error.code})")
            release(error)
            contender.error = raised
            contender.calls, contender.graph = [], None
            try:
                self.watch.recover()
            except Exception as lost:
                raise _DeviceLostError(
                    f"{contender.label} left the GPU unusable ({_first_line(raised)})"
                ) from lost

    def _prepare(self, contender: Contender) -> None:
        """The first call, then a graph of it."""

        def first() -> None:
            contender.output_dtype = getattr(contender.calls[0](), "dtype", None)

        contender.call_ms = self.watch.first_ms(first)
        if contender.first_ms is None:
            contender.first_ms = contender.call_ms
        try:
            contender.graph = self.watch.capture(contender.calls[0])
        except Exception as error:
            contender.notes.append(f"no CUDA graph: {_first_line(error)}")
            release(error)
            self.watch.recover()

    def _is_slow(self, contender: Contender) -> bool:
        return contender.call_ms > self.plan.slow_ms

    def _warm_up(self, until_s: float) -> None:
        while True:
            samples = self._round(0, [each for each in self._active() if not self._is_slow(each)])
            for label, sample in samples.items():
                by_gpu = self.plan.batch_us / max(sample.cold_us, 0.1)
                by_host = self.plan.batch_host_us / max(sample.launch_us, 0.1)
                wanted = round(min(by_gpu, by_host, self.plan.most_repeats))
                self.contenders[label].repeats = max(1, wanted)
            if not samples or self.watch.now_s() >= until_s:
                break
        self._empty_us.clear()
        for contender in self.contenders.values():
            contender.spent_s, contender.sampled = 0.0, 0
        if self.ceilings is not None:
            self.ceilings.restart()

    def _round(self, number: int, playing: Sequence[Contender]) -> dict[str, Sample]:
        """One sample of each kind from everyone ``playing``, each kind's order drawn anew."""
        cold: dict[str, float] = {}
        clocks: dict[str, float | None] = {}
        samples: dict[str, Sample] = {}
        for contender in self._shuffled(playing):  # close together, as ratios are taken of these
            with self._contained(contender), self._on_account_of(contender):
                call = contender.calls[number % len(contender.calls)]
                cold[contender.label] = self.watch.cold(contender.label, call).gpu_us
                clocks[contender.label] = self.ceilings.clock_mhz() if self.ceilings else None
        if self.ceilings is not None:
            self.ceilings.sample()
        for contender in self._shuffled(playing):
            with self._contained(contender), self._on_account_of(contender):
                sample = self._warm_sample(contender, number, cold[contender.label])
                samples[contender.label] = replace(sample, sm_mhz=clocks[contender.label])
                contender.sampled += 1
        self._empty_us.append(self.watch.empty_us())
        return samples

    @contextmanager
    def _on_account_of(self, contender: Contender) -> Iterator[None]:
        begin = self.watch.now_s()
        yield
        contender.spent_s += self.watch.now_s() - begin

    def _shuffled(self, contenders: Sequence[Contender]) -> list[Contender]:
        order = [contender for contender in contenders if contender.error is None]
        self._random.shuffle(order)
        return order

    def _warm_sample(self, contender: Contender, number: int, cold_us: float) -> Sample:
        call = contender.calls[number % len(contender.calls)]
        warm = self.watch.warm(contender.label, call, contender.repeats)
        graph_us = None
        if contender.graph is not None:
            graph_us = self.watch.warm(f"{contender.label} graph", contender.graph, contender.repeats).gpu_us
        return Sample(cold_us, warm.gpu_us, warm.host_us, graph_us)

    # ----------------------------------------------------------------------- what follows

    def _series(self, label: str, kind: str) -> list[float]:
        """All samples of one kind, to the nanosecond: no clock here is finer."""
        taken = (getattr(samples[label], kind) for samples in self.rounds if label in samples)
        return [round(value, 3) for value in taken if value is not None]

    def _timing(self, contender: Contender) -> Timing:
        label = contender.label
        cold, graph = self._series(label, "cold_us"), self._series(label, "graph_us")
        ratios, notes = self._ratios(contender)
        return Timing(
            cold_us=estimate(cold),
            warm_us=estimate(self._series(label, "warm_us")),
            graph_us=estimate(graph) if graph else None,
            launch_us=estimate(self._series(label, "launch_us")),
            first_call_ms=contender.first_ms,
            ratios=tuple(ratios),
            rounds=len(cold),
            converged=self.converged,
            notes=(*contender.notes, *notes, *self._remarks(label, cold), *self._endured(contender)),
            sm_mhz=tuple(self._series(label, "sm_mhz")),
            burst_us=contender.endurance.burst_us if contender.endurance else None,
            sustained_us=contender.endurance.sustained_us if contender.endurance else None,
        )

    def _endured(self, contender: Contender) -> Iterator[str]:
        if contender.endurance is not None and not contender.endurance.settled:
            yield "its time under sustained load had not settled when the time for it was over"
        if any(self.watch.exposed(f"{contender.label} {kind}") for kind in ("burst", "sustained")):
            yield "its burst and sustained times hold host time: the host is slower than the GPU"

    def _ratios(self, contender: Contender) -> tuple[list[Ratio], list[str]]:
        """Against the baseline and against the rung's reference; a note for each that cannot be."""
        ratios: list[Ratio] = []
        notes: list[str] = []
        others = dict.fromkeys((self.baseline, reference(contender.label, self.impls)))
        for other in others:
            if other is None or other == contender.label:
                continue
            why = self._incomparable(contender, self.contenders.get(other))
            value = None if why else self._ratio(contender.label, other)
            if value is not None:
                ratios.append(Ratio(other, value))
                notes.extend(self._clocks_apart(contender.label, other))
            else:
                notes.append(f"no ratio to {other}: {why or 'no round timed both'}")
        return ratios, notes

    def _clocks_apart(self, label: str, other: str) -> Iterator[str]:
        """Rounds bring both sides the same drift, but a hungry kernel slows the clock for itself alone."""
        series = [self._series(name, "sm_mhz") for name in (label, other)]
        if all(series):
            own, theirs = map(statistics.median, series)
            if theirs > 0 and abs(own / theirs - 1) > OTHER_CLOCK:
                yield f"it ran at {own:.0f} MHz and {other} at {theirs:.0f}: their ratio holds that as well"

    def _incomparable(self, own: Contender, other: Contender | None) -> str | None:
        """Why a ratio of the two would mislead; None where the terms are equal."""
        if other is None:
            return "it was not timed"
        if other.error is not None:
            return f"it failed ({_first_line(other.error)})"
        if own.impl.accumulator != other.impl.accumulator:
            return f"unequal terms, computed in {own.impl.accumulator} against {other.impl.accumulator}"
        if own.output_dtype != other.output_dtype:
            return f"unequal terms, output in {own.output_dtype} against {other.output_dtype}"
        return None

    def _ratio(self, label: str, other: str) -> Estimate | None:
        """How many times faster ``label`` is than ``other``, from the rounds that timed both."""
        pairs = [(r[other].cold_us, r[label].cold_us) for r in self.rounds if label in r and other in r]
        values = [theirs / own for theirs, own in pairs if own > 0 and theirs > 0]
        return estimate([round(value, 5) for value in values]) if values else None

    def _remarks(self, label: str, cold: Sequence[float]) -> Iterator[str]:
        if self.watch.exposed(label):
            yield "its call waits for the GPU, or keeps it waiting: its GPU times hold host time as well"
        if len(cold) < len(self.rounds):
            yield f"timed in {len(cold)} of {len(self.rounds)} rounds: they took all of its share of the time"
        odd = outliers(cold)
        if odd > MANY_OUTLIERS * len(cold):
            yield f"{odd} of {len(cold)} cold samples are outliers (kept)"
        empty_us = statistics.median(self._empty_us) if self._empty_us else 0.0
        if empty_us > NOTICEABLE * statistics.median(cold):
            yield f"an empty pair of events reads {empty_us:.1f} us, which is not subtracted"


def release(error: BaseException) -> None:
    """Let go of what the frames of a traceback hold: after an out-of-memory error, the memory itself."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__context__


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
