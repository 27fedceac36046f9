"""Resources without a GPU: compiled by other processes, which may die, and kept."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from compare import registry
from compare.resources import static
from compare.resources.static import CompileError, Compiling, Request, from_cubin, from_cubins
from compare.spec import Implementation, Op, case
from processes import called_with

ADD = registry.get_op("vector_add")
SMALL = case("fp32", N=4096)


def on(label: str, op: Op = ADD) -> Implementation:
    return next(impl for impl in registry.implementations(op.name) if impl.label == label)


@pytest.mark.thorough
def test_both_ways_for_several_architectures_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # as in a run without a GPU
    labels = ("torch.eager", "triton.blocked", "cupy.scalar", "cupy.vectorized")
    requests = [Request(ADD, on(label), SMALL, arch) for label in labels for arch in ("sm_75", "sm_90")]
    told: list[tuple[int, int]] = []
    results = from_cubins(requests, lambda done, total: told.append((done, total)))
    assert told == [(i + 1, 6) for i in range(6)], "PyTorch's kernels are not compiled"
    for request, result in zip(requests, results, strict=True):
        assert isinstance(result, tuple), result
        if request.impl.way == "torch":
            assert result == ()
            continue
        (kernel,) = result
        assert kernel.kernel.startswith(f"vector_add_{request.impl.variant}_kernel")
        assert (kernel.arch, kernel.reader, kernel.launches) == (request.arch, "cubin", 1)
        assert 0 < kernel.registers <= 255
        assert kernel.static_shared_bytes == kernel.dynamic_shared_bytes == 0
        assert kernel.reserved_shared_bytes == (0 if request.arch == "sm_75" else 1024)
        assert kernel.spilled_bytes == kernel.local_bytes == 0
        assert kernel.code_bytes
        assert kernel.grid is not None
        assert kernel.block is not None
        assert kernel.grid[0] * kernel.block[0] >= SMALL["N"] / 16
        assert kernel.occupancy is not None
        assert 0 < kernel.occupancy <= 1
        assert kernel.limiter

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert from_cubins(requests) == results


def test_an_architecture_that_is_not_served_is_refused() -> None:
    impl = on("cupy.scalar")
    with pytest.raises(NotImplementedError, match="needs sm_90, this is sm_80"):
        from_cubin(ADD, replace(impl, requires="sm_90"), SMALL, "sm_80")
    with pytest.raises(NotImplementedError, match="needs sm_90a, this is sm_100"):
        from_cubin(ADD, replace(impl, requires="sm_90a"), SMALL, "sm_100")
    with pytest.raises(ValueError, match="sm_99"):
        from_cubin(ADD, impl, SMALL, "sm_99")


def test_a_compiling_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static.sys, "executable", "/bin/false")
    with pytest.raises(CompileError, match="exit code 1"):
        from_cubin(ADD, on("cupy.scalar"), case("bf16", N=123), "sm_80")


ENDLESS_FILE = """
import os

from compare.registry import implementation


@implementation("vector_add", "triton.endless", level="tiled")
def endless(x, y):
    while True:
        pass


@implementation("vector_add", "triton.aborting", level="tiled")
def aborting(x, y):
    os.abort()


@implementation("vector_add", "triton.picky", level="tiled")
def picky(x, y):
    raise NotImplementedError("more than it takes")
