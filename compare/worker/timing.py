"""Workers timed by `compare.timing.rounds`: one sample is one request to one worker process.

Each worker reads its own clock, because only that one is close enough to the GPU.  A user's row that can be
recorded is timed in a worker that never ran the file's host code (`compare.worker.replaying`).  The judge
verifies from outside: inputs are new in every round, the outputs of samples that only the judge knows are
compared with the oracle, and batches of calls are timed by the judge's own clock.  Between a user's calls in
a batch an element of the inputs changes, so that no earlier result is of use.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from compare.checking.errors import errors_of
from compare.checking.guarded_memory import changed, memory_of, untouched
from compare.checking.reference import Reference
from compare.checking.tolerance import ToleranceFromBaseline, limit_of
from compare.spec import Case, Implementation, Op, Timing, by_output
from compare.timing.ceilings import CeilingMeter
from compare.timing.rounds import Entry, Interrupted, Plan, Progress, Result, Rounds, release
from compare.timing.stopwatch import Call, Reading, Stopwatch
from compare.timing.timed import BackToBack, Kind
from compare.worker.exchange import Exchange
from compare.worker.memory import Place, kinds_of
from compare.worker.parallel import abreast, cores
from compare.worker.process import Worker

CUDA_STOPWATCH = "compare.timing.stopwatch:CudaStopwatch"

KINDS: tuple[Kind, ...] = ("cold", "warm", "graph", "burst", "sustained")

SURE, EARLY = 3, 10
"""Samples of a user's row checked among the first `EARLY` of each kind, each on values of its own."""
LATER = 0.04
"""Share of its later samples that are checked."""

SPAN_S = 0.02
"""Duration of the longer of the two batches that the judge times."""
FEWEST_CALLS, MOST_CALLS = 8, 4000
KEPT_BYTES = 1 << 30
"""Most bytes of outputs that a worker keeps for the judge to choose from."""
ATTEMPTS = 10
SLACK_US = 4.0
SPOTS = 16
"""Elements of the inputs that change in turn between the calls of a batch."""
TOO_FAST = 0.6
"""A claimed time below this share of the judge's own measurement is refused.  A hot GPU runs calls back to
back up to some tenths slower than single calls, but not by 40%."""


_CHANCE = random.SystemRandom()


REPLAYED = (
    "GPU times: its recorded GPU work, replayed on new inputs by a process that never ran its host code; "
    "launch overhead and first call: by its own process"
)


def why(error: Exception) -> str:
    """Why a user's row cannot be recorded or replayed."""
    return str(error).partition("\n")[0] or type(error).__name__


class Cheated(Exception):
    """A worker's answer or output is wrong; the text is a whole sentence."""


