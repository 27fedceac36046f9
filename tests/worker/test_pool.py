"""The workers of a run."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compare import registry
from compare.checking.reference import expected_outputs
from compare.worker.buffers import CaseBuffers
from compare.worker.messages import Connect, Rest, WorkerRequest
from compare.worker.pool import CONTEXTS_AT_ONCE, WorkerPool
from compare.worker.process import Ended, NotLoaded
from cuda_impl import build
from loaded_files import CPU, SMALL, written


def test_a_worker_that_is_dismissed_ends_and_the_next_is_another() -> None:
    op = registry.get_op("vector_add")
    (impl, *_) = registry.implementations("vector_add")
    with WorkerPool(op, CPU, 60.0) as pool:
        first = pool.of(impl)
        assert pool.contexts_s[impl.label] >= 0
        with CaseBuffers(op, SMALL, CPU, expected_outputs(op, SMALL, CPU)) as buffers:
            buffers.hand_to(first)
            pool.dismiss(impl)
        with pytest.raises(Ended):
            first.ask(Rest())
        second = pool.of(impl)
        assert second.pid != first.pid
        assert second.ask(Rest()).kept_bytes == 0


def test_what_keeps_a_worker_from_getting_ready_is_said_every_time(tmp_path: Path) -> None:
    """As of a file that raises when it is loaded again."""
    file = written(tmp_path / "mine.py", "1 / 0\n")
    (impl, *_) = registry.implementations("vector_add")
    impl = dataclasses.replace(impl, label="triton.right", user_file=Path(file))
    with WorkerPool(registry.get_op("vector_add"), CPU, 60.0) as pool:
        for _ in range(3):
            with pytest.raises(NotLoaded, match="ZeroDivisionError at line 14"):
                pool.of(impl)


def test_few_contexts_are_created_at_once_and_before_a_file_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver interleaves them, and then none is ready before all are."""
    steps: list[str] = []
    busy: list[str] = []
    most = 0

    class Pretend:
        alive, environment = True, {}

        def __init__(self, who: str, *_: object, **__: object) -> None:
            self.who = who

        def send(self, request: WorkerRequest[None]) -> None:
            steps.append(f"{self.who} {type(request).__name__}")

        def receive(self, step: str) -> None:
            pass

        def ask(self, request: WorkerRequest[float], step: str) -> float:
            nonlocal most
            self.send(request)
            if isinstance(request, Connect):
                busy.append(self.who)
                most = max(most, len(busy))
                time.sleep(0.05)
                busy.remove(self.who)
            return 0.05

        def abandon(self) -> None:
            pass

        close = abandon

    monkeypatch.setattr("compare.worker.pool.Worker", Pretend)
    impls = [
        dataclasses.replace(registry.implementations("vector_add")[0], label=f"torch.{n}") for n in range(9)
    ]
    with WorkerPool(registry.get_op("vector_add"), CPU, 60.0) as pool, ThreadPoolExecutor(9) as threads:
        pool.start(impls)
        list(threads.map(pool.of, impls))
    assert most == CONTEXTS_AT_ONCE
    for impl in impls:
        own = [step.split()[1] for step in steps if step.split()[0] == impl.label]
        assert own == ["Setup", "Connect", "Load", "Choose"]


def test_what_all_host_builds_share_is_built_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The isolated worker of a user's file would build it anew in each run."""
    built: list[str] = []
    monkeypatch.setattr(build, "shared_host_builds", lambda: built.append("all"))
    project = [impl for impl in registry.implementations("vector_add") if impl.route != "pybind"]
    mine = [dataclasses.replace(impl, user_file=tmp_path / "mine.py") for impl in project]
    with WorkerPool(registry.get_op("vector_add"), CPU, 60.0) as pool:
        pool.build(project, ["fp32"])
        pool.build([impl for impl in mine if impl.route != "cupy"], ["fp32"])
        assert built == []
        pool.build(mine, ["fp32"])
    assert built == ["all"]
