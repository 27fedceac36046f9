"""nvbench's cold times in place of ours: the adapter over a stand-in with the interface of its stubs."""

from __future__ import annotations

import contextlib
import os
import sys
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from compare import cli, registry
from compare.command_line.status import USAGE
from compare.registry import ROOT
from compare.spec import Estimate, Implementation, Ratio, Timing, UsageError, case
from compare.timing import nvbench, stopwatch
from compare.timing.statistics import estimate


class Bench(ModuleType):
    """``cuda.bench``: registers, runs what ``--benchmark`` names, and keeps the samples as seconds."""

    State = object

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__("cuda.bench")
        self.seconds = seconds
        self.registered: list[SimpleNamespace] = []
        self.argv: list[str] = []
        self.results: dict[str, list[SimpleNamespace]] = {}

    def register(self, fn: Callable[[Any], None]) -> SimpleNamespace:
        if self.argv:
            raise RuntimeError("Can not register more benchmarks after benchmark was run")
        made = SimpleNamespace(fn=fn, settings={})
        for setting in ("set_name", "set_min_samples", "set_timeout"):
            setattr(
                made,
                setting,
                lambda value, setting=setting, made=made: made.settings.update({setting: value}),
            )
        self.registered.append(made)
        return made

    def run_all_benchmarks(self, argv: list[str]) -> None:
        if self.argv:
            raise RuntimeError("Benchmarks were already executed")
        self.argv = argv
        for made in self.registered:
            self.results[made.settings["set_name"]] = [self._run(made)]

    def _run(self, made: SimpleNamespace) -> SimpleNamespace:
        skipped: list[str] = []
        launch = SimpleNamespace(get_stream=lambda: SimpleNamespace(addressof=lambda: 7))

        def execute(fn: Callable[[Any], None], *, batched: bool) -> None:
            assert not batched
            for _ in self.seconds:
                fn(launch)

        made.fn(SimpleNamespace(exec=execute, skip=skipped.append, get_stream=launch.get_stream))
        samples = None if skipped else array("f", self.seconds)
        return SimpleNamespace(samples=samples, skip_reason="".join(skipped) or None)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench([10e-6, 11e-6, 12e-6] * 20)
    results = ModuleType("cuda.bench.results")
    results.BenchmarkResult = SimpleNamespace(from_json=lambda path: made.results)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bench", made)
    monkeypatch.setitem(sys.modules, "cuda.bench.results", results)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda address, device: address)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("size", "sets"), [(0, 8), (64, 8), (1 << 15, 8), (1 << 16, 4), (1 << 18, 1), (1 << 20, 1)]
)
def test_inputs_exceed_the_l2_and_are_fresh(size: int, sets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "l2_bytes", lambda device: 1 << 20)
    op = registry.get_op("vector_add")
    found = nvbench.input_sets(op, case(N=size), torch.device("cpu"), seed=0)  # two of 4 bytes an element
    assert len(found) == sets
    tensors = [tensor for tensors in found for tensor in tensors]
    assert all(torch.count_nonzero(tensor) >= 0.99 * size for tensor in tensors)
    if size > 8:
        assert not any(torch.equal(tensors[0], other) for other in tensors[1:])


def test_its_samples_become_an_estimate_in_microseconds(bench: Bench) -> None:
    called: list[int] = []
    found = nvbench.cold_us({"a": [lambda: called.append(0), lambda: called.append(1)]}, GPU)["a"]
    assert isinstance(found, Estimate)
    assert found.median == pytest.approx(11.0)
    assert len(found.samples) == 60
    assert called[:4] == [0, 1, 0, 1]  # the sets of inputs rotate
    assert bench.registered[0].settings["set_min_samples"] == nvbench.MIN_SAMPLES
    assert bench.argv[bench.argv.index("--devices") + 1] == "0"


def test_what_a_call_raises_fails_it_alone(bench: Bench) -> None:
    def raises() -> None:
        raise KeyError("mine")

    found = nvbench.cold_us({"a": [raises], "b": [lambda: None]}, GPU)
    assert isinstance(found["a"], KeyError)
    assert isinstance(found["b"], Estimate)


