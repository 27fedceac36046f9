"""Builds in the background: timed correctly, with the usual errors, ended together with their starter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from compare import cli, registry
from compare.model.op import DTYPES
from compare.registry import ROOT
from cuda_impl import ahead, build, pybind
from cuda_impl.ahead import Building
from processes import running, until

WRITES_ITS_PRODUCT = 'sleep 0.3; for last; do :; done; echo built > "$last"'
FAILS = "echo no such luck; exit 1"
TAKES_FOREVER = 'echo $$ > "$PID_FILE"; exec sleep 120'


Compiler = Callable[[str], None]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> Iterator[Compiler]:
    """An empty cache, and shell commands in place of g++."""
    file = tmp_path / "compiler"
    monkeypatch.setenv("CXX", str(file))

    def is_now(commands: str) -> None:
        file.write_text(f"#!/bin/sh\nPID_FILE='{tmp_path / 'pid'}'\n{commands}\n")
        file.chmod(0o755)
        build.gxx.cache_clear()

    yield is_now
    build.gxx.cache_clear()


def compiler_pid(tmp_path: Path) -> int:
    file = tmp_path / "pid"
    assert until(lambda: file.exists() and file.read_text().strip() != "")
    return int(file.read_text())


def products(tmp_path: Path) -> list[str]:
    """The cache's files and folders but for locks and headers: also what a failed build left behind."""
    files = (tmp_path / "cache").iterdir()
    return sorted(path.name for path in files if path.suffix not in (".lock", ".h"))


def test_the_module_is_there_and_its_seconds_are_told(compiler: Compiler, tmp_path: Path) -> None:
    compiler(WRITES_ITS_PRODUCT)
    assert not build.pybind_is_built("vector_add", "host")
    begin = time.monotonic()
    building = Building("vector_add", "host")
    took = building.wait()
    # The scheduler of host builds, then the module.
    assert 0.6 <= took <= time.monotonic() - begin
    assert building.wait() == took  # to every row that loads it
    building.stop()
    assert build.pybind_is_built("vector_add", "host")
    assert build.pybind_module("vector_add", "host").name in products(tmp_path)


def test_what_another_run_builds_costs_this_one_nothing(compiler: Compiler) -> None:
    compiler(WRITES_ITS_PRODUCT)
    both = [Building("vector_add", "host") for _ in range(2)]
    took = sorted(building.wait() for building in both)
    for building in both:
        building.stop()
    assert took[0] == 0.0 < took[1]


def test_a_failure_has_the_words_of_any_other_build(compiler: Compiler, tmp_path: Path) -> None:
    compiler(FAILS)
    with pytest.raises(build.BuildError) as expected:
        build.pybind_module("vector_add", "host")
    building = Building("vector_add", "host")
    for _ in range(2):  # every row that needs it says so
        with pytest.raises(build.BuildError) as got:
            building.wait()
        # But for the folder that each build has to itself.
        assert re.sub(r"/tmp\w+/", "/", str(got.value)) == re.sub(r"/tmp\w+/", "/", str(expected.value))
    assert "no such luck" in str(got.value)
    building.stop()
    assert products(tmp_path) == []


def test_a_build_that_dies_is_left_to_whoever_loads_the_module(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(WRITES_ITS_PRODUCT)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    building = Building("vector_add", "host")
    assert building.wait() == 0.0
    building.stop()


def test_stopping_ends_the_compiler_and_leaves_nothing(compiler: Compiler, tmp_path: Path) -> None:
    compiler(TAKES_FOREVER)
    building = Building("vector_add", "host")
    pid = compiler_pid(tmp_path)
    building.stop()
    assert not running(pid)
    assert products(tmp_path) == []


def test_a_starter_that_is_killed_takes_the_compiler_along(compiler: Compiler, tmp_path: Path) -> None:
    compiler(TAKES_FOREVER)
    code = "from cuda_impl.ahead import Building; building = Building('vector_add', 'host'); building.wait()"
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    pid = compiler_pid(tmp_path)
    starter.kill()
    starter.wait()
    assert until(lambda: not running(pid), 10)
    assert until(lambda: products(tmp_path) == [], 10)


def test_only_what_is_missing_and_wanted_is_begun(compiler: Compiler) -> None:
    compiler(WRITES_ITS_PRODUCT)
    everything, cpu = registry.implementations("vector_add"), torch.device("cpu")
    assert pybind.building([impl for impl in everything if impl.route != "pybind"], cpu, DTYPES) == {}
    assert pybind.building(everything, torch.device("meta"), DTYPES) == {}
    (building,) = pybind.building(everything, cpu, DTYPES).values()
    building.wait()
    building.stop()
    assert pybind.building(everything, cpu, DTYPES) == {}


def test_without_a_compiler_nothing_is_begun(monkeypatch: pytest.MonkeyPatch, compiler: Compiler) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert pybind.building(registry.implementations("vector_add"), torch.device("cpu"), DTYPES) == {}


@pytest.mark.thorough
def test_ctrl_c_ends_the_build_with_the_run(compiler: Compiler, tmp_path: Path) -> None:
    compiler(TAKES_FOREVER)
    arguments = ["vector_add", "--case", "N=64,fp32", "--device", "cpu", "-v"]
    arguments += ["--only", "pybind.*", "--only", "triton.blocked"]
    run = subprocess.Popen(
        [sys.executable, "-m", "compare", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Jobs in the background start with Ctrl-C ignored, and so may whoever runs this test.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert run.stderr is not None
    pid = compiler_pid(tmp_path)
    for line in run.stderr:  # until the others are checked: in turn, or two at once
        if "checking triton.blocked" in line or "implementations (last " in line:
            break
    os.kill(run.pid, signal.SIGINT)
    printed, said = run.communicate(timeout=60)
    assert run.returncode == cli.INCONCLUSIVE, said
    assert "Traceback" not in said
    assert "INTERRUPTED" in printed
    assert "triton.blocked" in printed
    assert not running(pid)


def test_a_module_that_is_not_built_is_begun_early_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class BuildInPlace:
        def __init__(self, op: str, target: str) -> None:
            events.append(f"{op} for {target}")

        def stop(self) -> None:
            events.append("stop")

    monkeypatch.setattr(ahead, "Building", BuildInPlace)
    for built in (True, False):
        monkeypatch.setattr(build, "pybind_is_built", lambda *_, built=built: built)
        with ahead.begun_early("softmax"):
            events.append("import")
    with ahead.begun_early("matmul"):
        events.append("import")
    begun = ["import", "softmax for host", "import", "stop", "launcher for host", "import", "stop"]
    assert events == begun