"""


@pytest.mark.thorough
def test_who_takes_too_long_or_dies_costs_the_others_nothing(
    load: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(ENDLESS_FILE)
    labels, archs = ("triton.endless", "triton.aborting", "triton.picky"), ("sm_80", "sm_90")
    requests = [Request(ADD, on(label), SMALL, arch) for label in labels for arch in archs]
    limited, lines = static._keys(requests[:2]), static._Compiler._lines

    def read(compiler: static._Compiler) -> Iterator[bytes]:
        for line in lines(compiler):
            yield line
            if json.loads(line).get("of") not in limited:  # a busy machine may need longer for the others
                compiler._limit_s = 60.0

    monkeypatch.setattr(static._Compiler, "_lines", read)
    endless, endless_too, aborting, aborting_too, *picky = from_cubins(requests, timeout_s=0.3)
    for each in (endless, endless_too):  # once for all architectures: what it launches is found out before
        assert isinstance(each, CompileError)
        said = "finding out what it launches for sm_80 took longer than 0.3 s, the limit (--timeout)"
        assert str(each) == said
    for each in (aborting, aborting_too):
        assert isinstance(each, CompileError)
        assert str(each).startswith(
            "finding out what it launches for sm_80: its process was killed by SIGABRT"
        )
    assert [str(each) for each in picky] == ["more than it takes"] * 2


FLOODING_FILE = """
import os, time
from compare.registry import implementation


@implementation("vector_add", "triton.flooding", level="tiled")
def flooding(x, y):
    while True:
        os.write(1, b'{"step": "compiling it", "of": null}\\n')
        time.sleep(0.1)
"""


@pytest.mark.thorough
def test_who_tells_of_steps_without_end_is_ended(load: Callable[..., None]) -> None:
    """Each step has the whole time limit."""
    load(FLOODING_FILE)
    (found,) = from_cubins([Request(ADD, on("triton.flooding"), SMALL, "sm_80")])
    assert "it wrote into the pipe between its process and the judge's" in str(found)


@pytest.mark.thorough
def test_what_compiles_in_the_background_is_kept_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))
    request = Request(ADD, on("cupy.scalar"), SMALL, "sm_80")
    (key,) = static._keys([request])
    compiling = Compiling([request])
    end = time.monotonic() + 120
    while static._kept(key) is None and time.monotonic() < end:
        time.sleep(0.05)
    compiling.stop()
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing is left to compile
    assert Compiling([request]).results() == [static._kept(key)]


def test_a_compilation_that_is_stopped_ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))
    compiling = Compiling([Request(ADD, on("cupy.scalar"), SMALL, "sm_80")])
    (compiler,) = compiling._compilers
    process, scratch = compiler._process, compiler._scratch
    assert process.poll() is None
    begin = time.monotonic()
    compiling.stop()
    assert time.monotonic() - begin < 5
    assert process.poll() is not None
    assert not scratch.exists()


STARTER = """
import sys
from compare import registry
from compare.resources.static import Request, from_cubins

registry.load(sys.argv[1])
op = registry.get_op("vector_add")
from_cubins([Request(op, registry.implementations(op.name, ["triton.busy"])[0], op.cases.default, "sm_80")])
"""


BUSY_FILE = """
import os, subprocess, sys
from compare.registry import implementation

@implementation("vector_add", "triton.busy", level="tiled")
def busy(x, y):
    subprocess.run([sys.executable, "-c", "import signal; signal.pause()", "TOKEN"])
"""
"""In place of a ptxas that takes its time: a program that never ends."""


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_compilers_do_not_outlive_who_started_them(how: signal.Signals, tmp_path: Path) -> None:
    file, token = tmp_path / "mine.py", secrets.token_hex()
    file.write_text(BUSY_FILE.replace("TOKEN", token))
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(file)], cwd=registry.ROOT)
    compiler = os.pidfd_open(called_with(token))
    try:
        starter.send_signal(how)
        assert starter.wait() == -how
        assert select.select([compiler], [], [], 10)[0], "it is still there"
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(compiler, signal.SIGKILL)
        os.close(compiler)


def test_a_result_is_kept_by_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(ADD, on("cupy.scalar"), SMALL, "sm_80")
    assert static._key(request, "a") != static._key(request, "b")
    assert static._key(request, "a") != static._key(replace(request, arch="sm_90"), "a")
    assert static._key(request, "a") != static._key(replace(request, case=case("fp32", N=4097)), "a")
    before = static._key(request, "a")
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert static._key(request, "a") == before
    monkeypatch.setenv("TRITON_PTXAS_PATH", "another")
    assert static._key(request, "a") != before
