"""Workers as `compare.timing.rounds` times them: a turn is one question to one of them.

Every worker reads its own clock, as nothing else is near enough to the GPU.  The judge holds it to what can
be seen from outside: inputs are new in every round, what some turns leave behind is held against the
oracle, nobody knows which, and batches of calls are timed by the judge's own clock.  Between a user's calls
in such a batch an element of the inputs changes, so that nothing worked out before is of use.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from compare.checking.errors import errors_of
from compare.checking.guarded_memory import changed, memory_of, untouched
from compare.checking.reference import Reference
from compare.checking.tolerance import ToleranceFromBaseline, limit_of
from compare.spec import Case, Implementation, Op, Timing
from compare.timing.ceilings import CeilingMeter
from compare.timing.measure import Interrupted
from compare.timing.rounds import Contest, Plan, Progress, Result, release
from compare.timing.stopwatch import Call, Reading
from compare.worker.exchange import Exchange, shape_of
from compare.worker.memory import Place
from compare.worker.process import Worker

CUDA_STOPWATCH = "compare.timing.stopwatch:CudaStopwatch"

KINDS = ("cold", "warm", "graph", "burst", "sustained")

SURE = {True: 3, False: 1}
"""Turns of each implementation and kind that are checked in any case, among its first `EARLY`: more of a
user's file than of the project's own."""
EARLY = 10
LATER = {True: 0.04, False: 0.01}
"""The share of its later turns that are checked."""

SPAN_S = 0.02
"""How long the longer of two batches takes that the judge times."""
FEWEST_CALLS, MOST_CALLS = 8, 4000
KEPT_BYTES = 1 << 30
"""Outputs that a worker keeps, so that any of them may be asked for."""
ATTEMPTS = 10
SLACK_US = 4.0
SPOTS = 16
"""Elements of the inputs that are changed in turn between the calls of a batch."""
TOO_FAST = 0.6
"""A claimed time below this share of what the judge's clock says is refused.  Back to back a GPU may be some
tenths slower than in single calls, as it gets hot; not by two fifths."""


_CHANCE = random.SystemRandom()


class Cheated(Exception):
    """What a worker says or leaves does not hold; the text is a whole sentence."""


class TooFast(Exception):
    """What a worker claims of its time cannot be, by a clock outside of it."""


@dataclass(frozen=True)
class _Seen:
    """What of a call's result the judge needs to know."""

    dtype: str | None


class Remote:
    """Stands for ``impl.run`` in a contest; its only argument is the number of a set of inputs."""

    def __init__(self, worker: Worker, foreign: bool, accumulator: str = "fp32") -> None:
        self.worker, self.accumulator = worker, accumulator
        self.turns: dict[str, int] = {}
        self._checked = {kind: set(_CHANCE.sample(range(EARLY), SURE[foreign])) for kind in KINDS}
        self._later = LATER[foreign]

    def __call__(self, which: int) -> _Seen:
        return _Seen(self.worker.ask("first_again", "a call"))

    def to_be_checked(self, kind: str) -> bool:
        """Whether the judge looks at what the next turn of this kind leaves; drawn here, told nobody."""
        turn = self.turns[kind] = self.turns.get(kind, -1) + 1
        return turn in self._checked[kind] or (turn >= EARLY and secrets.randbelow(1000) < 1000 * self._later)


