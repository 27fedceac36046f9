"""A worker's crash, hang or flood fails its own row only, and the row says what happened."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from compare import registry, run
from compare.capture import meta_inputs
from compare.model.op import FILLS, LAYOUTS, case
from compare.model.result import Options
from compare.worker.checking import Checking
from compare.worker.messages import Answer, CheckCall, WorkerRequest
from compare.worker.process import Worker
from loaded_files import CPU, SMALL, compared, decorator, implemented, reasons_of, rows_of

pytestmark = pytest.mark.usefixtures("own_registry")

LIMIT_S = 0.3
FIRST_CALL = "building and the first call"
ENDLESS = ("triton.hangs", "triton.spins", "triton.stops")
MISHAPS = {
    "segfaults": (
        "ctypes.string_at(8)",
        r"killed by SIGSEGV \(segmentation fault: access to memory outside its own\) in buil",
    ),
    "aborts": ("os.abort()", "killed by SIGABRT"),
    "leaves": ("os._exit(3)", "exited with exit code 3 in building and the first call"),
    "leaves_well": ("os._exit(0)", "exited with exit code 0"),
    "exits": ("sys.exit(3)", r"SystemExit: exit\(3\)"),
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        r"SIGKILL \(from outside; likely out of host memory",
    ),
    "kills_its_group": ("os.killpg(0, signal.SIGKILL)", "SIGKILL"),
    "hangs": (
        "time.sleep(1000)",
        rf"took longer than {LIMIT_S} s, the limit for {FIRST_CALL} \(--timeout",
    ),
    "spins": ("while True: pass", f"took longer than {LIMIT_S} s"),
    "stops": ("os.kill(os.getpid(), signal.SIGSTOP)", f"took longer than {LIMIT_S} s"),
    "prints": (
        "while True: print('spam and eggs')",
        r"printed more than 1 MB in .*; the last it printed: .*spam",
    ),
    "last_words": ("print('so long'); os._exit(4)", "exit code 4 .*; the last it printed: so long"),
    "hungry": ("bytearray(40 << 30)", "out of memory"),
    "hungry_tensor": ("torch.empty(40 << 30, dtype=torch.uint8)", "out of memory|can't allocate memory"),
    "recurses": ("recurses(x, y)", "RecursionError"),
    "raises_oddly": ("raise type('Odd', (BaseException,), {'__str__': lambda s: 1 / 0})", "Odd"),
    "forks": ("os.fork()", "it forked its process"),
    "talks": (
        "for n in range(3, 99):\n        try: os.write(n, b'\\0\\0\\0\\2{}')\n        except OSError: pass",
        "wrote into the pipe",
    ),
    "reads_stdin": ("input()", "EOFError"),
}


@pytest.fixture
def _limited_where_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's time limit is that of endless first calls only: a busy machine may need longer to start."""
    wait = Worker._wait

    def waiting(worker: Worker, step: str, request: WorkerRequest[Any]) -> Answer:
        endless = worker.who in ENDLESS and step == FIRST_CALL
        with mock.patch.object(worker, "timeout_s", worker.timeout_s if endless else 60.0):
            return wait(worker, step, request)

    monkeypatch.setattr(Worker, "_wait", waiting)


