"""The checks of a case: each implementation's first call in its worker, and its outputs against the oracle.

The checks run in parallel, each with inputs in its own memory, as far as cores and GPU memory allow.
The inputs of a seed, the oracle's output for them and PyTorch's own error are computed once for all: the last
from the baseline's worker, right after its first call.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from compare import registry
from compare.checking.check import CheckOptions, check
from compare.checking.hard_inputs import neighbour
from compare.checking.probes import Probe, Probes
from compare.checking.reference import Reference, expected_outputs
from compare.checking.stage import settle_vector_math
from compare.checking.tolerance import USERS_SLACK, ToleranceFromBaseline, limit_of, slack_of
from compare.model.op import Case, Implementation, Op, UsageError
from compare.model.result import (
    HARD_INPUTS,
    HELPERS,
    MEMORY,
    OTHER_SIZES,
    THREAD_ORDERS,
    Agreement,
    Finding,
    Mismatch,
    Tuning,
)
from compare.tuning import cache
from compare.worker import messages
from compare.worker.buffers import CaseBuffers, WorkerStage
from compare.worker.hard_inputs import HardProbes, check_hard_inputs, in_thread_orders, memory_problem
from compare.worker.parallel import cores, run_parallel
from compare.worker.pool import WorkerPool
from compare.worker.process import Ended, Raised, Worker

_JUDGE_BYTES = 3 << 30
"""GPU memory that the judge needs to compare outputs of an ordinary size, and at least 1/8 of all."""
_CONTEXT_BYTES = 400 << 20
"""GPU memory of each worker's CUDA context."""
_CPU_BYTES = 4 << 20
"""Largest memory traffic of a case that is checked on nearby sizes too, on a CPU."""
_HARD_GPU_S, _HARD_CPU_S = 3.0, 12.0
"""Time for a user's row on the op's hard inputs."""
_TENSORS = 12
"""GPU memory of an implementation and its check, as a multiple of the case's bytes: an estimate."""


@dataclass
class CheckOutcome:
    """Result of checking one implementation."""

    agreement: Agreement | None = None
    error: Exception | None = None
    first_call_ms: float | None = None
    tunings: tuple[Tuning, ...] = ()
    """Configurations found in the first call, or by an earlier run."""
    held_bytes: int = 0
    """Most GPU memory that PyTorch held for it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by step; waiting for others is a step."""

    def __str__(self) -> str:
        return ", ".join(f"{step} {seconds:.2f} s" for step, seconds in self.seconds.items())