class RemoteStopwatch:
    """`compare.timing.stopwatch.Stopwatch` whose readings come from workers."""

    def __init__(self, exam: Examiner, local: Any) -> None:
        self._exam, self._local = exam, local
        self._exposed: set[str] = set()
        self._this_round: set[str] = set()
        self.turns = 0
        self.turns_s = self.set_out_s = self.exams_s = 0.0

    def now_s(self) -> float:
        return time.perf_counter()

    def first_ms(self, call: Call) -> float:
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3

    def cold(self, name: str, call: Call) -> Reading:
        remote, which = _target(call)
        if name in self._this_round or not self._this_round:
            self._this_round.clear()
            self._exam.renew(which)
        self._this_round.add(name)
        return self._turn(name, remote, "cold", which, "cold", {"which": which})

    def warm(self, name: str, call: Call, repeats: int) -> Reading:
        kind = "graph" if isinstance(call, _Replay) else name.rpartition(" ")[2]
        kind = kind if kind in KINDS else "warm"
        remote, which = (call.remote, call.which) if isinstance(call, _Replay) else _target(call)
        return self._turn(
            name, remote, kind, which, "warm", {"kind": kind, "which": which, "repeats": repeats}
        )

    def _turn(
        self, name: str, remote: Remote, kind: str, which: int, question: str, arguments: dict[str, Any]
    ) -> Reading:
        begin = time.perf_counter()
        checked = remote.to_be_checked(kind)
        if checked:
            self._exam.renew(which)  # inputs that nobody else has had
        renewed = time.perf_counter()
        self._exam.set_out(which, kind)
        set_out = time.perf_counter()
        told = remote.worker.ask(question, f"a turn of timing ({kind})", **arguments)
        if told["problem"] is not None:
            raise Cheated(f"output while it was timed: {told['problem']}")
        if told["exposed"]:
            self._exposed.add(name)
        answered = time.perf_counter()
        if checked:
            self._exam.examine(which, f"a {kind} turn of timing on new inputs", remote.accumulator)
            self.exams_s += time.perf_counter() - answered + renewed - begin
        self.turns += 1
        self.set_out_s += set_out - renewed
        self.turns_s += time.perf_counter() - begin
        reading = Reading(float(told["gpu_us"]), float(told["host_us"]))
        if not (math.isfinite(reading.gpu_us) and math.isfinite(reading.host_us)):
            raise Cheated(f"it gives {reading.gpu_us} us as a time")
        return reading

    def cost(self) -> str:
        """What its turns have cost so far, in words."""
        each_ms = (self.turns_s - self.exams_s) / max(self.turns, 1) * 1e3
        set_out_ms = self.set_out_s / max(self.turns, 1) * 1e3
        return (
            f"{self.turns} turns of {each_ms:.2f} ms, of which {set_out_ms:.2f} to lay out inputs, and "
            f"{self.exams_s:.2f} s for looking at outputs"
        )

    def capture(self, call: Call) -> Call:
        remote, which = _target(call)
        remote.worker.ask("capture", "capturing a CUDA graph", which=which)
        return _Replay(remote, which)

    def empty_us(self) -> float:
        return float(self._local.empty_us())

    def exposed(self, name: str) -> bool:
        return name in self._exposed

    def recover(self) -> None:
        """Nothing to do: a worker recovers by itself, or is gone."""


@dataclass(frozen=True)
class _Replay:
    """A worker's CUDA graph of its call."""

    remote: Remote
    which: int

    def __call__(self) -> None:
        raise AssertionError("a graph is replayed in its worker")


def _target(call: Any) -> tuple[Remote, int]:
    assert isinstance(call, partial)
    (which,) = call.args
    assert isinstance(call.func, Remote)
    return call.func, which


