"""The second verdict on a user's row: the op's own small hard cases, after the cases that were asked for."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

import torch

from compare.checking.check import CheckOptions, check
from compare.checking.hard_inputs import by_kind, is_small, variants
from compare.checking.hints import hint_of
from compare.checking.probes import Probes
from compare.checking.reference import expected_outputs
from compare.checking.tolerance import USERS_SLACK, ToleranceFromBaseline
from compare.model.op import Case, Implementation, Op, UsageError
from compare.model.result import HARD_INPUTS, THREAD_ORDERS, Agreement, Finding, Mismatch
from compare.worker.buffers import CaseBuffers, WorkerStage
from compare.worker.process import Ended, Raised, Worker
from cuda_impl.build import is_asserted

_FIRST_S = 40.0
"""Time that a slow implementation may take for one hard case of each kind, in seconds."""
_WATCHED_BYTES = 1 << 17
"""Compulsory traffic up to which every access is watched: that takes some 10 times as long."""


@dataclass
class HardInputs:
    """What came of the hard cases of one implementation."""

    passed: list[Case] = field(default_factory=list)
    unsupported: list[Case] = field(default_factory=list)
    """Refused by NotImplementedError."""
    untried: int = 0
    """Kinds of hard cases for which the time was too short."""
    failed: list[Case] = field(default_factory=list)
    problem: str = ""
    """Of the first one that failed."""
    mismatch: Mismatch | None = None
    failed_s: float = 0.0
    """When: monotonic time."""
    died: bool = False
    """Whether its process ended on the last one: perhaps for what an earlier one did to memory."""

    def finding(self, op: Op) -> Finding:
        """How many cases of which kinds passed; or the first mistake, with a guess at it."""
        if self.failed:
            hint = "" if self.died else hint_of(op, self.passed, self.failed)
            wrong = f"wrong on {len(self.failed)} of {len(self.passed) + len(self.failed)} hard inputs"
            guess = f", {hint}" if hint else ""
            return Finding(HARD_INPUTS, False, f"{self.failed[0]}: {self.problem}; {wrong}{guess}")
        return Finding(HARD_INPUTS, True, self._tried())

    def _tried(self) -> str:
        """``37 inputs (5 layouts, 6 fills, 12 odd sizes)``, the one that was asked for among them."""
        kinds = {
            "layouts": len({case.layout for case in self.passed} - {"contiguous"}),
            "fills": len({case.fill for case in self.passed} - {"normal"}),
            "odd sizes": len({case.dims for case in self.passed if any(size % 2 for size in case.shape)}),
            "dtypes": len({case.dtype for case in self.passed}),
            "not supported": len(self.unsupported),
            "not tried for lack of time": self.untried,
        }
        words = ", ".join(
            f"{count} {name if count > 1 or ' ' in name else name.rstrip('s')}"
            for name, count in kinds.items()
            if count
        )
        return f"{len(self.passed) + 1} inputs" + (f" ({words})" if words else "")

    def fail(self, case: Case, problem: str, mismatch: Mismatch | None = None) -> None:
        """Count a case as wrong."""
        if not self.failed:
            self.problem, self.mismatch, self.failed_s = problem, mismatch, time.monotonic()
        self.failed.append(case)


class HardProbes:
    """The probes of an op's hard cases, made once for all rows of a run.  Safe to call from several threads.

    Args:
        op: whose cases.
        device: where the inputs are.
        baseline: the worker of PyTorch's own implementation, whose errors set the limits, once it is free.
    """

    def __init__(self, op: Op, device: torch.device, baseline: Callable[[], Worker]) -> None:
        self.op, self._device, self._baseline = op, device, baseline
        self.seed = secrets.randbelow(1 << 31)
        self._lock = threading.Lock()
        self._probes: dict[Case, Probes] = {}
        self._buffers: CaseBuffers | None = None
        """Of the baseline."""

    def close(self) -> None:
        """Free the baseline's inputs."""
        with self._lock:
            if self._buffers is not None:
                self._buffers.__exit__()
                self._buffers = None

    def buffers(self, case: Case, kept: CaseBuffers | None = None) -> CaseBuffers:
        """Memory for a case: ``kept`` changed for it, or new."""
        expected = expected_outputs(self.op, case, self._device)
        if kept is None:
            return CaseBuffers(self.op, case, self._device, expected)
        kept.change(self.op, case, expected)
        return kept

    def of(self, case: Case) -> Probes:
        with self._lock:
            if case not in self._probes:
                self._probes[case] = self._made(case)
            return self._probes[case]

    def _made(self, case: Case) -> Probes:
        op, device = self.op, self._device

        def probes(stage: WorkerStage | None) -> Probes:
            return Probes(op, case, device, ToleranceFromBaseline(op, stage), (self.seed,))

        self._buffers = self.buffers(case, self._buffers)
        limited = probes(WorkerStage(self._baseline(), self._buffers, building=False))
        try:
            for _ in limited.of_check((self.seed,)):
                pass
        except (NotImplementedError, Raised, Ended):  # the op's floors remain
            return probes(None)
        return limited


def check_hard_inputs(
    impl: Implementation, asked: Case, worker: Worker, probes: HardProbes, budget_s: float
) -> HardInputs:
    """Check a user's implementation on the hard cases until the time is over.

    Args:
        impl: the user's.
        asked: the case that was asked for; its variants are tried too, if it is small.
        worker: of the implementation.
        probes: of the op's hard cases.
        budget_s: time in seconds; what is left then is not tried.
    """
    with probes.buffers(probes.op.cases.smoke[0]) as kept:

        def checked(case: Case) -> Agreement:
            return _checked(impl, case, worker, probes, kept=kept)

        return each_hard_input(probes.op, [asked], checked, budget_s)