@pytest.mark.usefixtures("_limited_where_endless")
@pytest.mark.parametrize("width", [8, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_mishap_is_its_own_row_and_says_what_happened(width: int, tmp_path: Path) -> None:
    """All in one run, so that each is beside all others; one at a time, and in parallel."""
    text = "".join(implemented(name, code) for name, (code, _) in MISHAPS.items())
    labels = (f"triton.{name}" for name in (*MISHAPS, "right"))
    with mock.patch.object(Checking, "width", return_value=width):
        rows = rows_of(compared(tmp_path / "mishaps.py", text, *labels, timeout_s=LIMIT_S))
    assert [*rows] == ["torch.eager", "triton.right", *(f"triton.{name}" for name in MISHAPS)]
    for name, (_, says) in MISHAPS.items():
        row = rows[f"triton.{name}"]
        assert row.status in ("failed", "unavailable"), row
        assert re.search(says, row.reason), (name, row.reason)
        assert "Traceback" not in row.reason
    assert rows["triton.right"].status == "ok", rows["triton.right"].reason
    assert rows["torch.eager"].status == "ok", rows["torch.eager"].reason


def test_one_that_crashes_on_every_case_says_so_of_every_case(tmp_path: Path) -> None:
    cases = tuple(case("fp32", N=n) for n in (16, 17, 18))
    text = implemented("crashes", "os.abort()")
    comparison = compared(tmp_path / "crashes.py", text, "triton.crashes", cases=cases, resources=False)
    reasons = reasons_of(comparison, "triton.crashes")
    assert len(reasons) == 3
    assert all("SIGABRT" in reason for reason in reasons), reasons


@contextmanager
def killed(who: str, times: int) -> Iterator[list[int]]:
    """A worker is killed from outside right before its next checked calls; yields the process numbers."""
    ask, pids = Worker.ask, list[int]()

    def asked(worker: Worker, request: WorkerRequest[Any], step: str = "") -> Any:
        if worker.who == who and isinstance(request, CheckCall) and len(pids) < times:
            pids.append(worker.pid)
            os.killpg(worker.pid, signal.SIGKILL)
        return ask(worker, request, step)

    with mock.patch.object(Worker, "ask", asked):
        yield pids


@pytest.mark.parametrize(("times", "status"), [(1, "ok"), (99, "failed")])
def test_one_that_is_killed_is_tried_once_more(times: int, status: str, tmp_path: Path) -> None:
    cases, only = (SMALL, case("fp32", N=17)), ("triton.right",)
    with killed("triton.right", times) as pids:
        comparison = compared(tmp_path / "mine.py", "", *only, cases=cases, resources=False)
    rows = [row for each in comparison.cases for row in each.rows if row.label == "triton.right"]
    assert [row.status for row in rows] == [status, status], rows
    assert all("killed by SIGKILL" in row.reason for row in rows if row.status == "failed")
    assert len(set(pids)) == min(times, 3)  # the second time counts as its own doing


def test_the_limits_are_those_of_the_baseline_also_if_that_is_killed_once(tmp_path: Path) -> None:
    with killed("torch.eager", 1) as pids:
        rows = rows_of(compared(tmp_path / "mine.py", "", "triton.right", resources=False))
    assert pids
    assert {row.status for row in rows.values()} == {"ok"}, rows


class Stopped(Worker):
    """A worker that is stopped before it has any request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        os.kill(self.pid, signal.SIGSTOP)


def test_a_worker_that_never_started_says_so_at_every_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("compare.worker.pool.Worker", Stopped)
    cases, only = (SMALL, case("fp32", N=17)), ("torch.eager",)
    options = Options(cases, only=only, device="cpu", timeout_s=0.2, resources=False, hard_inputs=False)
    reasons = reasons_of(run.run(registry.get_op("vector_add"), options, results=tmp_path), "torch.eager")
    assert len(reasons) == 2
    assert all("the limit for starting" in reason for reason in reasons), reasons


def test_an_interruption_ends_what_is_under_way(tmp_path: Path) -> None:
    """In parallel: finished rows are kept, and the others are not waited for."""

    def interrupted(what: str, done: float) -> None:
        if "last triton.right" in what:
            raise KeyboardInterrupt

    text, only = implemented("slow", "time.sleep(1000)"), ("triton.right", "triton.slow")
    begin = time.monotonic()
    with mock.patch.object(Checking, "width", return_value=8):
        comparison = compared(tmp_path / "slow.py", text, *only, progress=interrupted)
    assert time.monotonic() - begin < 60
    assert comparison.interrupted
    labels = [row.label for row in comparison.cases[0].rows]
    assert "triton.right" in labels
    assert "triton.slow" not in labels


@pytest.mark.gpu
@pytest.mark.alone
def test_what_is_kept_of_the_gpu_is_told_from_what_is_reserved(tmp_path: Path) -> None:
    """Freed memory that an allocator keeps reserved is allowed; memory still in use is not."""
    text = (
        "import cupy\n\nkept = []\n\n"
        f"{decorator('hoards')}\ndef hoards(x, y):\n"
        "    if not kept: kept.append(cupy.empty(3 << 30, cupy.uint8))\n"
        "    return x + y\n\n"
        f"{decorator('reserves')}\ndef reserves(x, y):\n"
        "    cupy.empty(3 << 30, cupy.uint8)\n"
        "    torch.empty(1 << 30, dtype=torch.uint8, device=x.device)\n"
        "    return x + y\n"
    )
    only = ("triton.hoards", "triton.reserves")
    rows = rows_of(compared(tmp_path / "hoards.py", text, *only, device=Options.device, budget_s=1.0))
    assert "it keeps 3.2 GB of the GPU's memory" in rows["triton.hoards"].reason
    assert "it keeps" not in rows["triton.reserves"].reason


def test_every_layout_reaches_a_worker_as_it_is(tmp_path: Path) -> None:
    layouts = [layout for layout in LAYOUTS if layout not in ("padded", "transposed")]
    cases = tuple(case("fp32", layout, FILLS[0], N=33) for layout in layouts)
    op, expected = registry.get_op("vector_add"), []
    for c in cases:
        (x, _) = op.make_inputs(c, torch.Generator(), CPU)
        assert meta_inputs(op, c)[0].stride() == x.stride()
        expected.append((tuple(x.shape), x.stride(), x.storage_offset(), x.data_ptr() % 64))
    look = (
        "layout = tuple(x.shape), x.stride(), x.storage_offset(), x.data_ptr() % 64\n"
        f"    assert layout in {expected}, layout"
    )
    comparison = compared(tmp_path / "layouts.py", implemented("looks", look), "triton.looks", cases=cases)
    assert {row.status for c in comparison.cases for row in c.rows} == {"ok"}
    assert len({*expected}) > 2
