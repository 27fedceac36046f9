"""Workers timed by `compare.timing.rounds`: one sample is one request to one worker process.

Each worker reads its own clock, because only that one is close enough to the GPU.  A user's row that can be
recorded is timed in a worker that never ran the file's host code (`compare.worker.replaying`).  Any other row
of a user's is unverified.  The judge verifies from outside: inputs are new in every round, outputs of samples
are compared with the oracle, and batches of a recording's replays are timed by the judge's own clock.
Between two replays an element of the inputs changes, so that no earlier result is of use.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from compare.checking.errors import errors_of
from compare.checking.guarded_memory import changed, memory_of, untouched
from compare.checking.probes import most_kept
from compare.checking.reference import Reference
from compare.checking.tolerance import ToleranceFromBaseline, limit_of
from compare.spec import Case, Implementation, Op, Timing, by_output
from compare.timing.ceilings import CeilingMeter
from compare.timing.rounds import Entry, Interrupted, Plan, Progress, Result, Rounds, release
from compare.timing.stopwatch import Reading, Stopwatch
from compare.timing.timed import BackToBack, Kind
from compare.worker.exchange import Exchange
from compare.worker.memory import Place, kinds_of
from compare.worker.parallel import abreast, cores
from compare.worker.process import Worker

CUDA_STOPWATCH = "compare.timing.stopwatch:CudaStopwatch"

SPAN_S = 0.02
"""Duration of the longer of the two batches that the judge times."""
FEWEST_CALLS, MOST_CALLS = 8, 4000
ATTEMPTS = 5
SPOTS = 16
"""Elements of the inputs that change in turn between the replays of a batch."""
MARGIN = 0.7
"""Least share that a user's row may show, of the least that the project's own rows of the run show (1 where
none has a graph).  The share is claimed time over the time that the judge's clock sees, at most 1.  Kernels
differ: on one H100 a product ran at 0.82 of its speed once the card had reached its power cap."""

_CHANCE = random.SystemRandom()

REPLAYED = (
    "GPU times: its recorded GPU work, replayed on new inputs by a process that never ran its host code; "
    "launch overhead and first call: by its own process"
)
NOT_RECORDED = "its GPU work was not recorded"


def why(error: Exception) -> str:
    """Why a user's row cannot be recorded or replayed."""
    return str(error).partition("\n")[0] or type(error).__name__


class Cheated(Exception):
    """A worker's answer or output is wrong; the text is a whole sentence."""


class Session:
    """What the workers of one measurement share: the examiner, and the cost of samples."""

    def __init__(self, exam: Examiner) -> None:
        self.exam = exam
        self.samples = 0
        self.samples_s = self.set_out_s = self.exams_s = 0.0
        self._this_round: set[str] = set()
        self._rounds = 0

    @property
    def in_turn(self) -> int:
        """The number of a round that checks rows which are not replayed: 1, 4, 16 and so on; else 0."""
        power_of_4 = self._rounds & (self._rounds - 1) == 0 and self._rounds.bit_length() % 2 == 1
        return self._rounds if power_of_4 else 0

    def cold_sample_of(self, label: str, which: int) -> None:
        """Renew a set of inputs before the first cold sample of a round."""
        if label in self._this_round or not self._this_round:
            self._this_round.clear()
            self._rounds += 1
            self.exam.renew(which)
        self._this_round.add(label)

    def cost(self) -> str:
        """The cost of all samples so far, in words."""
        each_ms = (self.samples_s - self.exams_s) / max(self.samples, 1) * 1e3
        set_out_ms = self.set_out_s / max(self.samples, 1) * 1e3
        return (
            f"{self.samples} samples of {each_ms:.2f} ms ({set_out_ms:.2f} ms to copy inputs), "
            f"{self.exams_s:.2f} s to check outputs"
        )


