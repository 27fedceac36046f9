"""Workers timed by `compare.timing.rounds`: one sample is one request to one worker process.

Each worker reads its own clock, because only that one is close enough to the GPU.  A user's row that can be
recorded is timed in a worker that never ran the file's host code (`compare.worker.replaying`).  Any other row
of a user's is unverified.  The judge verifies from outside: inputs are new in every round, and outputs of
samples are compared with the oracle.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch

from compare.checking.errors import errors_of
from compare.checking.guarded_memory import changed, memory_of, untouched
from compare.checking.probes import most_kept
from compare.checking.reference import Reference
from compare.checking.tolerance import ToleranceFromBaseline, limit_of, slack_of
from compare.model.op import Case, Implementation, Op, by_output
from compare.timing.ceilings import CeilingMeter
from compare.timing.rounds import Entry, Interrupted, Plan, Result, RoundProgress, Rounds, release
from compare.timing.stopwatch import BackToBack, HotReading, Kind, Reading, Stopwatch
from compare.worker import messages
from compare.worker.buffers import CaseBuffers
from compare.worker.memory import Placement
from compare.worker.messages import AnswerT
from compare.worker.process import Worker

CUDA_STOPWATCH = "compare.timing.stopwatch:CudaStopwatch"

REPLAYED = (
    "GPU times: its recorded GPU work, replayed on new inputs by a process that never ran its host code; "
    "launch overhead and first call: by its own process"
)
_HOST_TICK_US = 1e-3
"""The host's clock counts nanoseconds: of a time below that it reads 0."""
NOT_RECORDED = "its GPU work was not recorded"


def why(error: Exception) -> str:
    """Why a user's row cannot be recorded or replayed."""
    return str(error).partition("\n")[0] or type(error).__name__


class Cheated(Exception):
    """A worker's answer or output is wrong; the text is a whole sentence."""


class RemoteTimer:
    """`compare.timing.stopwatch.Timer` by workers: they take the readings, and the judge checks outputs.

    Args:
        worker: of the row.
        runner: replays the row's recorded call, for its cold times; None: the row's own worker takes them.
    """

    def __init__(
        self, impl: Implementation, examiner: Examiner, worker: Worker, runner: Worker | None = None
    ) -> None:
        self.output_dtype: str | None = None
        self._impl, self._examiner = impl, examiner
        self._worker, self._runner = worker, runner
        self._checked_in: dict[Kind, int] = {}

    def first(self) -> float:
        if self._runner is not None:
            self._runner.ask(messages.CallAgain(), "a call")
        begin = time.perf_counter()
        self.output_dtype = self._worker.ask(messages.CallAgain(), "a call")
        return (time.perf_counter() - begin) * 1e3

    def capture(self) -> None:
        self._worker.ask(messages.Capture(), "capturing a CUDA graph")

    def cold(self, number: int) -> Reading:
        self._examiner.begin_round(number)
        return self._sample(self._runner or self._worker, "cold", number)

    def warm(self, number: int, repeats: int, kind: BackToBack = "warm") -> Reading:
        # A graph was captured on the first set of inputs.
        return self._sample(self._worker, kind, 0 if kind == "graph" else number, repeats)

    def _sample(self, worker: Worker, kind: Kind, number: int, repeats: int = 1) -> Reading:
        which = number % len(self._examiner.sets)
        request = messages.Cold(which) if kind == "cold" else messages.Warm(which, kind, repeats)
        reading = self._examined(worker, request, kind, which)
        host_us = _checked([reading.host_us, reading.after_idle_us], [reading.gpu_us])
        return replace(reading, host_us=host_us[0], after_idle_us=host_us[1])

    def hot(self, limit_s: float) -> HotReading:
        # Host time is that of its own process, also where another replays its GPU work.
        reading = self._examined(self._worker, messages.Hot(limit_s), "hot", 0)
        return replace(reading, host_us=_checked(reading.host_us, reading.back_to_back_us))

    def _examined(
        self, worker: Worker, request: messages.WorkerRequest[AnswerT], kind: Kind, which: int
    ) -> AnswerT:
        """The answer to a request for a sample; its last output is examined where that is due."""
        examiner, checked = self._examiner, self._is_checked(kind)
        if checked and self._impl.user_file:
            examiner.renew(which)  # values that no other sample has seen
        examiner.set_out(which, kind)
        answer = worker.ask(request, f"a {kind} sample")
        if checked:
            examiner.examine(which, f"a {kind} sample on new inputs", self._impl)
        return answer

    def _is_checked(self, kind: Kind) -> bool:
        """Whether to examine the next sample's output: of a user's row every cold one.

        Else the first of a kind, and one in rounds 1, 4, 16 and so on, where the project's rows share the
        oracle's output: attention's takes a second.
        """
        in_turn = self._examiner.in_turn
        if kind in self._checked_in and in_turn in (0, self._checked_in[kind]):
            return self._impl.user_file is not None and kind == "cold"
        self._checked_in[kind] = in_turn
        return True


