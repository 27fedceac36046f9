"""The workers of a run."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compare import registry
from compare.checking.reference import expected_outputs
from compare.spec import UsageError
from compare.worker.exchange import Exchange
from compare.worker.pool import CONTEXTS_AT_ONCE, Crew
from compare.worker.process import Ended
from cuda_impl import build
from loaded_files import CPU, SMALL, written


def test_a_worker_that_is_dismissed_ends_and_the_next_is_another() -> None:
    op = registry.get_op("vector_add")
    (impl, *_) = registry.implementations("vector_add")
    with Crew(op, CPU, 60.0) as crew:
        first = crew.of(impl)
        assert crew.contexts_s[impl.label] >= 0
        with Exchange(op, SMALL, CPU, expected_outputs(op, SMALL, CPU)) as exchange:
            exchange.hand_to(first)
            crew.dismiss(impl)
        with pytest.raises(Ended):
            first.ask("rest")
        second = crew.of(impl)
        assert second.pid != first.pid
        assert second.ask("rest")["kept_bytes"] == 0


def test_what_keeps_a_worker_from_getting_ready_is_said_every_time(tmp_path: Path) -> None:
    """As of a file that raises when it is loaded again."""
    file = written(tmp_path / "mine.py", "1 / 0\n")
    (impl, *_) = registry.implementations("vector_add")
    impl = dataclasses.replace(impl, label="triton.right", foreign=True, origin=file)
    with Crew(registry.get_op("vector_add"), CPU, 60.0) as crew:
        for _ in range(3):
            with pytest.raises(UsageError, match="ZeroDivisionError at line 18"):
                crew.of(impl)


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

        def send(self, what: str, **_: object) -> None:
            steps.append(f"{self.who} {what}")

        def receive(self, step: str) -> None:
            pass

        def ask(self, what: str, step: str, **_: object) -> float:
            nonlocal most
            steps.append(f"{self.who} {what}")
            if what == "connect":
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
    with Crew(registry.get_op("vector_add"), CPU, 60.0) as crew, ThreadPoolExecutor(9) as pool:
        crew.start(impls)
        list(pool.map(crew.of, impls))
    assert most == CONTEXTS_AT_ONCE
    for impl in impls:
        own = [step.split()[1] for step in steps if step.split()[0] == impl.label]
        assert own == ["begin", "connect", "load", "choose"]


def test_what_all_host_builds_share_is_built_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The isolated worker of a user's file would build it anew in each run."""
    built: list[str] = []
    for name in ("host_runtime", "host_header"):
        monkeypatch.setattr(build, name, lambda name=name: built.append(name))
    project = [impl for impl in registry.implementations("vector_add") if impl.route != "pybind"]
    mine = [dataclasses.replace(impl, foreign=True, origin=str(tmp_path / "mine.py")) for impl in project]
    with Crew(registry.get_op("vector_add"), CPU, 60.0) as crew:
        crew.build(project, ["fp32"])
        crew.build([impl for impl in mine if impl.route != "cupy"], ["fp32"])
        assert built == []
        crew.build(mine, ["fp32"])
    assert built == ["host_runtime", "host_header"]