class Remote:
    """`compare.timing.timed.Timed` by a worker: it takes the readings, and the judge checks outputs.

    Args:
        always: the output of every sample is checked.
    """

    def __init__(
        self, worker: Worker, impl: Implementation, session: Session, *, always: bool = False
    ) -> None:
        self.worker, self.accumulator, self.foreign = worker, impl.accumulator, impl.foreign
        self.sets = len(session.exam.sets)
        self.output_dtype: str | None = None
        self._label, self._session = impl.label, session
        self._exposed: set[Kind] = set()
        self._always = always
        self._checked_in: dict[Kind, int] = {}

    def first(self) -> float:
        begin = time.perf_counter()
        self.output_dtype = self.worker.ask("first_again", "a call")
        return (time.perf_counter() - begin) * 1e3

    def capture(self) -> None:
        self.worker.ask("capture", "capturing a CUDA graph")

    def cold(self, which: int) -> Reading:
        self._session.cold_sample_of(self._label, which)
        return self._sample("cold", which, "cold")

    def warm(self, which: int, repeats: int, kind: BackToBack = "warm") -> Reading:
        return self._sample(kind, which, "warm", kind=kind, repeats=repeats)

    def graph(self, repeats: int) -> Reading:
        return self._sample("graph", 0, "warm", kind="graph", repeats=repeats)

    def exposed(self, kind: Kind) -> bool:
        return kind in self._exposed

    def _to_be_checked(self, kind: Kind) -> bool:
        """Whether to examine the next sample's output.

        The first of a kind, and one in rounds 1, 4, 16 and so on, where the project's rows share the oracle's
        output: attention's takes a second.
        """
        in_turn = self._session.in_turn
        if not self._always and kind in self._checked_in and in_turn in (0, self._checked_in[kind]):
            return False
        self._checked_in[kind] = in_turn
        return True

    def _sample(self, kind: Kind, which: int, request: str, /, **arguments: Any) -> Reading:
        session, exam = self._session, self._session.exam
        begin = time.perf_counter()
        checked = self._to_be_checked(kind)
        if checked and self.foreign:
            exam.renew(which)  # values that no other sample has seen
        renewed = time.perf_counter()
        exam.set_out(which, kind)
        set_out = time.perf_counter()
        told = self.worker.ask(request, f"a {kind} sample", which=which, **arguments)
        if told["exposed"]:
            self._exposed.add(kind)
        answered = time.perf_counter()
        if checked:
            exam.examine(which, f"a {kind} sample on new inputs", self.accumulator)
            session.exams_s += time.perf_counter() - answered + renewed - begin
        session.samples += 1
        session.set_out_s += set_out - renewed
        session.samples_s += time.perf_counter() - begin
        reading = Reading(float(told["gpu_us"]), float(told["host_us"]))
        if not (0 < reading.gpu_us < math.inf and 0 <= reading.host_us < math.inf):
            raise Cheated(f"its clock read {reading.gpu_us} us (GPU) and {reading.host_us} us (host)")
        return reading


class Replayed:
    """`compare.timing.timed.Timed` of a user's file: GPU times by a worker that replays a recording of it.

    The host times of its calls, launch overhead and first call, are its own worker's.
    """

    def __init__(self, runner: Remote, own: Remote) -> None:
        self.runner, self._own = runner, own
        self.sets = runner.sets
        self.output_dtype: str | None = None

    def first(self) -> float:
        self.runner.first()
        self.output_dtype = self.runner.output_dtype
        return self._own.first()

    def capture(self) -> None:
        self.runner.capture()

    def cold(self, which: int) -> Reading:
        return self.runner.cold(which)

    def warm(self, which: int, repeats: int, kind: BackToBack = "warm") -> Reading:
        reading = self.runner.warm(which, repeats, kind)
        if kind != "warm":
            return reading
        return Reading(reading.gpu_us, self._own.warm(which, repeats).host_us)

    def graph(self, repeats: int) -> Reading:
        return self.runner.graph(repeats)

    def exposed(self, kind: Kind) -> bool:
        return self.runner.exposed(kind)