def _each_us(call: Call, device: torch.device) -> float:
    """Time of a call among many by the judge's clock: of the host or of the GPU, whichever takes longer."""

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
    """Makes the inputs of the rounds, and holds what a turn left against the oracle.

    Before a cold turn the set of inputs holds stale values.  The worker calls once on those, untimed, and
    moves the ones to come into their place; so nothing is left over that its timed call could use.
    """

    def __init__(
        self, op: Op, case: Case, device: torch.device, exchange: Exchange, tolerance: ToleranceFromBaseline
    ) -> None:
        self._op, self._case, self._device, self._exchange = op, case, device, exchange
        self._generator = torch.Generator(device).manual_seed(secrets.randbelow(1 << 62))
        self._stale = self._fresh()
        self._allowed = tolerance.limit(case, Reference(op, self._stale))
        self._values = [self._fresh() for _ in range(exchange.sets)]
        self.sets = [self._put(values, number) for number, values in enumerate(self._values)]
        self.coming = [] if exchange.coming is None else exchange.inputs.put(self._stale, exchange.coming)
        if not self.coming:
            self._stale = ()

    @property
    def output_bytes(self) -> int:
        return max(1, self._exchange.expected.numel() * self._exchange.expected.itemsize)

    @property
    def has_elements(self) -> bool:
        return any(x.numel() > 0 for values in self._values for x in values)

    def _fresh(self) -> tuple[torch.Tensor, ...]:
        return self._op.make_inputs(self._case, self._generator, self._device)

    def _put(self, values: tuple[torch.Tensor, ...], which: int) -> list[Place]:
        return self._exchange.inputs.put(values, which * self._exchange.set_bytes)

    def renew(self, which: int) -> None:
        """Other values from now on."""
        self._values[which] = ()  # large ones may have room once only
        self._values[which] = self._fresh()

    def set_out(self, which: int, kind: str) -> None:
        """Lay out what a turn needs, all of it done when this returns."""
        exchange = self._exchange
        if kind == "cold" and exchange.coming is not None:
            self._put(self._stale, which)
            exchange.inputs.put(self._values[which], exchange.coming)
        else:
            self._put(self._values[which], which)
        exchange.poison()

    def changes(self, which: int, repeats: int) -> dict[str, Any]:
        """What a worker is to write into a set of inputs, an element before each of its calls."""
        values = self._values[which]
        argument = _CHANCE.choice([i for i, x in enumerate(values) if x.numel() > 0])
        spots = [[_CHANCE.randrange(size) for size in values[argument].shape] for _ in range(SPOTS)]
        # Like the outliers that every row has.
        written = [_CHANCE.choice((-1, 1)) * (4 + _CHANCE.randrange(128) / 32) for _ in range(repeats)]
        return {"argument": argument, "spots": spots, "values": written}

    def apply(self, which: int, changes: Mapping[str, Any], begin: int, end: int) -> None:
        """Make the same changes, of a stretch of the calls, to the judge's own values."""
        x = self._values[which][changes["argument"]]
        for number in range(begin, end):
            x[tuple(changes["spots"][number % SPOTS])] = changes["values"][number]

    def change_us(self) -> float:
        """What such a change takes by itself."""
        x = next(x for x in self._fresh() if x.numel() > 0)
        return _each_us(partial(x[(0,) * x.dim()].fill_, 1.0), self._device)

    def examine(self, which: int, when: str, accumulator: str, inputs: bool = True) -> None:
        """Hold the output of the last turn against the oracle, and what became of the inputs.

        Raises:
            Cheated: it is not what the inputs give.
        """
        exchange = self._exchange
        output = exchange.take()
        self._op.settle(self._values[which], output)
        unwritten = int(untouched(output).sum())
        if unwritten:
            raise Cheated(
                f"in {when} {unwritten} of {output.numel()} elements were not there when its call had ended: "
                "it left the work undone, or to another stream or thread"
            )
        reference = Reference(self._op, self._values[which])
        # Twice what the check allows, once for all inputs: it is whether the work is done that is looked at.
        limit = 2 * limit_of(self._op.tolerance(self._case), accumulator, self._allowed)
        errors = errors_of(self._op, self._case, reference, output, limit, accumulator, quantile_elements=0)
        if errors.wrong or errors.misplaced:
            raise Cheated(
                f"right when it was checked, and wrong in {when}: "
                f"{max(errors.wrong, errors.misplaced)} of {errors.compared} elements"
            )
        if inputs:
            self.examine_inputs(which, when)

    def examine_inputs(self, which: int, when: str) -> None:
        """Hold the inputs against what they are to be; a `Cheated` if they are not."""
        now = [memory_of(self._exchange.inputs.tensor(place)) for place in self.sets[which]]
        if written := changed(now, map(memory_of, self._values[which])):
            raise Cheated(f"in {when} argument {written[0]} was written to")


def measure(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    device: torch.device,
    workers: Mapping[str, Worker],
    exchange: Exchange,
    tolerance: ToleranceFromBaseline,
    *,
    local: Any,
    seed: int,
    budget_s: float,
    progress: Progress | None = None,
    first_calls_ms: Mapping[str, float] | None = None,
    ceilings: CeilingMeter | None = None,
    plan: Plan | None = None,
    stopwatch: str = CUDA_STOPWATCH,
    tidy: bool = False,
    say: Callable[[str], None] = lambda what: None,
) -> dict[str, Result]:
    """Time implementations in their workers.

    Args:
        op, impls, case, device, seed, budget_s, progress, first_calls_ms, ceilings, plan: as those of
            `compare.timing.measure.measure`, and so are the results.
        workers: by label, each with its implementation.
        exchange: the memory of the case.
        tolerance: of outputs while they are timed.
        local: a stopwatch of this process, for what an empty pair of events reads.
        stopwatch: the workers' own, as ``module:class``.
        tidy: workers free their memory after every turn, as together they have not enough.
        say: told what is done now.

    Raises:
        Interrupted: on Ctrl-C, with what there is but for users' rows: nothing has confirmed their times.
    """
    try:
        exam = Examiner(op, case, device, exchange, tolerance)
    except RuntimeError as error:  # its inputs are too much for the memory that is left
        release(error)
        return dict.fromkeys((impl.label for impl in impls), error)
    say("having workers get ready to be timed")
    remotes: dict[str, Any] = {}
    refused: dict[str, Result] = {}
    for impl in impls:
        worker = workers[impl.label]
        try:
            exchange.hand_to(worker)
            worker.ask(
                "enter",
                "getting ready to be timed",
                sets=[[place.as_json() for place in places] for places in exam.sets],
                coming=[place.as_json() for place in exam.coming],
                stopwatch=stopwatch,
                tidy=tidy,
                **shape_of(exchange.expected),
            )
        except Exception as error:
            refused[impl.label] = error
        remotes[impl.label] = Remote(worker, impl.foreign, impl.accumulator)
    watch = RemoteStopwatch(exam, local)
    contest = Contest(
        op.baseline,
        [replace(impl, run=remotes[impl.label]) for impl in impls if impl.label not in refused],
        [(number,) for number in range(exchange.sets)],
        watch,
        plan or Plan(),
        seed=seed,
        first_calls_ms=first_calls_ms,
        ceilings=ceilings,
    )
    foreign = {impl.label for impl in impls if impl.foreign}
    say("timing, first calls and graphs at first")
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            contest.run(budget_s, progress)
    except KeyboardInterrupt:
        found = contest.results()
        raise Interrupted({label: found[label] for label in found.keys() - foreign}) from None
    say(f"holding {watch.cost()}, against the judge's own clock")

    def replay_us() -> float:
        """What a replay takes a host whose GPU has next to nothing to do, by the judge's own clock."""
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return _each_us(local.capture(torch.zeros(1, device=device).zero_), device)

    return refused | _verified(contest.results(), remotes, exam, foreign, replay_us)


