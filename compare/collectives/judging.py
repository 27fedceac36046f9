"""Whether an implementation is right on all ranks: the check of one GPU's ops, and calls in a row."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch

from compare.checking.check import CheckOptions, check
from compare.checking.guarded_memory import POISON, GuardedMemory
from compare.checking.probes import Probes
from compare.checking.reference import Outputs
from compare.checking.stage import CallResult, wrong_kind
from compare.checking.tolerance import ToleranceFromBaseline
from compare.collectives.ranks import Rank
from compare.device import supports
from compare.model.op import Case, Implementation

_CALLS = {"cuda": 24, "cpu": 10}
"""In a row."""
_LATE_CYCLES = 200_000
"""The most that a rank is late on a GPU: about 0.1 ms."""
_PAUSES = """
import os, random, signal, sys, time
rank = int(sys.argv[1])
def end(*_):
    os.kill(rank, signal.SIGCONT)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print(flush=True)
while True:
    time.sleep(random.random() * 2e-3)
    os.kill(rank, signal.SIGSTOP)
    time.sleep(random.random() * 4e-3)
    os.kill(rank, signal.SIGCONT)
"""
"""A program that stops a process again and again, for milliseconds."""
_MOST_ELEMENTS = 1 << 22
"""Of an x with which calls in a row are checked, and of one that is checked with several seeds."""

Status = Literal["ok", "wrong", "failed", "not run"]


def probes_of(this: Rank, case: Case) -> Probes:
    """The inputs and references of a case, for all implementations."""
    return Probes(this.op, case, this.device, ToleranceFromBaseline(this.op, None), _seeds(case))


def _seeds(case: Case) -> tuple[int, ...]:
    return (0, 1, 2) if case["N"] <= _MOST_ELEMENTS else (0,)


def checked(this: Rank, impl: Implementation, case: Case, probes: Probes) -> tuple[Status, str]:
    """A status and its reason, the same on all ranks."""
    answer: tuple[Status, str]
    if reason := supports(impl, this.device):
        return "not run", reason
    try:
        stage = _RankStage(this, impl, case)
        options = CheckOptions(stage, probes, repeated=False)
        agreement = check(this.op, impl, case, this.device, _seeds(case), options)
        failed = [f"{one.name}: {one.detail}" for one in agreement.findings if not one.passed]
        if case["N"] <= _MOST_ELEMENTS:
            failed += in_a_row(this, impl, case)
        answer = ("wrong", failed[0]) if failed else ("ok", "")
    except NotImplementedError as error:
        answer = "not run", str(error)
    except Exception as error:
        answer = "failed", f"{type(error).__name__}: {error}"
    answers: list[tuple[Status, str]] = this.from_all(answer)
    worst = next((each for each in answers if each[0] != "ok"), answer)
    return worst[0], worst[1] and f"rank {answers.index(worst)}: {worst[1]}"


def in_a_row(this: Rank, impl: Implementation, case: Case) -> list[str]:
    """What is wrong in calls with other values each, none of which waits for the host.

    A rank is late at random, on a CPU within a call too: without a barrier, another reads an x too early or
    too late.
    """
    generator = torch.Generator(this.device).manual_seed(this.order.seed)
    late, x, calls = random.Random(this.rank), this.x_of(case), _CALLS[this.device.type]
    shape = calls, this.layout.ranks, case["N"]
    inputs = torch.randn(shape, device=this.device, generator=generator).to(x.dtype)
    outputs = torch.full_like(inputs[:, 0], float("nan"))
    call = this.call_of(impl, case)
    this.together()
    with nullcontext() if this.order.on_gpu else _paused():
        for number in range(calls):
            if this.order.on_gpu:
                torch.cuda._sleep(late.randrange(_LATE_CYCLES))
            x.copy_(inputs[number, this.rank])
            outputs[number] = call()
    this.together()
    terms = inputs.double()
    allowed = torch.finfo(x.dtype).eps * this.layout.ranks * terms.abs().sum(1)
    right = (outputs.double() - terms.sum(1)).abs() <= allowed  # not of NaN
    wrong = calls - int(right.all(1).sum())
    return [f"calls in a row: {wrong} of {calls} are wrong: is a barrier missing?"] * (wrong > 0)


@contextmanager
def _paused() -> Iterator[None]:
    """This process pauses at random."""
    program = [sys.executable, "-S", "-c", _PAUSES, str(os.getpid())]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as pauses:
        assert pauses.stdout
        pauses.stdout.readline()
        try:
            yield
        finally:
            pauses.terminate()


class _RankStage:
    """Where `check` calls an implementation: on this rank, while the others do the same."""

    def __init__(self, this: Rank, impl: Implementation, case: Case) -> None:
        self._this, self._impl, self._case = this, impl, case

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._this.together()  # no rank reads the x of the last call any more
        self._this.x_of(self._case).copy_(inputs[0][self._this.rank])
        return inputs

    def call(self, expected: Outputs, poison: int = POISON) -> CallResult:
        guard = GuardedMemory(self._this.device, poison)
        self._this.together()
        with guard if self._impl.way != "torch" else nullcontext():
            y = self._this.call_of(self._impl, self._case)()
        delivered = y.clone()
        self._this.together()
        violations = tuple(guard.violations())
        if problem := wrong_kind(y, expected, self._this.device):
            return CallResult(None, problem, violations)
        return CallResult(dict.fromkeys(expected, delivered), None, violations, guard.owns(y))