def _overhead_us(watch: Stopwatch, device: torch.device) -> float:
    """Host time of a change of one element and a nearly empty graph's replay, in us, by the judge's clock."""
    x = torch.zeros(2, device=device)
    element, replay = x[0], watch.capture(x.zero_)

    def seconds(repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            element.fill_(1.0)
            replay()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    seconds(100)
    return min(seconds(1000) - seconds(100) for _ in range(3)) / 900 * 1e6


class Examiner:
    """Makes the inputs of the rounds, and compares the outputs of samples with the oracle.

    Before a cold sample the set of inputs holds stale values.  The worker calls once on those, untimed, and
    then copies the next values over them, so that the timed call cannot use an earlier result.
    """

    def __init__(
        self, op: Op, case: Case, device: torch.device, exchange: Exchange, tolerance: ToleranceFromBaseline
    ) -> None:
        self._op, self._case, self._device, self._exchange = op, case, device, exchange
        self._generator = torch.Generator(device).manual_seed(secrets.randbelow(1 << 62))
        self._stale = self._fresh()
        self._wanted: list[tuple[Op, float, bool]] = []  # no references: these would hold the stale inputs
        self._references: dict[int, list[Reference]] = {}
        """Of the set of inputs that was compared last."""
        for part in by_output(op, case):
            reference = Reference(part, self._stale)
            limit = tolerance.limit(case, reference)
            self._wanted.append((part, limit, reference.by_row))
        self._values = [self._fresh() for _ in range(exchange.sets)]
        self.sets = [self._put(values, number) for number, values in enumerate(self._values)]
        self.coming = [] if exchange.coming is None else exchange.inputs.put(self._stale, exchange.coming)
        if not self.coming:
            self._stale = ()

    @property
    def output_bytes(self) -> int:
        return max(1, sum(x.numel() * x.itemsize for x in self._exchange.expected.values()))

    @property
    def has_elements(self) -> bool:
        return any(x.numel() > 0 for values in self._values for x in values)

    def _fresh(self) -> tuple[torch.Tensor, ...]:
        return self._op.make_inputs(self._case, self._generator, self._device)

    def _put(self, values: tuple[torch.Tensor, ...], which: int) -> list[Place]:
        return self._exchange.inputs.put(values, which * self._exchange.set_bytes)

    def renew(self, which: int) -> None:
        """Draw new values for a set of inputs."""
        self._references.pop(which, None)
        self._values[which] = ()  # frees the old ones: large inputs may fit only once
        self._values[which] = self._fresh()

    def set_out(self, which: int, kind: Kind) -> None:
        """Copy the inputs of a sample into shared memory and poison the output; done when this returns."""
        exchange = self._exchange
        if kind == "cold" and exchange.coming is not None:
            self._put(self._stale, which)
            exchange.inputs.put(self._values[which], exchange.coming)
        else:
            self._put(self._values[which], which)
        exchange.poison()

    def changes(self, which: int, repeats: int) -> dict[str, Any]:
        """The elements that a worker writes into a set of inputs, one before each replay."""
        values = self._values[which]
        some = [i for i, x in enumerate(values) if x.numel() > 0]
        # Whole numbers beside others may be indices, of which only the op knows the valid ones.
        argument = _CHANCE.choice([i for i in some if values[i].is_floating_point()] or some)
        spots = [[_CHANCE.randrange(size) for size in values[argument].shape] for _ in range(SPOTS)]
        # Values like the planted outliers of every row.
        signs = (-1, 1) if values[argument].is_floating_point() else (1,)
        written = [_CHANCE.choice(signs) * (4 + _CHANCE.randrange(128) / 32) for _ in range(repeats)]
        return {"argument": argument, "spots": spots, "values": written}

    def apply(self, which: int, changes: Mapping[str, Any]) -> None:
        """Make changes in the judge's own values."""
        self._references.pop(which, None)
        x = self._values[which][changes["argument"]]
        for number, value in enumerate(changes["values"]):
            x[tuple(changes["spots"][number % SPOTS])] = value

    def examine(self, which: int, when: str, accumulator: str) -> None:
        """Compare the outputs of the last sample with the oracle, and the inputs with their values.

        Raises:
            Cheated: an output is wrong, or an input was written to.
        """
        outputs = self._exchange.take()
        references = self._references_of(which)
        for (op, allowed, _), reference, output in zip(
            self._wanted, references, outputs.values(), strict=True
        ):
            # Twice the check's limit, derived from one set of inputs: this tests that the work was done.
            limit = 2 * limit_of(op.tolerance(self._case), accumulator, allowed)
            self._compare(reference, output, limit, when, accumulator)
        now = [memory_of(self._exchange.inputs.tensor(place)) for place in self.sets[which]]
        if written := changed(now, map(memory_of, self._values[which])):
            raise Cheated(f"in {when} argument {written[0]} was written to")

    def _references_of(self, which: int) -> list[Reference]:
        if which not in self._references:
            values, keep = self._values[which], 8 * self.output_bytes <= most_kept(self._device)
            found = [Reference(op, values, keep=keep, by_row=by_row) for op, _, by_row in self._wanted]
            self._references = {which: found}
        return self._references[which]

    def _compare(
        self, reference: Reference, output: torch.Tensor, limit: float, when: str, accumulator: str
    ) -> None:
        op = reference.op
        op.settle(reference.inputs, output)
        unwritten = int(untouched(output).sum())
        if unwritten:
            raise Cheated(
                f"in {when} {unwritten} of {output.numel()} elements were not written when its call ended: "
                "the work was left out, or left to another stream or thread"
            )
        errors = errors_of(op, self._case, reference, output, limit, accumulator, quantile_elements=0)
        if errors.wrong or errors.misplaced:
            raise Cheated(
                f"correct when checked, wrong in {when}: "
                f"{max(errors.wrong, errors.misplaced)} of {errors.compared} elements"
            )


@dataclass(frozen=True)
class Subject:
    """What to time: implementations of an op on one case, each in its worker."""

    op: Op
    impls: Sequence[Implementation]
    """Correct ones; a ratio needs the op's baseline among them."""
    case: Case
    device: torch.device
    workers: Mapping[str, Worker]
    """By label."""
    exchange: Exchange
    """The shared memory of the case."""
    yardstick: ToleranceFromBaseline
    """PyTorch's own error on this op."""
    first_calls_ms: Mapping[str, float] = field(default_factory=dict)
    """By label: first calls timed earlier; others are timed with the rounds."""
    runners: Mapping[str, Worker] = field(default_factory=dict)
    """By label: workers that replay a recording, and take GPU times in place of the row's own."""
    unverified: Mapping[str, str] = field(default_factory=dict)
    """By label: why there is no runner."""


@dataclass(frozen=True)
class Settings:
    """How to time it."""

    local: Stopwatch
    """The judge's: reads an empty pair of events, and replays a graph."""
    seed: int
    """Of the order within rounds."""
    budget_s: float
    """Seconds for the rounds."""
    plan: Plan = field(default_factory=Plan)
    stopwatch: str = CUDA_STOPWATCH
    """The workers', as ``module:class``."""
    tidy: bool = False
    """Workers free their memory after every sample: together they would not fit."""


def measure(
    subject: Subject,
    settings: Settings,
    ceilings: CeilingMeter | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda what: None,
) -> dict[str, Result]:
    """Time implementations in their workers.

    Args:
        subject, settings: what to time, and how.
        ceilings: sampled once a round.
        progress: called after every round with the share of the budget used.
        say: called with the current step, in words.

    Returns:
        By label: its times, or its error; an error of one does not stop the others.

    Raises:
        Interrupted: on Ctrl-C, with the times so far, without users' rows: those are not verified yet.
    """
    impls, device, exchange = subject.impls, subject.device, subject.exchange
    try:
        exam = Examiner(subject.op, subject.case, device, exchange, subject.yardstick)
    except RuntimeError as error:  # the inputs do not fit into the memory left
        release(error)
        return dict.fromkeys((impl.label for impl in impls), error)
    say("preparing workers for timing")
    session = Session(exam)
    remotes: dict[str, Remote | Replayed] = {}
    refused: dict[str, Result] = {}
    notes: dict[str, list[str]] = {}
    unverified = {impl.label: NOT_RECORDED for impl in impls if impl.foreign} | dict(subject.unverified)

    def begin(worker: Worker) -> None:
        exchange.hand_to(worker)
        worker.ask(
            "enter",
            "preparing for timing",
            sets=[[place.as_json() for place in places] for places in exam.sets],
            coming=[place.as_json() for place in exam.coming],
            stopwatch=settings.stopwatch,
            cycles_per_us=settings.local.cycles_per_us,
            tidy=settings.tidy,
            expected=kinds_of(exchange.expected),
            options=exchange.options,
        )

    def enter(impl: Implementation) -> Exception | None:
        try:
            begin(subject.workers[impl.label])
        except Exception as error:
            return error
        return None

    def stop() -> None:
        for worker in (*subject.workers.values(), *subject.runners.values()):
            worker.abandon()

    for impl, problem in abreast(enter, impls, min(len(impls), cores()), stop):
        if problem is not None:
            refused[impl.label] = problem
    for impl in impls:  # one at a time: what the preparation of weights takes is shown
        if impl.label in refused:
            continue
        worker = subject.workers[impl.label]
        try:
            if impl.prepare is not None:
                ms = worker.ask("prepare", "preparing weights")
                notes.setdefault(impl.label, []).append(f"weights prepared offline, untimed: {ms:.3g} ms")
        except Exception as error:
            refused[impl.label] = error
            continue
        remotes[impl.label] = own = Remote(worker, impl, session)
        if runner := subject.runners.get(impl.label):
            try:
                begin(runner)
                replays = Remote(runner, impl, session, always=True)
                replays.warm(0, 1)
                remotes[impl.label] = Replayed(replays, own)
                notes.setdefault(impl.label, []).append(REPLAYED)
                unverified.pop(impl.label, None)
            except Exception as error:  # also an output that is wrong on new inputs
                release(error)
                unverified[impl.label] = why(error)
    rounds = Rounds(
        subject.op.baseline,
        [
            Entry(
                impl,
                remotes[impl.label],
                subject.first_calls_ms.get(impl.label),
                notes=notes.get(impl.label, []),
            )
            for impl in impls
            if impl.label in remotes
        ],
        settings.local,
        settings.plan,
        settings.seed,
        ceilings,
    )
    foreign = {impl.label for impl in impls if impl.foreign}
    say("timing: first calls and graphs, then rounds")
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            rounds.run(settings.budget_s, progress)
    except KeyboardInterrupt:
        found = rounds.results()
        raise Interrupted({label: found[label] for label in found.keys() - foreign}) from None
    say(f"verifying {session.cost()} by the judge's own clock")
    results = refused | rounds.results()
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        results |= _verified(results, remotes, exam, settings.local, device)
    for label, reason in unverified.items():
        if isinstance(result := results.get(label), Timing):
            results[label] = replace(result, unverified=reason)
    return results


def _verified(
    results: Mapping[str, Result],
    remotes: Mapping[str, Remote | Replayed],
    exam: Examiner,
    local: Stopwatch,
    device: torch.device,
) -> dict[str, Result]:
    """By label: in place of the times of a replayed row an error, or `unverified` times.

    The accepted share follows from the project's own rows, measured in the same way.  A row below it is not
    refused: another process that uses the GPU slows replays down as well.
    """
    graphs = {label: each for label, each in results.items() if isinstance(each, Timing) and each.graph_us}
    replayed = {label: remote.runner for label in graphs if isinstance(remote := remotes[label], Replayed)}
    if not replayed or not exam.has_elements:
        return {}
    overhead_us = _overhead_us(local, device)
    found: dict[str, Result] = {}
    least = 1.0
    for label, timing in graphs.items():
        if isinstance(remote := remotes[label], Remote) and not remote.foreign:
            try:
                share, _ = _share(timing, _Batches(remote, exam), overhead_us, 1.0)
                least = min(least, share)
            except Exception as error:
                found[label] = error
    for label, runner in replayed.items():
        timing = graphs[label]
        if least < MARGIN:
            reason = f"by the judge's clock the project's own rows ran at {least:.2g} of their speed"
            found[label] = replace(timing, unverified=reason)
            continue
        try:
            share, seen_us = _share(timing, _Batches(runner, exam), overhead_us, MARGIN * least)
        except Exception as error:
            found[label] = error
            continue
        if share < MARGIN * least:
            reason = (
                f"{_claimed_us(timing):.3g} us a call, while replays of its CUDA graph take {seen_us:.3g} us "
                "each by the judge's clock"
            )
            found[label] = replace(timing, unverified=reason)
    return found


def _claimed_us(timing: Timing) -> float:
    """The least of a row's GPU times, in us."""
    return min(e.median for e in (timing.cold_us, timing.warm_us, timing.graph_us) if e is not None)


def _share(timing: Timing, batches: _Batches, overhead_us: float, enough: float) -> tuple[float, float]:
    """The time that a worker claims as a share of the time that the judge sees, and the latter in us.

    Disturbances only add time: it is measured again until the share is ``enough``.  Where the GPU has little
    to do, the judge sees the host, so ``overhead_us`` counts as claimed.

    Raises:
        Cheated: an output of a user's replays is wrong.
    """
    claimed_us = _claimed_us(timing)
    seen_us = batches.roughly_us(claimed_us)
    for _ in range(ATTEMPTS):
        if claimed_us + overhead_us >= enough * seen_us:
            break
        seen_us = min(seen_us, batches.slope_us(seen_us))
    return (claimed_us + overhead_us) / seen_us, seen_us


class _Batches:
    """Batches of replays of a worker's CUDA graph, timed by the judge's clock.

    An element of the inputs changes before each, and the last output of a user's is examined.
    """

    def __init__(self, remote: Remote, exam: Examiner) -> None:
        self._remote, self._exam = remote, exam

    def roughly_us(self, claimed_us: float) -> float:
        """Time of a replay in a small batch, in us, with its share of the request's overhead."""
        self._exam.renew(0)
        self._exam.set_out(0, "graph")
        calls = max(2, min(FEWEST_CALLS, int(SPAN_S * 1e6 / max(claimed_us, 1.0))))
        return self._seconds(calls) / calls * 1e6

    def slope_us(self, at_most_us: float) -> float:
        """Time of a replay, in us: the slope between two batches, without the request's overhead."""
        many = max(2, min(MOST_CALLS, int(SPAN_S * 1e6 / max(at_most_us, 1.0))))
        few = max(1, many // 8)
        return max(0.1, (self._seconds(many) - self._seconds(few)) / (many - few) * 1e6)

    def _seconds(self, repeats: int) -> float:
        remote, changes = self._remote, self._exam.changes(0, repeats)
        begin = time.perf_counter()
        remote.worker.ask("batch", f"a batch of {repeats} replays", changes=changes)
        seconds = time.perf_counter() - begin
        if remote.foreign:
            self._exam.apply(0, changes)
            self._exam.examine(0, "a batch of replays on changing inputs", remote.accumulator)
        return seconds
