"""A recording timed like any row, in the host's memory: what is copied and poisoned, and when."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from compare import registry
from compare.checking.guarded_memory import POISON
from compare.checking.reference import expected_outputs
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Implementation, case
from compare.timing.rounds import Plan, Result
from compare.timing.stopwatch import HotReading, Reading
from compare.worker import main, user_files
from compare.worker.buffers import CaseBuffers
from compare.worker.messages import CallAgain, Hot, WorkerRequest
from compare.worker.pool import WorkerPool
from compare.worker.timing import REPLAYED, RemoteTimer, Subject, measure
from host_stopwatch import HostStopwatch
from in_workers import settings_on
from loaded_files import CPU, implemented, own_registry, written
from loops import for_each

STALE, NEW = 1.0, 2.0


@pytest.fixture(autouse=True)
def _collecting() -> Iterator[None]:
    """A bench turns the garbage collector off."""
    yield
    gc.enable()


class FakePlayer:
    """Doubles the arena's input; notes what it finds before each call."""

    def __init__(self) -> None:
        self.x, self.y = torch.zeros(4), torch.zeros(4)
        self.found: list[tuple[float, bool]] = []

    def __call__(self, *_: torch.Tensor) -> torch.Tensor:
        self.found.append((float(self.x[0]), bool(self.y.view(torch.int16).eq(POISON).all())))
        torch.mul(self.x, 2, out=self.y)
        return self.y

    def reset(self) -> None:
        self.y.view(torch.int16).fill_(POISON)


def bench(player: FakePlayer, *, coming: bool = True) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A bench with one set of inputs in shared memory, and the shared_output of the output."""
    shared, shared_output = torch.full((4,), STALE), torch.zeros(4)
    impl = Implementation("", "replay", "naive", player)
    values = (torch.full((4,), NEW),) if coming else ()
    watch = HostStopwatch(CPU)
    found = main._ReplayBench(player, (player.x,), [(shared,)], impl, values, {"y": shared_output}, watch)  # type: ignore[arg-type]
    return found, shared, shared_output


def test_a_cold_sample_is_of_inputs_that_nothing_has_seen() -> None:
    player = FakePlayer()
    found, shared, shared_output = bench(player)
    found.cold(0)
    assert player.found == [(STALE, True), (NEW, True)]
    assert shared_output.eq(2 * NEW).all()
    assert shared.eq(NEW).all()  # the judge compares it with its own


def test_large_inputs_are_copied_once() -> None:
    player = FakePlayer()
    found, _, shared_output = bench(player, coming=False)
    found.cold(0)
    assert player.found == [(STALE, True)]
    assert shared_output.eq(2 * STALE).all()


def test_the_judge_sees_what_was_written_to_an_input() -> None:
    player = FakePlayer()
    found, shared, _ = bench(player, coming=False)
    with mock.patch.object(torch, "mul", lambda x, _, out: x.fill_(9.0)):
        found.cold(0)
    assert shared.eq(9.0).all()


def test_cold_times_are_the_runners_and_host_times_its_own() -> None:
    taken: list[str] = []

    def worker(name: str, us: float) -> SimpleNamespace:
        def ask(request: WorkerRequest[Any], step: str) -> Any:
            taken.append(f"{name} {type(request).__name__}")
            if isinstance(request, Hot):
                return HotReading((us,), (us + 1,))
            return "torch.float32" if isinstance(request, CallAgain) else Reading(us, us + 1)

        return SimpleNamespace(ask=ask)

    own, runner = worker("own", 20.0), worker("runner", 10.0)
    impl = Implementation("", "triton.mine", "naive", FakePlayer(), user_file=Path("mine.py"))
    examiner = mock.Mock(sets=[1, 2, 3], in_turn=0)
    timer = RemoteTimer(impl, examiner, own, runner)  # type: ignore[arg-type]
    assert timer.first() < 20.0
    assert timer.output_dtype == "torch.float32"
    cold, warm = timer.cold(4), timer.warm(4, 2)
    assert [(each.gpu_us, each.host_us) for each in (cold, warm)] == [(10.0, 11.0), (20.0, 21.0)]
    assert timer.hot(1.0) == HotReading((20.0,), (21.0,))
    assert taken == ["runner CallAgain", "own CallAgain", "runner Cold", "own Warm", "own Hot"]
    # New values for every cold sample, in the set of inputs that is its round's.
    timer.cold(5)
    assert examiner.renew.call_args_list == [mock.call(1), mock.call(1), mock.call(0), mock.call(2)]
    assert examiner.examine.call_count == 4


@pytest.fixture(scope="module")
def with_runners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Rows of a file with other workers in place of runners: a right one, a wrong one and one that exits."""
    op, small = registry.get_op("vector_add"), case("fp32", N=1024)
    file = written(
        tmp_path_factory.mktemp("runners") / "rows.py",
        implemented("wrong", "return torch.zeros_like(x)") + implemented("leaves", "os._exit(3)"),
    )
    with own_registry(), WorkerPool(op, CPU, 20.0) as pool:
        user_files.load([file])
        right, wrong, leaves = (
            impl
            for name in ("right", "wrong", "leaves")
            for impl in registry.implementations("vector_add", [f"triton.{name}"])
        )
        (eager,) = registry.implementations("vector_add", ["torch.eager"])
        impls = [eager, *(replace(right, label=f"triton.{name}", base="triton.right") for name in "abc")]
        workers = {impl.label: pool.of(impl) for impl in impls}
        runners = {
            "triton.a": pool.of(replace(right, label="triton.d", base="triton.right")),
            "triton.b": pool.of(wrong),
            "triton.c": pool.of(leaves),
        }
        tolerance = ToleranceFromBaseline.local(op, small, CPU)
        with CaseBuffers(op, small, CPU, expected_outputs(op, small, CPU), timed=True) as buffers:
            subject = Subject(
                op, impls, small, CPU, workers, buffers, tolerance, dict.fromkeys(workers, 1.0), runners
            )
            plan = Plan(min_rounds=5, max_rounds=5, min_s=0.0, warm_up_s=0.0, slow_ms=math.inf)
            return measure(subject, settings_on(CPU, plan=plan))


@for_each(
    "label, unverified",
    [
        ("triton.a", "^$"),
        ("triton.b", "elements were not written|wrong in a cold sample"),
        ("triton.c", "exit code 3"),
    ],
)
def test_a_row_is_replayed_or_timed_as_before_and_says_which(
    label: str, unverified: str, with_runners: dict[str, Result]
) -> None:
    result = with_runners[label]
    assert re.search(unverified, result.unverified)
    assert (REPLAYED in result.notes) == (label == "triton.a")