def each_hard_input(
    op: Op, asked: Collection[Case], check_case: Callable[[Case], Agreement], budget_s: float
) -> HardInputs:
    """What came of the hard cases of an op, and of the variants of the first small case asked for.

    Args:
        op: whose cases.
        asked: the cases that were asked for, which are not checked again.
        check_case: the agreement on one case; raises as `_checked`.
        budget_s: time in seconds; one case of each kind is tried even if they take longer, up to a limit.
            After a mistake a quarter of it remains, to see what others have in common with it.
    """
    result, begin_s = HardInputs(), time.monotonic()
    end_s = begin_s + budget_s
    small = [case for case in (*asked, *op.cases.smoke) if is_small(op, case)]
    dtypes = {case.dtype for case in asked}
    first, others = by_kind(op, small[0].dtype)
    for case in dict.fromkeys((*first, *variants(op, small[0]), *others)):
        if case in asked:
            continue
        now_s = time.monotonic()
        if result.failed and now_s > min(end_s, result.failed_s + budget_s / 4):
            break
        if now_s > end_s and (case not in first or now_s > begin_s + _FIRST_S):
            result.untried += case in first
            continue
        try:
            agreement = check_case(case)
        except (NotImplementedError, UsageError, MemoryError):
            result.unsupported.append(case)
        except Raised as error:
            refuses = error.name in ("TypeError", "ValueError") and case.dtype not in dtypes
            if refuses or op.is_empty(case):  # another dtype, or no elements: an error is no wrong output
                result.unsupported.append(case)
            else:
                result.fail(case, f"{error.name}: {error}")
        except Ended as error:
            if error.retry:
                raise
            result.fail(case, str(error))
            result.died = not error.final
            break
        else:
            if agreement.passed:
                result.passed.append(case)
            else:
                result.fail(case, _problem(agreement), agreement.mismatch)
    return result


def memory_problem(impl: Implementation, cases: Collection[Case], worker: Worker, probes: HardProbes) -> str:
    """What a CUDA kernel does to memory on the first of ``cases`` where that is a mistake; else empty.

    Seen are accesses outside of tensors or misaligned, and races; on a CPU and on small cases only.
    """
    for case in filter(partial(is_small, probes.op), cases):
        try:
            _checked(impl, case, worker, probes, watched=True)
        except Raised as error:
            if error.name != "BuildError":  # g++ builds it unwatched only
                return str(error)
        except (NotImplementedError, UsageError):
            continue
        except Ended:
            break
    return ""


def in_thread_orders(
    impl: Implementation, cases: Collection[Case], ready: Callable[[], Worker], probes: HardProbes
) -> Finding:
    """Whether a CUDA kernel is right on a CPU with every access watched, and in two orders of its threads.

    Of ``cases``, on all of which it is correct, three small ones are tried.  ``ready`` returns its worker, or
    another one if that has ended: one that is too slow while it is watched is watched no more.
    """
    ways = [(True, ""), (False, "apart"), (False, "reverse")]
    op = probes.op
    nonempty = [case for case in cases if not op.is_empty(case) and is_small(op, case)]
    smallest = sorted(nonempty, key=lambda case: op.cost(case).bytes)
    largest = [case for case in smallest if op.cost(case).bytes <= _WATCHED_BYTES] or smallest
    # A vector load at any address shows on misaligned inputs only.
    misaligned = [case for case in smallest if case.layout == "misaligned"]
    for case in dict.fromkeys((*smallest[:1], *largest[-1:], *misaligned[:1])):
        for watched, order in list(ways):
            try:
                agreement = _checked(impl, case, ready(), probes, watched=watched, order=order)
            except NotImplementedError:
                break
            except Raised as error:
                if error.name == "BuildError":  # g++ builds it unwatched only
                    break
                return Finding(THREAD_ORDERS, False, f"{case}: {error}")
            except Ended as error:
                if error.retry:
                    raise
                if watched and error.late:
                    ways.remove((watched, order))
                    continue
                return Finding(THREAD_ORDERS, False, f"{case}: {error}")
            if not agreement.passed:
                where = "in another order of threads: is a __syncthreads() missing? " if order else ""
                return Finding(THREAD_ORDERS, False, f"{case}: {where}{_problem(agreement)}")
    return Finding(THREAD_ORDERS, True)


def _checked(
    impl: Implementation,
    case: Case,
    worker: Worker,
    probes: HardProbes,
    *,
    kept: CaseBuffers | None = None,
    watched: bool = False,
    order: str = "",
) -> Agreement:
    """The agreement on one case, with inputs in new memory or that of ``kept``.

    Raises:
        NotImplementedError: the implementation refuses the case.
        Raised, Ended: it failed.
    """
    op, device = probes.op, worker.device
    buffers = probes.buffers(case, kept)
    with buffers if kept is None else contextlib.nullcontext():
        stage = WorkerStage(worker, buffers)
        stage.watched, stage.thread_order = watched, order
        repeated = device.type == "cuda"
        options = CheckOptions(stage, probes.of(case), repeated=repeated, slack=USERS_SLACK)
        try:
            return check(op, impl, case, device, (probes.seed,), options)
        except Raised as error:
            if error.name == "BuildError" and is_asserted(str(error)):
                raise NotImplementedError(str(error)) from None
            raise


def _problem(agreement: Agreement) -> str:
    """What is wrong with the values, or else with how they came about."""
    failed = {finding.name: finding.detail for finding in agreement.findings if not finding.passed}
    name = next((name for name in ("values", "NaN and infinity") if name in failed), next(iter(failed)))
    return re.sub(r"^seed \d+: ", "", failed[name])
