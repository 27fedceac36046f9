"""A comparison in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import made_up
from compare.labs import running
from compare.labs.running import Allowance, HandedIn, Run, Stop, run
from compare.model.result import Row
from compare.registry import ROOT
from compare.worker.server import Forked

CASE = "M=3,N=129,fp32"


@pytest.mark.thorough
def test_a_row_comes_back() -> None:
    done = run("softmax", [CASE], ["triton.onepass"], "cpu", 60.0)
    row = done.row(CASE, "*.onepass")
    assert row is not None, done.error
    assert (row.label, row.status) == ("triton.onepass", "ok")


RACY = '''
import numpy as np, torch
from compare.registry import implementation
from cuda_impl.loader import kernel

SOURCE = r"""
extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
    __shared__ float s[64];
    int i = threadIdx.x;
    if (i < n) s[i] = x[i];
    %s
    if (0 < i && i <= n) z[i - 1] = s[i - 1] + y[i - 1];  // right where threads run one after another
}
"""

@implementation("vector_add", "cupy.mine", level="naive")
def mine(x, y):
    z = torch.empty_like(x)
    pointers = x.data_ptr(), y.data_ptr(), z.data_ptr()
    kernel(SOURCE, "add", x.device)((1,), (64,), (*pointers, np.int32(x.numel())))
    return z
'''


@pytest.mark.thorough
@pytest.mark.parametrize(("barrier", "status"), [("__syncthreads();", "ok"), ("", "disagrees")])
def test_a_missing_barrier_is_wrong_on_the_labs_own_cases(
    barrier: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("class", "alice", "mine.py")  # as `grade class` names it
    file.parent.mkdir(parents=True)
    file.write_text(RACY % barrier)
    done = run("vector_add", ["N=50,fp32"], ["cupy.mine"], "cpu", 60.0, HandedIn(file, Path("class")))
    row = done.row("N=50,fp32", "cupy.mine")
    assert row is not None, done.error
    assert row.status == status, row.reason
    assert ("thread orders: N=50,fp32: add: " in row.reason) == (not barrier)


@pytest.mark.parametrize("how", ["Ctrl-C", "a stop", "the limit"])
def test_after_an_interrupt_or_the_limit_no_process_is_left(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Forked] = []
    stop, wait = Stop(), Forked.wait

    def waiting(process: Forked, seconds: float) -> int | None:
        if not started:
            started.append(process)
            stop.is_set = how == "a stop"
            if how == "Ctrl-C":
                raise KeyboardInterrupt
        return wait(process, seconds)

    monkeypatch.setattr(Forked, "wait", waiting)
    seconds = 0.1 if how == "the limit" else 60.0
    with suppress(KeyboardInterrupt):
        assert running._command(["softmax", "--case", CASE], tmp_path / "stderr", seconds, stop) is None
    assert started[0].wait(0.0) in (-15, -9, 3), (tmp_path / "stderr").read_text()


def test_a_stop_while_a_comparison_starts_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it imports then: it is no error of the tool."""
    started: list[Forked] = []
    stop, wait = Stop(), Forked.wait

    def waiting(process: Forked, seconds: float) -> int | None:
        if process not in started:
            assert process.pid
            time.sleep(0.0015 * len(started))
            started.append(process)
            stop.is_set = True
            return None
        return wait(process, seconds)

    monkeypatch.setattr(Forked, "wait", waiting)
    for _ in range(20):
        running._command(["softmax", "--case", CASE], tmp_path / "stderr", 60.0, stop)
    # -9: on a busy machine it was slower than the grace.
    assert {process.wait(0.0) for process in started} <= {-15, -9, 3}, (tmp_path / "stderr").read_text()


def test_once_stopped_or_used_up_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_command", lambda *_: pytest.fail("it ran"))
    used_up = Allowance(0.0)
    used_up.start()
    for allowance, says in ((Allowance(stop=Stop(True)), "interrupted"), (used_up, "took longer than 0 s")):
        done = run("softmax", [CASE], [], "cpu", 60.0, allowance=allowance)
        assert (done.comparison, done.refused) == (None, True)
        assert says in done.error


def test_a_file_that_hung_is_not_run_again(tmp_path: Path) -> None:
    """Neither for another task of its; a new allowance begins anew."""
    file, allowance = HandedIn(tmp_path / "mine.py"), Allowance()
    mine = Row("triton.mine", "naive", "ok")
    late = replace(mine, status="failed", reason="it took longer than 20 s, the limit for loading its file")
    for rows, hung in (((late, mine), False), ((late, late), True)):
        cases = (made_up.case(CASE, (replace(mine, label="torch.eager"), row)) for row in rows)
        done = Run(made_up.comparison(*cases))
        assert bool(running._hung(done, ["triton.mine"])) == hung
    allowance.hung[file.file] = running._hung(done, ["*.mine"])
    again = run("softmax", [CASE], ["triton.mine"], "cpu", 60.0, file, allowance)
    assert again.refused
    assert "not run again: it took longer than 20 s" in again.error
    allowance.start()
    assert not allowance.hung


def test_a_name_that_cannot_be_printed_is_a_sentence(tmp_path: Path) -> None:
    file = HandedIn(tmp_path / "al\u202eice" / "mine.py")
    done = run("softmax", [CASE], ["triton.mine"], "cpu", 60.0, file)
    assert done.refused
    assert "cannot be printed: rename it" in done.error


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


def test_marking_and_its_pages_leave_triton_to_the_device() -> None:
    """Whether Triton interprets kernels is decided when it is imported: after a command knows its device."""
    modules = "compare.commands.grade, compare.commands.lab, compare.labs.marking, compare.labs.classroom"
    code = f"import sys, {modules}, compare.labs.regrade, compare.report.labs; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