def test_ctrl_c_ends_all(bench: Bench) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nvbench.cold_us({"a": [interrupted]}, GPU)


def test_what_it_skips_is_an_error(bench: Bench) -> None:
    bench.seconds = []
    assert "no time for it" in str(nvbench.cold_us({"a": [lambda: None]}, GPU)["a"])


@pytest.mark.thorough
def test_every_case_is_timed_in_a_process_that_is_new() -> None:
    # A device that does not exist: the error comes from the other process.
    for _ in range(2):
        with pytest.raises(UsageError, match="cuda:77"):
            nvbench._in_another_process("vector_add", ["torch.eager"], "N=4,fp32", "cuda:77", 0)


def test_a_process_of_its_own_that_dies_costs_no_more_than_its_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timing = Timing(cold_us=estimate([5.0] * 9))
    impl = Implementation("vector_add", "torch.eager", "tiled", torch.add)
    monkeypatch.setattr(nvbench, "_in_another_process", lambda *_: _dies())
    found = nvbench.retimed(
        registry.get_op("vector_add"), [impl], case(N=4), GPU, {"torch.eager": timing}, seed=0
    )
    assert "nvbench's process crashed" in str(found["torch.eager"])


def _dies() -> None:
    with ProcessPoolExecutor(1) as pool:
        pool.submit(os._exit, 1).result()


def test_its_times_take_the_place_of_ours_and_ratios_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = registry.get_op("vector_add")
    told = {"torch.eager": [11.0] * 60, "triton.a": [11.0] * 60, "triton.b": "KeyError: mine"}
    monkeypatch.setattr(nvbench, "_in_another_process", lambda *order: told)
    impls = [Implementation(op.name, label, "tiled", torch.add) for label in told]
    ours = Timing(cold_us=estimate([5.0] * 9), warm_us=estimate([4.0] * 9))
    failed = RuntimeError("it")
    timings = {
        "torch.eager": ours,
        "triton.a": Timing(cold_us=ours.cold_us, ratios=(Ratio("torch.eager", estimate([3.0])),)),
        "triton.b": ours,
        "cupy.a": failed,
    }
    found = nvbench.retimed(op, impls, case(N=4), GPU, timings, seed=0)
    eager, triton = found["torch.eager"], found["triton.a"]
    assert isinstance(eager, Timing)
    assert isinstance(triton, Timing)
    assert eager.cold_us is not None
    assert eager.cold_us.median == pytest.approx(11.0)
    assert eager.warm_us == ours.warm_us
    ((against, value),) = ((ratio.against, ratio.value) for ratio in triton.ratios)
    assert against == "torch.eager"
    assert value.median == pytest.approx(1.0)
    assert any("nvbench" in note for note in triton.notes)
    assert str(found["triton.b"]) == "KeyError: mine"
    assert found["cupy.a"] is failed


def test_where_it_is_not_installed_the_command_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bench", None)
    with pytest.raises(UsageError, match=r"pip install 'cuda-bench\[cu13\]>=0.3'"):
        nvbench.load()
    monkeypatch.setattr("compare.commands.compare.prepare", lambda name, ops=(): SimpleNamespace(type="cuda"))
    for arguments in (["softmax"], ["softmax", "--crossover", "N"]):
        assert cli.main([*arguments, "--timer", "nvbench"]) == USAGE
        printed = capsys.readouterr()
        assert "pip install" in printed.err
        assert len(printed.err.strip().splitlines()) == 1


def test_it_needs_a_gpu_and_no_file_of_the_user(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["softmax", "--device", "cpu", "--timer", "nvbench"]) == USAGE
    assert "needs a GPU" in capsys.readouterr().err


def test_the_extra_asks_for_what_the_message_does() -> None:
    assert nvbench.REQUIREMENT in (ROOT / "requirements-nvbench.txt").read_text().splitlines()