class TooFast(Exception):
    """The judge's clock contradicts a worker's times."""


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
        """The number of the round where the project's rows are checked: 1, 4, 16 and so on; else 0."""
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
    """`compare.timing.timed.Timed` by a worker: it takes the readings, and the judge checks them.

    Args:
        always: the output of every sample is checked, and not of some that only the judge knows.
    """

    def __init__(
        self, worker: Worker, impl: Implementation, session: Session, *, always: bool = False
    ) -> None:
        self.worker, self.accumulator = worker, impl.accumulator
        self.sets = len(session.exam.sets)
        self.output_dtype: str | None = None
        self._label, self._session = impl.label, session
        self._exposed: set[Kind] = set()
        self._taken: dict[Kind, int] = {}
        self._always = always
        self._own_values = always or impl.foreign
        """Checked samples are on values that no other sample has seen."""
        self._checked = {kind: set(_CHANCE.sample(range(EARLY), SURE)) for kind in KINDS}
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

        A user's: drawn at random, known to the judge only.  The project's: the first of a kind, and one in
        rounds 1, 4, 16 and so on, where all share the oracle's output: attention's takes a second.
        """
        number = self._taken[kind] = self._taken.get(kind, -1) + 1
        if self._own_values:
            later = number >= EARLY and _CHANCE.random() < LATER
            return self._always or later or number in self._checked[kind]
        in_turn = self._session.in_turn
        if number > 0 and in_turn in (0, self._checked_in[kind]):
            return False
        self._checked_in[kind] = in_turn
        return True

    def _sample(self, kind: Kind, which: int, request: str, /, **arguments: Any) -> Reading:
        session, exam = self._session, self._session.exam
        begin = time.perf_counter()
        checked = self._to_be_checked(kind)
        if checked and self._own_values:
            exam.renew(which)
        renewed = time.perf_counter()
        exam.set_out(which, kind)
        set_out = time.perf_counter()
        told = self.worker.ask(request, f"a {kind} sample", which=which, **arguments)
        if told["problem"] is not None:
            raise Cheated(f"output of a {kind} sample: {told['problem']}")
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
        if not (math.isfinite(reading.gpu_us) and math.isfinite(reading.host_us)):
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


def _each_us(call: Call, device: torch.device) -> float:
    """Time of one call among many by the judge's clock, in us: the longer of host and GPU time."""

    def seconds(repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
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
        """The elements that a worker writes into a set of inputs, one before each of its calls."""
        values = self._values[which]
        some = [i for i, x in enumerate(values) if x.numel() > 0]
        # Whole numbers beside others may be indices, of which only the op knows the valid ones.
        argument = _CHANCE.choice([i for i in some if values[i].is_floating_point()] or some)
        spots = [[_CHANCE.randrange(size) for size in values[argument].shape] for _ in range(SPOTS)]
        # Values like the planted outliers of every row.
        written = [_CHANCE.choice((-1, 1)) * (4 + _CHANCE.randrange(128) / 32) for _ in range(repeats)]
        return {"argument": argument, "spots": spots, "values": written}

    def apply(self, which: int, changes: Mapping[str, Any], begin: int, end: int) -> None:
        """Make the changes of calls ``begin`` to ``end`` in the judge's own values."""
        self._references.pop(which, None)
        x = self._values[which][changes["argument"]]
        for number in range(begin, end):
            x[tuple(changes["spots"][number % SPOTS])] = changes["values"][number]

    def change_us(self) -> float:
        """Time of one such change by itself, in us."""
        x = next(x for x in self._fresh() if x.numel() > 0)
        return _each_us(partial(x[(0,) * x.dim()].fill_, 1.0), self._device)

    def examine(self, which: int, when: str, accumulator: str, inputs: bool = True) -> None:
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
        if inputs:
            self.examine_inputs(which, when)

    def _references_of(self, which: int) -> list[Reference]:
        if which not in self._references:
            values, keep = self._values[which], 8 * self.output_bytes <= KEPT_BYTES
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

    def examine_inputs(self, which: int, when: str) -> None:
        """Compare the inputs with the judge's values.

        Raises:
            Cheated: one was written to.
        """
        now = [memory_of(self._exchange.inputs.tensor(place)) for place in self.sets[which]]
        if written := changed(now, map(memory_of, self._values[which])):
            raise Cheated(f"in {when} argument {written[0]} was written to")


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
    unverified = dict(subject.unverified)

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

    def replay_us() -> float:
        """Host time of replaying a nearly empty graph, in us, by the judge's own clock."""
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return _each_us(settings.local.capture(torch.zeros(1, device=device).zero_), device)

    results = refused | _verified(rounds.results(), remotes, exam, foreign, replay_us)
    for label, reason in unverified.items():
        if isinstance(result := results.get(label), Timing):
            results[label] = replace(result, unverified=reason)
    return results


def _verified(
    results: Mapping[str, Result],
    remotes: Mapping[str, Remote | Replayed],
    exam: Examiner,
    foreign: Collection[str],
    replay_us: Callable[[], float],
) -> dict[str, Result]:
    """The results; `TooFast` in place of times that the judge's own clock contradicts."""
    found: dict[str, Result] = {}
    for label, result in results.items():
        found[label] = result
        if isinstance(result, Timing) and result.cold_us is not None:
            remote = remotes[label]
            if isinstance(remote, Replayed):
                if result.graph_us is None:  # all outputs of a batch would lie in the same memory
                    continue
                remote = remote.runner
            try:
                changing = label in foreign and exam.has_elements
                problem = _contradiction(result, _Batches(remote, exam, changing), replay_us)
            except Exception as error:
                found[label] = error
                continue
            if problem is not None:
                found[label] = TooFast(problem)
    return found


def _contradiction(timing: Timing, batches: _Batches, replay_us: Callable[[], float]) -> str | None:
    """Why a worker's times cannot be true, None if they can.

    Where the host is slower than the GPU, the judge's clock measures the host.  The host time of a call is
    the worker's own figure; that of a replay is ``replay_us``, measured only where it decides.

    Raises:
        Cheated: an output of the calls is wrong.
    """
    assert timing.cold_us is not None
    assert timing.launch_us is not None
    gpu_us = min(e.median for e in (timing.cold_us, timing.warm_us, timing.graph_us) if e is not None)
    kind: Kind = "warm" if timing.graph_us is None else "graph"
    if kind == "graph":
        what, claimed_us = "replays of its CUDA graph", gpu_us
    else:
        what, claimed_us = "calls", max(gpu_us, timing.launch_us.median)
    seen_us = batches.roughly_us(kind, claimed_us)
    for _ in range(ATTEMPTS):
        if _fits(claimed_us, seen_us):  # disturbances only add time: one fitting measurement is enough
            return None
        seen_us = min(seen_us, batches.slope_us(kind, seen_us))
    if _fits(claimed_us if kind == "warm" else max(claimed_us, replay_us()), seen_us):
        return None
    return (
        f"it claims {claimed_us:.3g} us a call, and {what} take {seen_us:.3g} us each by a clock outside its "
        "process"
    )


def _fits(claimed_us: float, seen_us: float) -> bool:
    return claimed_us >= TOO_FAST * seen_us - SLACK_US


class _Batches:
    """Batches of a worker's calls, timed by the judge's clock.

    Args:
        changing: an element of the inputs changes before each call, and outputs of some calls are examined.
    """

    def __init__(self, remote: Remote, exam: Examiner, changing: bool) -> None:
        self._worker, self._accumulator = remote.worker, remote.accumulator
        self._exam, self._changing = exam, changing
        self._change_us = exam.change_us() if changing else 0.0

    def roughly_us(self, kind: Kind, claimed_us: float) -> float:
        """Time of a call in a small batch, in us, with its share of the request's overhead."""
        if self._changing:
            self._exam.renew(0)
            self._exam.set_out(0, kind)
        calls = max(2, min(FEWEST_CALLS, int(SPAN_S * 1e6 / max(claimed_us, 1.0))))
        return self._seconds(kind, calls) / calls * 1e6

    def slope_us(self, kind: Kind, at_most_us: float) -> float:
        """Time of a call, in us: the slope between two batches, without the request's overhead."""
        most = MOST_CALLS
        if self._changing and kind != "graph":
            most = min(most, KEPT_BYTES // self._exam.output_bytes)
        many = max(FEWEST_CALLS, min(most, int(SPAN_S * 1e6 / max(at_most_us, 1.0))))
        few = max(1, many // 8)
        seconds = -self._seconds(kind, few)
        seconds += self._seconds(kind, many)
        return max(0.0, seconds / (many - few) * 1e6 - self._change_us)

    def _seconds(self, kind: Kind, repeats: int) -> float:
        changes = self._exam.changes(0, repeats) if self._changing else None
        begin = time.perf_counter()
        self._worker.ask("batch", f"a batch of {repeats} calls", kind=kind, repeats=repeats, changes=changes)
        seconds = time.perf_counter() - begin
        if changes is not None:
            self._examine(kind, repeats, changes)
        return seconds

    def _examine(self, kind: Kind, repeats: int, changes: Mapping[str, Any]) -> None:
        """Examine the last output of a graph's replays, or two random outputs of calls."""
        exam, when = self._exam, "a batch of calls on changing inputs"
        chosen = sorted(_CHANCE.sample(range(repeats), min(2, repeats)))
        if kind == "graph":
            chosen = [repeats - 1]
        made = 0
        for number in chosen:
            exam.apply(0, changes, made, number + 1)
            made = number + 1
            if kind != "graph":
                last = number == chosen[-1]
                self._worker.ask("deliver", "handing over an output", number=number, last=last)
            exam.examine(0, when, self._accumulator, inputs=False)
        exam.apply(0, changes, made, repeats)
        exam.examine_inputs(0, when)