def _checked(host_us: Sequence[float], gpu_us: Sequence[float]) -> tuple[float, ...]:
    """Host times, at least a tick each.

    Raises:
        Cheated: a time is none.
    """
    if not (all(0 <= us < math.inf for us in host_us) and all(0 < us < math.inf for us in gpu_us)):
        raise Cheated(f"its clock read {', '.join(map(str, gpu_us))} us (GPU) and {host_us[0]} us (host)")
    return tuple(max(us, _HOST_TICK_US) for us in host_us)


class Examiner:
    """Makes the inputs of the rounds, and compares the outputs of samples with the oracle.

    Before a cold sample the set of inputs holds stale values.  The worker calls once on those, untimed, and
    then copies the next values over them, so that the timed call cannot use an earlier result.
    """

    def __init__(
        self, op: Op, case: Case, device: torch.device, buffers: CaseBuffers, tolerance: ToleranceFromBaseline
    ) -> None:
        self._op, self._case, self._device, self._buffers = op, case, device, buffers
        self._generator = torch.Generator(device).manual_seed(secrets.randbelow(1 << 62))
        self._round: int | None = None
        self._count = 0
        self._stale = self._fresh()
        self._wanted: list[tuple[Op, float, bool]] = []  # no references: these would hold the stale inputs
        self._references: dict[int, list[Reference]] = {}
        """Of the set of inputs that was compared last."""
        for part in by_output(op, case):
            reference = Reference(part, self._stale)
            limit = tolerance.limit(case, reference)
            self._wanted.append((part, limit, reference.by_row))
        self._values = [self._fresh() for _ in range(buffers.sets)]
        self.sets = [self._put(values, number) for number, values in enumerate(self._values)]
        offset = buffers.next_values_offset
        self.coming = [] if offset is None else buffers.memory.put(self._stale, offset)
        if not self.coming:
            self._stale = ()

    @property
    def output_bytes(self) -> int:
        return max(1, sum(x.numel() * x.itemsize for x in self._buffers.expected.values()))

    @property
    def in_turn(self) -> int:
        """The number of rounds so far, discarded ones too, where that is 1, 4, 16 and so on; else 0."""
        count = self._count
        power_of_4 = count & (count - 1) == 0 and count.bit_length() % 2 == 1
        return count if power_of_4 else 0

    def begin_round(self, number: int) -> None:
        """Draw new values for a set of inputs, once a round."""
        if number != self._round:
            self.renew(number % len(self.sets))
            self._round = number
            self._count += 1

    def _fresh(self) -> tuple[torch.Tensor, ...]:
        return self._op.make_inputs(self._case, self._generator, self._device)

    def _put(self, values: tuple[torch.Tensor, ...], which: int) -> list[Placement]:
        return self._buffers.memory.put(values, which * self._buffers.set_bytes)

    def renew(self, which: int) -> None:
        """Draw new values for a set of inputs."""
        self._references.pop(which, None)
        self._values[which] = ()  # frees the old ones: large inputs may fit only once
        self._values[which] = self._fresh()

    def set_out(self, which: int, kind: Kind) -> None:
        """Copy the inputs of a sample into shared memory and poison the output; done when this returns."""
        buffers = self._buffers
        if kind == "cold" and buffers.next_values_offset is not None:
            self._put(self._stale, which)
            buffers.memory.put(self._values[which], buffers.next_values_offset)
        else:
            self._put(self._values[which], which)
        buffers.poison()

    def examine(self, which: int, when: str, impl: Implementation) -> None:
        """Compare the outputs of the last sample with the oracle, and the inputs with their values.

        Raises:
            Cheated: an output is wrong, or an input was written to.
        """
        outputs = self._buffers.take()
        references = self._references_of(which)
        for (op, allowed, _), reference, output in zip(
            self._wanted, references, outputs.values(), strict=True
        ):
            # Twice the check's limit, derived from one set of inputs: this tests that the work was done.
            limit = 2 * slack_of(impl) * limit_of(op.tolerance(self._case), impl.accumulator, allowed)
            self._compare(reference, output, limit, when, impl.accumulator)
        now = [memory_of(self._buffers.memory.tensor(place)) for place in self.sets[which]]
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
        op.mask_unspecified(reference.inputs, output)
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
                f"{max(errors.wrong, errors.misplaced)} of {errors.compared} elements: "
                "a race, a kept result, or work left to another stream"
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
    buffers: CaseBuffers
    """The shared memory of the case."""
    tolerance: ToleranceFromBaseline
    """PyTorch's own error on this op."""
    first_calls_ms: Mapping[str, float] = field(default_factory=dict)
    """By label: first calls timed earlier; others are timed with the rounds."""
    runners: Mapping[str, Worker | str] = field(default_factory=dict)
    """Of users' rows, by label: a worker that replays a recording, and takes GPU times in place of the row's
    own; or why it cannot be recorded."""