def _verified(
    results: Mapping[str, Result],
    remotes: Mapping[str, Remote],
    exam: Examiner,
    foreign: Collection[str],
    replay_us: Callable[[], float],
) -> dict[str, Result]:
    """The results, but for those whose times the judge's own clock contradicts."""
    found: dict[str, Result] = {}
    for label, result in results.items():
        found[label] = result
        if isinstance(result, Timing) and result.cold_us is not None:
            try:
                changing = label in foreign and exam.has_elements
                problem = _contradiction(result, _Batches(remotes[label], exam, changing), replay_us)
            except Exception as error:
                found[label] = error
                continue
            if problem is not None:
                found[label] = TooFast(problem)
    return found


def _contradiction(timing: Timing, batches: _Batches, replay_us: Callable[[], float]) -> str | None:
    """Why a worker's times cannot be true, None if they can.

    Where the host is slower than the GPU, the clock sees the host.  How slow that is, a worker's own figure
    says of calls; of replays it is ``replay_us``, which the judge finds out where it matters.

    Raises:
        Cheated: what the calls left is wrong.
    """
    assert timing.cold_us is not None
    assert timing.launch_us is not None
    gpu_us = min(e.median for e in (timing.cold_us, timing.warm_us, timing.graph_us) if e is not None)
    if timing.graph_us is not None:
        kind, what, claimed_us = "graph", "replays of its CUDA graph", gpu_us
    else:
        kind, what, claimed_us = "warm", "calls", max(gpu_us, timing.launch_us.median)
    seen_us = batches.roughly_us(kind)
    for _ in range(ATTEMPTS):
        if _fits(claimed_us, seen_us):  # what disturbs only adds, so one that fits is enough
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
        changing: an element of the inputs changes before each call, and what one of them left is examined.
    """

    def __init__(self, remote: Remote, exam: Examiner, changing: bool) -> None:
        self._worker, self._accumulator = remote.worker, remote.accumulator
        self._exam, self._changing = exam, changing
        self._change_us = exam.change_us() if changing else 0.0

    def roughly_us(self, kind: str) -> float:
        """Time of a call and of its share in what a few take together."""
        if self._changing:
            self._exam.renew(0)
            self._exam.set_out(0, kind)
        return self._seconds(kind, FEWEST_CALLS) / FEWEST_CALLS * 1e6

    def slope_us(self, kind: str, at_most_us: float) -> float:
        """Time of a call: what more calls take longer, so that what all have falls out."""
        most = MOST_CALLS
        if self._changing and kind != "graph":
            most = min(most, KEPT_BYTES // self._exam.output_bytes)
        many = max(FEWEST_CALLS, min(most, int(SPAN_S * 1e6 / max(at_most_us, 1.0))))
        few = max(1, many // 8)
        seconds = -self._seconds(kind, few)
        seconds += self._seconds(kind, many)
        return max(0.0, seconds / (many - few) * 1e6 - self._change_us)

    def _seconds(self, kind: str, repeats: int) -> float:
        changes = self._exam.changes(0, repeats) if self._changing else None
        begin = time.perf_counter()
        self._worker.ask(
            "batch", f"a batch of {repeats} calls", kind=kind, which=0, repeats=repeats, changes=changes
        )
        seconds = time.perf_counter() - begin
        if changes is not None:
            self._examine(kind, repeats, changes)
        return seconds

    def _examine(self, kind: str, repeats: int, changes: Mapping[str, Any]) -> None:
        """Of a graph's replays the last is left; of calls any two are asked for, and nobody knows which."""
        exam, when = self._exam, "a batch of calls between which its inputs changed"
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
