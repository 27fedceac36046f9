"""A comparison in a process of its own."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from compare.labs import running
from compare.labs.running import HandedIn, run

CASE = "M=3,N=129,fp32"


@pytest.mark.thorough
def test_a_row_comes_back() -> None:
    done = run("softmax", [CASE], ["triton.onepass"], "cpu", 60.0)
    row = done.row(CASE, "*.onepass")
    assert row is not None, done.error
    assert (row.label, row.status) == ("triton.onepass", "ok")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), subprocess.TimeoutExpired("compare", 1.0)])
def test_after_an_interrupt_or_the_limit_no_process_is_left(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Process(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self)
                raise error
            return super().wait(timeout)

    monkeypatch.setattr(running.subprocess, "Popen", Process)
    with suppress(KeyboardInterrupt):
        assert running._command(["softmax", "--case", CASE], tmp_path / "stderr", 1.0) is None
    assert started[0].returncode in (-15, -9, 3)


@pytest.mark.thorough
def test_a_mistake_in_the_command_is_told() -> None:
    done = run("softmax", [CASE], ["triton.onepas"], "cpu", 60.0)
    assert "did you mean triton.onepass" in done.error
    assert not done.refused


ADDS = """
import sys
import torch
import triton
import triton.language as tl
from compare.registry import implementation

@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, N, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    tl.store(z_ptr + n, tl.load(x_ptr + n, mask=inside) + tl.load(y_ptr + n, mask=inside), mask=inside)

@implementation("vector_add", "triton.mine", level="tiled")
def mine(x, y):
    z = torch.empty_like(x)
    add_kernel[(triton.cdiv(len(x), 4096),)](x, y, z, len(x), BLOCK=4096, num_warps=1)
    return z
"""
LIE = """
import dataclasses
compiler = sys.modules.get("compare.resources.compiler")
if compiler:
    honest = compiler.described
    compiler.described = lambda *words: dataclasses.replace(honest(*words), registers=1)
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_file_cannot_say_what_its_kernels_take(tmp_path: Path) -> None:
    registers = []
    for name, text in (("honest", ADDS), ("lies", ADDS + LIE)):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        done = run("vector_add", ["N=8192,fp32"], ["triton.mine"], "cpu", 60.0, HandedIn(file))
        row = done.row("N=8192,fp32", "triton.mine")
        assert row is not None, done.error
        assert row.status == "ok", row.reason
        registers.append([kernel.registers for kernel in row.resources])
    assert registers[0] == registers[1] != [1]