@dataclass(frozen=True)
class Settings:
    """How to time it."""

    local: Stopwatch
    """The judge's: reads an empty pair of events."""
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
    progress: RoundProgress | None = None,
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
        Interrupted: on Ctrl-C, with the times so far.
    """
    op, device = subject.op, subject.device
    try:
        examiner = Examiner(op, subject.case, device, subject.buffers, subject.tolerance)
    except RuntimeError as error:  # the inputs do not fit into the memory left
        release(error)
        return dict.fromkeys((impl.label for impl in subject.impls), error)
    say("preparing workers for timing")
    entries, failed = _entries(subject, settings, examiner)
    rounds = Rounds(op.baseline, entries, settings.local, settings.plan, settings.seed, ceilings)
    say("timing: first calls and graphs, then rounds")
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            rounds.run(settings.budget_s, progress)
    except KeyboardInterrupt:
        raise Interrupted(rounds.results()) from None
    return failed | rounds.results()


def _entries(
    subject: Subject, settings: Settings, examiner: Examiner
) -> tuple[list[Entry], dict[str, Result]]:
    """An entry for each implementation whose worker is ready, and by label the error of each other one."""
    enter = messages.Enter(
        sets=tuple(map(tuple, examiner.sets)),
        coming=tuple(examiner.coming),
        stopwatch=settings.stopwatch,
        cycles_per_us=settings.local.cycles_per_us,
        tidy=settings.tidy,
    )
    entries: list[Entry] = []
    failed: dict[str, Result] = {}

    def begin(impl: Implementation) -> None:
        subject.buffers.hand_to(subject.workers[impl.label])
        subject.workers[impl.label].send(enter)

    def wait(impl: Implementation) -> None:
        subject.workers[impl.label].receive("preparing for timing")

    def add(impl: Implementation) -> None:
        entries.append(_entry(impl, subject, examiner, enter))

    # All prepare at the same time, but weights one after the other: what that takes is shown.
    for step in (begin, wait, add):
        for impl in subject.impls:
            try:
                if impl.label not in failed:
                    step(impl)
            except Exception as error:
                failed[impl.label] = error
    return entries, failed


def _entry(impl: Implementation, subject: Subject, examiner: Examiner, enter: messages.Enter) -> Entry:
    """An implementation in its worker, or in its runner where that replays a call correctly."""
    worker = subject.workers[impl.label]
    notes: list[str] = []
    if impl.prepare is not None:
        ms = worker.ask(messages.Prepare(), "preparing weights")
        notes.append(f"weights prepared offline, untimed: {ms:.3g} ms")
    timer, unverified = RemoteTimer(impl, examiner, worker), ""
    runner = subject.runners.get(impl.label, NOT_RECORDED) if impl.user_file else ""
    if isinstance(runner, str):
        unverified = runner
    else:
        try:
            subject.buffers.hand_to(runner)
            runner.ask(enter, "preparing for timing")
            replayed = RemoteTimer(impl, examiner, worker, runner)
            replayed.cold(-1)
            timer, unverified = replayed, ""
            notes.append(REPLAYED)
        except Exception as error:  # also an output that is wrong on new inputs
            release(error)
            unverified = why(error)
    first_ms = subject.first_calls_ms.get(impl.label)
    return Entry(impl, timer, first_ms, impl.user_file is not None, unverified, notes)