class Checking:
    """The checks of one case.

    Args:
        pool: the workers.
        seeds: of the inputs, by label.
        more: findings on users' implementations beside those of the case: ``other sizes``, ``hard inputs``,
            ``thread orders``; ``helpers`` if PyTorch's operators may help them.
        retune: search again for configurations that an earlier run found.
    """

    def __init__(
        self,
        op: Op,
        case: Case,
        device: torch.device,
        pool: WorkerPool,
        seeds: Mapping[str, Sequence[int]],
        more: Collection[str] = (),
        retune: bool = False,
    ) -> None:
        self._retune = retune
        self._more = more
        self._op, self._case, self._device, self._pool, self._seeds = op, case, device, pool, seeds
        self._baseline_checked = threading.Event()
        self._hard_probes = HardProbes(op, device, self._baseline)
        self._expected = expected_outputs(op, case, device)
        self._probes: Future[Probes] = Future()
        """Known once the baseline was called: the tolerance needs its outputs."""

    def run(
        self, impls: Sequence[Implementation], begin: Callable[[Implementation], None]
    ) -> Iterator[tuple[Implementation, CheckOutcome]]:
        """Check ``impls``; yields each with its `CheckOutcome` as soon as that is known.

        Args:
            impls: those that can run here.
            begin: called with each implementation before its check, where checks run one at a time.
        """
        impls = sorted(impls, key=lambda impl: impl.label != self._op.baseline)  # the others wait for it
        if not self._probes.done() and not any(impl.label == self._op.baseline for impl in impls):
            self._probe(None)
            self._baseline_checked.set()
        width = self.width(len(impls))

        def job(impl: Implementation) -> CheckOutcome:
            if width == 1:
                begin(impl)
            return self._outcome(impl)

        if self._device.type == "cpu":
            settle_vector_math()  # not at the first comparisons, in several threads
        try:
            yield from run_parallel(job, impls, width, self._pool.close)
        finally:
            self._hard_probes.close()

    def _baseline(self) -> Worker:
        """The worker of PyTorch's own implementation, after its check: it answers one thread at a time."""
        self._baseline_checked.wait()
        (baseline,) = registry.implementations(self._op.name, (self._op.baseline,))
        return self._pool.of(baseline)

    def width(self, count: int) -> int:
        """How many of ``count`` implementations may be checked at once."""
        if self._device.type != "cuda":
            return max(1, min(count, cores()))
        total_bytes: int = torch.cuda.get_device_properties(self._device).total_memory
        room = total_bytes - max(_JUDGE_BYTES, total_bytes // 8) - count * _CONTEXT_BYTES
        each = _CONTEXT_BYTES + _TENSORS * self._op.cost(self._case).bytes
        return max(1, min(count, cores(), room // each))

    def allowance(self) -> int:
        """GPU memory that an implementation may allocate, in bytes."""
        return (2 << 30) + _TENSORS * self._op.cost(self._case).bytes

    def _outcome(self, impl: Implementation) -> CheckOutcome:
        outcome = self._attempt(impl)
        if self._pool.retries(impl.label, outcome.error):
            self._pool.retry(impl.label)
            outcome = self._attempt(impl)
        if isinstance(outcome.error, Ended):
            self._pool.note(impl, outcome.error)
            if impl.user_file and not (outcome.error.final or outcome.error.by_judge):
                outcome.error.args = (self._with_memory_problem(impl, [self._case], str(outcome.error)),)
        if impl.label == self._op.baseline:
            if not self._probes.done():
                self._probe(None)
            self._baseline_checked.set()
        return outcome

    def _attempt(self, impl: Implementation) -> CheckOutcome:
        outcome = CheckOutcome()
        clock = _StepTimer(outcome.seconds)
        try:
            worker = self._pool.of(impl)
            clock("ready after")
            outcome.seconds["a context of"] = self._pool.contexts_s.get(impl.label, 0.0)
            built_s = self._pool.built_s(impl, self._case.dtype)
            if built_s:
                clock("built after")
            with CaseBuffers(self._op, self._case, self._device, self._expected) as buffers:
                self._check(impl, worker, buffers, outcome, clock, built_s)
            clock("put away in")
        except Exception as error:
            outcome.error = error
        return outcome

    def _check(
        self,
        impl: Implementation,
        worker: Worker,
        buffers: CaseBuffers,
        outcome: CheckOutcome,
        clock: _StepTimer,
        built_s: float,
    ) -> None:
        on_gpu = self._device.type == "cuda"
        stage = WorkerStage(worker, buffers, building=not on_gpu)
        if on_gpu:
            worker.ask(messages.LimitMemory(self.allowance()))
            called_ms, outcome.tunings = self._first_call(impl, worker, buffers)
            outcome.first_call_ms = 1e3 * built_s + called_ms
            clock("first called in")
        if impl.label == self._op.baseline and not self._probes.done():
            self._probe(stage)
        probes = self._probes.result()
        clock("waited")
        agreement = check(
            self._op,
            impl,
            self._case,
            self._device,
            self._seeds[impl.label],
            CheckOptions(
                stage,
                probes,
                impl.user_file is not None,
                impl.has_own_kernels,
                helpers=HELPERS in self._more,
                slack=slack_of(impl),
            ),
        )
        clock("checked in")
        if impl.user_file:
            agreement = self._more_on(impl, worker, agreement)
            clock("more checked in")
        outcome.agreement = agreement
        if not worker.alive:  # a hard input ended it
            return
        rest = worker.ask(messages.Rest())
        outcome.held_bytes = rest.held_bytes
        if rest.kept_bytes > self.allowance():
            raise worker.end(f"it keeps {rest.kept_bytes / 1e9:.1f} GB of the GPU's memory between its calls")

    def _more_on(self, impl: Implementation, worker: Worker, agreement: Agreement) -> Agreement:
        """``agreement`` of a user's implementation with the findings asked for beside the case's."""
        if not agreement.passed:
            problem = self._with_memory_problem(impl, [self._case], "")
            memory = (Finding(MEMORY, False, problem),) if problem else ()
            return replace(agreement, findings=(*memory, *agreement.findings))
        right = [self._case]
        if HARD_INPUTS in self._more:
            agreement, passed = self._on_hard_inputs(impl, worker, agreement)
            right += passed
        if agreement.passed and OTHER_SIZES in self._more:
            agreement = self._elsewhere(impl, worker, agreement)
        if agreement.passed and THREAD_ORDERS in self._more and self._watches(impl):
            finding = in_thread_orders(impl, right, partial(self._pool.of, impl), self._hard_probes)
            agreement = _with(agreement, finding, None)
        return agreement

    def _watches(self, impl: Implementation) -> bool:
        """Whether it has CUDA kernels whose accesses are seen one by one."""
        return impl.route == "cupy" and self._device.type == "cpu"

    def _with_memory_problem(self, impl: Implementation, cases: Collection[Case], problem: str) -> str:
        """``problem`` behind what a user's CUDA kernel does to memory on these cases, where a CPU sees that.

        If its worker died, another one is asked.
        """
        if not self._watches(impl):
            return problem
        try:
            why = memory_problem(impl, cases, self._pool.of(impl), self._hard_probes)
        except (Ended, Raised):
            return problem
        return problem if why in problem else "; ".join(filter(None, (why, problem)))

    def _elsewhere(self, impl: Implementation, worker: Worker, agreement: Agreement) -> Agreement:
        """``agreement`` with one more finding: whether the output is correct on random nearby sizes."""
        case = neighbour(self._op, self._case)
        if case == self._case or (self._device.type == "cpu" and self._op.cost(case).bytes > _CPU_BYTES):
            return agreement
        op, device, seeds = self._op, self._device, self._seeds[impl.label]
        probes = Probes(op, case, device, _LimitsOf(impl, self._probes.result().of(seeds[0])), ())
        try:
            with CaseBuffers(op, case, device, expected_outputs(op, case, device)) as buffers:
                stage = WorkerStage(worker, buffers, building=False)
                own_work, helpers = impl.has_own_kernels, HELPERS in self._more
                options = CheckOptions(stage, probes, own_work=own_work, helpers=helpers, slack=USERS_SLACK)
                found = check(op, impl, case, device, (secrets.randbelow(1 << 31),), options)
        except (NotImplementedError, UsageError, MemoryError, Raised):  # it refuses these sizes
            return agreement
        problem = "" if found.passed else f"{case}: {found.reason}; right on {self._case}"
        return _with(agreement, Finding(OTHER_SIZES, found.passed, problem), found.mismatch)

    def _on_hard_inputs(
        self, impl: Implementation, worker: Worker, agreement: Agreement
    ) -> tuple[Agreement, list[Case]]:
        """``agreement`` with a finding on the op's own hard inputs, and those on which it is correct."""
        budget_s = _HARD_GPU_S if self._device.type == "cuda" else _HARD_CPU_S
        result = check_hard_inputs(impl, self._case, worker, self._hard_probes, budget_s)
        if result.failed and (worker.alive or result.died):
            cases = (result.failed[0], self._case)[: 1 + result.died]
            result.problem = self._with_memory_problem(impl, cases, result.problem)
        return _with(agreement, result.finding(self._op), result.mismatch), result.passed

    def _first_call(
        self, impl: Implementation, worker: Worker, buffers: CaseBuffers
    ) -> tuple[float, tuple[Tuning, ...]]:
        """Time of the first call in ms, and the configurations it searched for.

        Must come before any other call on this case: the first one compiles.
        """
        buffers.hand_to(worker)
        generator = torch.Generator(self._device).manual_seed(self._seeds[impl.label][0])
        buffers.put(self._op.make_inputs(self._case, generator, self._device), 0)
        buffers.poison()
        device = torch.cuda.get_device_name(self._device)
        before = [] if self._retune else cache.found_before(impl, device)
        request = messages.First(buffers.places, tuple(before))
        first = worker.ask(request, "building and the first call")
        found = cache.dated(first.tunings)
        cache.keep(impl, device, found)
        return first.ms, found

    def _probe(self, stage: WorkerStage | None) -> None:
        """Compute inputs, references and limits for all checks; the limits need the baseline's outputs."""
        seeds = [seed for seeds in self._seeds.values() for seed in seeds]
        shared = {seed for seed in seeds if seeds.count(seed) > 1}

        def probes(stage: WorkerStage | None) -> Probes:
            return Probes(self._op, self._case, self._device, ToleranceFromBaseline(self._op, stage), shared)

        made = probes(stage)
        try:
            for of_one in dict.fromkeys(map(tuple, self._seeds.values())):
                for _ in made.of_check(of_one):
                    pass
        except Exception as error:  # memory, most likely: every check meets it again and says so
            if self._pool.retries(self._op.baseline, error):
                raise
            made = probes(None)
        self._probes.set_result(made)


def _with(agreement: Agreement, finding: Finding, mismatch: Mismatch | None) -> Agreement:
    """``agreement``, which has passed, with one more finding."""
    findings = (*agreement.findings, finding)
    return replace(agreement, passed=finding.passed, findings=findings, mismatch=mismatch)


class _LimitsOf(ToleranceFromBaseline):
    """Twice the limits of another case."""

    def __init__(self, impl: Implementation, probe: Probe) -> None:
        self._accumulator = impl.accumulator
        # Numbers only: a reference would hold the other case's inputs.
        self._known = {each.op.output: (each.limit, each.by_row) for each in probe.references}

    def limit(self, case: Case, reference: Reference) -> float:
        if reference.op.tolerance(case).exact:
            return reference.op.tolerance(case).least
        limit, reference.by_row = self._known[reference.op.output]
        return 2 * limit_of(reference.op.tolerance(case), self._accumulator, limit)


class _StepTimer:
    """Records the seconds of each step."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds, self._last_s = seconds, time.perf_counter()

    def __call__(self, step: str) -> None:
        now_s = time.perf_counter()
        self._seconds[step], self._last_s = now_s - self._last_s, now_s
