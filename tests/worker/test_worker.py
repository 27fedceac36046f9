"""Containment: what a worker does to itself costs its own row, and the row says what happened."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest
import torch

import made_up
from compare import registry
from compare import run as running
from compare.capture import meta_inputs
from compare.checking.reference import expected_output
from compare.inputs import tensor
from compare.registry import ROOT
from compare.sandbox import limits
from compare.spec import FILLS, LAYOUTS, Options, Row, UsageError, case
from compare.timing.stopwatch import CudaStopwatch
from compare.worker import user_files
from compare.worker.checking import Checking
from compare.worker.exchange import Exchange
from compare.worker.main import _Bench
from compare.worker.memory import Memory, Place, room
from compare.worker.pool import Crew
from compare.worker.process import Ended, Raised, Worker
from processes import command

CPU = torch.device("cpu")
SMALL = case("fp32", N=16)

BEGINNING = """
import ctypes, gc, os, signal, sys, threading, time
import torch
from compare.registry import implementation


def own(name):
    return implementation("vector_add", f"triton.{name}", rung="tiled")


def added(x, y):
    return torch.from_numpy(x.numpy() + y.numpy())


@own("right")
def right(x, y):
    return added(x, y)
"""

MISHAPS = {
    "segfaults": (
        "ctypes.string_at(8)",
        r"ended by SIGSEGV \(an access to memory that is not its own\) in buil",
    ),
    "aborts": ("os.abort()", "ended by SIGABRT"),
    "leaves": ("os._exit(3)", "ended itself with exit code 3 in building and the first call"),
    "leaves_well": ("os._exit(0)", "ended itself with exit code 0"),
    "exits": ("sys.exit(3)", r"SystemExit: exit\(3\)"),
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        r"SIGKILL \(from outside, most likely as memory ran out",
    ),
    "kills_its_group": ("os.killpg(0, signal.SIGKILL)", "SIGKILL"),
    "hangs": (
        "time.sleep(1000)",
        r"took longer than 3 s, the limit for building and the first call \(--timeout",
    ),
    "spins": ("while True: pass", "took longer than 3 s"),
    "stops": ("os.kill(os.getpid(), signal.SIGSTOP)", "took longer than 3 s"),
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


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """What a test loads is forgotten after it."""
    known = {op: dict(labels) for op, labels in registry._implementations.items()}
    known["vector_add"] = {impl.label: impl for impl in registry.implementations("vector_add")}
    with mock.patch.dict(registry._ops), mock.patch.dict(registry._implementations, known):
        yield


def rows_of(path: Path, text: str, *only: str, timeout_s: float = 60.0) -> dict[str, Row]:
    """What a file of this text comes to, on one small case."""
    path.write_text(BEGINNING + text)
    user_files.load([str(path)], 60.0)
    options = Options(cases=(SMALL,), device="cpu", only=only, timeout_s=timeout_s)
    with mock.patch("compare.resources.static.Compiling", made_up.Compiled):
        comparison = running.run(registry.get_op("vector_add"), options, results=path.parent)
    return {row.label: row for row in comparison.cases[-1].rows}


@pytest.mark.parametrize("width", [1, 8])
def test_a_mishap_is_its_own_row_and_says_what_happened(width: int, tmp_path: Path) -> None:
    """All in one run, so that each is beside all the others; one after the other, and side by side."""
    text = "".join(
        f"\n\n@own({name!r})\ndef {name}(x, y):\n    {code}\n    return added(x, y)\n"
        for name, (code, _) in MISHAPS.items()
    )
    labels = (f"triton.{name}" for name in (*MISHAPS, "right"))
    with mock.patch.object(Checking, "width", return_value=width):
        rows = rows_of(tmp_path / "mishaps.py", text, *labels, timeout_s=3.0)
    assert [*rows] == ["torch.eager", "triton.right", *(f"triton.{name}" for name in MISHAPS)]
    for name, (_, says) in MISHAPS.items():
        row = rows[f"triton.{name}"]
        assert row.status in ("failed", "unavailable"), row
        assert re.search(says, row.reason), (name, row.reason)
        assert "Traceback" not in row.reason
    assert rows["triton.right"].status == "ok", rows["triton.right"].reason
    assert rows["torch.eager"].status == "ok", rows["torch.eager"].reason


def test_one_that_crashes_on_every_case_says_so_of_every_case(tmp_path: Path) -> None:
    file = tmp_path / "crashes.py"
    file.write_text(BEGINNING + '\n\n@own("crashes")\ndef crashes(x, y):\n    os.abort()\n')
    user_files.load([str(file)], 60.0)
    cases = tuple(case("fp32", N=n) for n in (16, 17, 18))
    options = Options(cases=cases, device="cpu", only=("triton.crashes",), resources=False)
    comparison = running.run(registry.get_op("vector_add"), options, results=tmp_path)
    reasons = [row.reason for c in comparison.cases for row in c.rows if row.label == "triton.crashes"]
    assert len(reasons) == 3
    assert all("SIGABRT" in reason for reason in reasons), reasons


def test_a_worker_that_never_started_says_so_at_every_case(tmp_path: Path) -> None:
    options = Options(cases=(SMALL, case("fp32", N=17)), device="cpu", timeout_s=0.001)
    comparison = running.run(registry.get_op("vector_add"), options, results=tmp_path)
    reasons = [row.reason for c in comparison.cases for row in c.rows if row.label == "torch.eager"]
    assert len(reasons) == 2
    assert all("the limit for starting" in reason for reason in reasons), reasons


def test_an_interruption_ends_what_is_under_way(tmp_path: Path) -> None:
    """Side by side: rows that were finished are kept, and nobody waits for the others."""
    file = tmp_path / "slow.py"
    file.write_text(BEGINNING + "\n@own('slow')\ndef slow(x, y):\n    time.sleep(1000)\n")
    user_files.load([str(file)], 60.0)

    def interrupted(what: str, done: float) -> None:
        if "others than triton.right" in what:
            raise KeyboardInterrupt

    options = Options(cases=(SMALL,), device="cpu", only=("triton.right", "triton.slow"))
    begin = time.monotonic()
    with mock.patch.object(Checking, "width", return_value=8):
        comparison = running.run(registry.get_op("vector_add"), options, interrupted, results=tmp_path)
    assert time.monotonic() - begin < 60
    assert comparison.interrupted
    assert "triton.right" in [row.label for row in comparison.cases[0].rows]
    assert "triton.slow" not in [row.label for row in comparison.cases[0].rows]


def test_one_thread_at_a_time_ends_a_worker(worker: Worker) -> None:
    """Who asks it sees that it is gone while who was interrupted ends all; a descriptor is closed once."""
    bury, inside, begun = worker._bury, threading.Lock(), threading.Event()
    alone = []

    def watched() -> None:
        alone.append(inside.acquire(blocking=False))
        begun.set()
        if threading.current_thread() is not closing:
            closing.join(0.5)  # long enough for it to come in as well, if it may
        bury()
        if alone[-1]:
            inside.release()

    def close() -> None:
        assert begun.wait(60)
        worker.close()

    closing = threading.Thread(target=close)
    with mock.patch.object(worker, "_bury", watched):
        closing.start()
        worker.end("it was interrupted")
        closing.join(60)
    assert alone == [True, True]


@pytest.mark.gpu
@pytest.mark.alone
def test_what_is_kept_of_the_gpu_is_told_from_what_is_reserved(tmp_path: Path) -> None:
    """An allocator reserves what it was given back; that is nobody's fault.  What is still in use is."""
    file = tmp_path / "hoards.py"
    file.write_text(
        BEGINNING + "import cupy\n\nkept = []\n\n"
        "@own('hoards')\ndef hoards(x, y):\n"
        "    if not kept: kept.append(cupy.empty(3 << 30, cupy.uint8))\n"
        "    return x + y\n\n"
        "@own('reserves')\ndef reserves(x, y):\n"
        "    cupy.empty(3 << 30, cupy.uint8)\n"
        "    torch.empty(1 << 30, dtype=torch.uint8, device=x.device)\n"
        "    return x + y\n"
    )
    user_files.load([str(file)], 60.0)
    options = Options(cases=(SMALL,), only=("triton.hoards", "triton.reserves"), budget_s=1.0)
    with mock.patch("compare.resources.static.Compiling", made_up.Compiled):
        comparison = running.run(registry.get_op("vector_add"), options, results=tmp_path)
    rows = {row.label: row for row in comparison.cases[-1].rows}
    assert "it keeps 3.2 GB of the GPU's memory" in rows["triton.hoards"].reason
    assert "it keeps" not in rows["triton.reserves"].reason


# --------------------------------------------------------------------------- loading a user's file


def test_a_file_is_not_run_by_the_judge(tmp_path: Path) -> None:
    file = tmp_path / "nosy.py"
    rows = rows_of(
        file, f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} ')\n", "triton.right"
    )
    assert rows["triton.right"].status == "ok"
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2  # one that describes it, one that runs it
    assert str(os.getpid()) not in pids


def test_one_whose_code_cannot_be_counted_is_checked_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "made.py"
    made = "@own('made')\ndef made(x, y): return added(x, y)"
    row = rows_of(file, f"exec({made!r})\n", "triton.made")["triton.made"]
    assert row.status == "ok"
    assert row.reason.startswith(f"code size unread: its function is not found in {file}")
    assert row.source_hash


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os._exit(3)", "exit code 3 in loading it"),
        ("time.sleep(100)", "took longer than 2 s, the limit for loading it"),
        ("1 / 0", "ZeroDivisionError at line 18"),
        ("time.perf_counter_ns = lambda: 0", "replaced time.perf_counter_ns"),
        ("implementation('vector_add', 'torch.eager', rung='vendor')(added)", "has a torch.eager already"),
    ],
)
def test_a_file_that_cannot_be_loaded(code: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BEGINNING + code + "\n")
    with pytest.raises(UsageError, match=re.escape(says)):
        user_files.load([str(file)], 2.0)


def test_a_file_for_an_op_that_there_is_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BEGINNING.replace('"vector_add"', '"vector_ad"'))
    with pytest.raises(UsageError, match=r"triton\.right: no op 'vector_ad': did you mean vector_add"):
        user_files.load([str(file)], 60.0)


# --------------------------------------------------------------------------- a worker by itself


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("test", CPU, 60.0)
    yield worker
    worker.close()


def test_it_is_gone_with_all_it_started(worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "children.py"
    file.write_text(
        BEGINNING + "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
    )
    worker.ask("load", files=[str(file)])
    child = int((tmp_path / "pid").read_text())
    os.kill(child, 0)
    worker.close()
    assert gone(child)
    assert gone(worker.pid)


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_it_does_not_outlive_the_judge(tmp_path: Path) -> None:
    """Not even one that is busy in a loop of its own, when the judge is killed outright."""
    file, pid = tmp_path / "spin.py", tmp_path / "pid"
    file.write_text(
        BEGINNING + f"open({str(pid)!r}, 'w').write(str(os.getpid()))\nctypes.CDLL(None).pause()\n"
    )
    judge = subprocess.Popen(
        [sys.executable, "-m", "compare", "vector_add", "--device", "cpu", "--load", str(file)],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    while not (pid.exists() and pid.read_text()):
        assert judge.poll() is None
        time.sleep(0.05)
    judge.send_signal(signal.SIGKILL)
    judge.wait()
    assert gone(int(pid.read_text()))


def test_its_environment_holds_no_secrets(worker: Worker, tmp_path: Path) -> None:
    assert not limits.kept("GITHUB_TOKEN")
    assert not limits.kept("SSH_AUTH_SOCK")
    assert not limits.kept("AWS_SECRET_ACCESS_KEY")
    assert all(
        limits.kept(name) for name in ("PATH", "HOME", "CUDA_VISIBLE_DEVICES", "LC_ALL", "TRITON_INTERPRET")
    )
    file = tmp_path / "environment.py"
    file.write_text(BEGINNING + f"open({str(tmp_path / 'seen')!r}, 'w').write('\\n'.join(os.environ))\n")
    worker.ask("load", files=[str(file)])
    assert all(limits.kept(name) for name in (tmp_path / "seen").read_text().split())


def test_a_judge_that_is_gone_before_it_has_begun_is_no_error() -> None:
    """As after Ctrl-C: nothing but the judge's own word may be on the screen."""
    from compare.worker import main as inside
    from compare.worker import server

    server.start()
    ours, theirs = multiprocessing.Pipe()
    their_end, lifeline = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=inside.main, args=(theirs, their_end, None))
    process.start()
    for end in (theirs, their_end, lifeline, ours):
        end.close()
    process.join(30)
    assert process.exitcode == 0


def test_it_gains_no_privileges_and_dumps_no_core(worker: Worker) -> None:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    worker.ask("rest")
    assert re.search(r"NoNewPrivs:\s+1", Path(f"/proc/{worker.pid}/status").read_text()), status
    allowed = Path(f"/proc/{worker.pid}/limits").read_text()
    assert re.search(r"Max core file size\s+0\s", allowed)
    assert os.getsid(worker.pid) == worker.pid


def test_an_answer_nobody_asked_for_is_its_end(worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "eager.py"
    file.write_text(
        BEGINNING + "from multiprocessing.connection import Connection\n"
        "frame = sys._getframe()\n"
        "while frame:\n"
        "    for found in list(frame.f_locals.values()):\n"
        "        if type(found) is Connection and found.writable:\n"
        "            found.send_bytes(b'{\"answer\": 1}')\n"
        "    frame = frame.f_back\n"
    )
    with pytest.raises(Ended, match="wrote into the pipe"):
        worker.ask("load", files=[str(file)])
    with pytest.raises(Ended):
        worker.ask("rest")


def test_what_it_raises_comes_across(worker: Worker) -> None:
    with pytest.raises(Raised, match="no_such") as caught:
        worker.ask("begin", device="cpu", environment={}, modules=["no_such"])
    assert caught.value.name == "ModuleNotFoundError"
    assert worker.ask("rest") == {"held_bytes": 0, "kept_bytes": 0}


def interrupted_at(line: int | None, worker: Worker, file: Path, seen: set[int]) -> None:
    """Have it load a file, with Ctrl-C at a line of asking or waiting; those reached are ``seen``."""
    asking = {f.__code__ for f in (Worker.ask, Worker.send, Worker.receive, Worker._wait)}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            seen.add(frame.f_lineno)
            if frame.f_lineno == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace if frame.f_code in asking else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        worker.ask("load", timeout_s=0.3, files=[str(file)])
    finally:
        sys.settrace(before)


def test_wherever_ctrl_c_comes_a_worker_that_is_busy_is_ended(tmp_path: Path) -> None:
    """Nobody waits for it to give back memory."""
    file = tmp_path / "slow.py"
    file.write_text("import time\ntime.sleep(1000)\n")
    lines: set[int] = set()
    with pytest.raises(Ended, match="took longer"):
        interrupted_at(None, worker := Worker("test", CPU, 5.0), file, lines)
    worker.close()
    reached: set[int] = set()
    for line in sorted(lines):
        worker = Worker("test", CPU, 5.0)
        with pytest.raises((KeyboardInterrupt, Ended)):  # a line of giving up comes too late
            interrupted_at(line, worker, file, reached)
        worker.ask_back(())
        if worker.alive:  # it was not asked yet
            worker.receive("giving back nothing")
        worker.close()
    assert reached == lines


def test_it_starts_in_no_time() -> None:
    def seconds() -> float:
        begin = time.perf_counter()
        worker = Worker("test", CPU, 60.0)
        worker.ask("rest")
        took = time.perf_counter() - begin
        worker.close()
        return took

    seconds()  # the server may have to be started first
    assert min(seconds() for _ in range(5)) < 0.25


def test_a_worker_that_is_dismissed_ends_and_the_next_is_another() -> None:
    op = registry.get_op("vector_add")
    (impl, *_) = registry.implementations("vector_add")
    with Crew(op, CPU, 60.0) as crew:
        first = crew.of(impl)
        assert crew.contexts_s[impl.label] >= 0
        with Exchange(op, SMALL, CPU, expected_output(op, SMALL, CPU)) as exchange:
            exchange.hand_to(first)
            crew.dismiss(impl)
        with pytest.raises(Ended):
            first.ask("rest")
        second = crew.of(impl)
        assert second.pid != first.pid
        assert second.ask("rest")["kept_bytes"] == 0


def test_what_keeps_a_worker_from_getting_ready_is_said_every_time(tmp_path: Path) -> None:
    """As of a file that raises only where it is loaded once more."""
    file = tmp_path / "mine.py"
    file.write_text(BEGINNING + "1 / 0\n")
    (impl, *_) = registry.implementations("vector_add")
    impl = dataclasses.replace(impl, label="triton.right", foreign=True, origin=str(file))
    with Crew(registry.get_op("vector_add"), CPU, 60.0) as crew:
        for _ in range(3):
            with pytest.raises(UsageError, match="ZeroDivisionError at line 18"):
                crew.of(impl)


FORKING = """
import os, torch
from compare.worker import server
from compare.worker.process import Worker

os.pipe()  # which the server must not keep
server.start(["vector_add"], from_here=True)
worker = Worker("test", torch.device("cpu"))
worker.ask("rest")
parent = int(open(f"/proc/{worker.pid}/stat").read().rpartition(")")[2].split()[1])
mine, its = (open(f"/proc/{pid}/cmdline").read() for pid in (os.getpid(), parent))
print(parent, len(os.listdir(f"/proc/{parent}/fd")), mine == its)
server.start(["vector_add"], from_here=True)
worker.close()
"""


def test_the_command_forks_the_server_from_itself_and_takes_it_along() -> None:
    words = [sys.executable, "-c", FORKING]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    pid, descriptors, same = done.stdout.split()
    assert same == "True"
    assert int(descriptors) < 12
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_rows_that_need_no_cupy_run_where_it_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("vector_add", "--device", "cpu", "--case", "N=16,fp32", "--only", "torch.eager")
    done = command(*words, CUPY_CACHE_DIR=str(tmp_path / "file" / "cupy"))
    assert (done.returncode, done.stderr) == (0, "")


def test_only_the_command_itself_forks_the_server() -> None:
    assert not running._is_command()
    with mock.patch.dict(sys.modules, {"__main__": mock.Mock(__spec__=mock.Mock())}) as modules:
        modules["__main__"].__spec__.name = "compare.__main__"
        assert running._is_command()


# --------------------------------------------------------------------------- shared memory


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 133), (1, 1), (0, 7), (7, 0)])
def test_a_tensor_keeps_its_layout(layout: str, shape: tuple[int, int]) -> None:
    for dtype in ("fp32", "bf16"):
        made = tensor(shape, case(dtype, layout, M=shape[0], N=shape[1]), torch.Generator(), CPU)
        memory = Memory(room([made, made]), CPU)
        for place in memory.put([made, made]):
            found = memory.tensor(Place.from_json(place.as_json()))
            assert torch.equal(found, made)
            assert (found.shape, found.stride()) == (made.shape, made.stride())
            assert found.storage_offset() == made.storage_offset()
            assert found.untyped_storage().nbytes() == made.untyped_storage().nbytes()
            if made.numel():
                assert found.data_ptr() % 64 == made.data_ptr() % 64
        memory.close()


@pytest.mark.gpu
@pytest.mark.alone
def test_a_captured_call_holds_one_output() -> None:
    """Workers share the GPU's memory: what its graph does not need one leaves to the others."""
    gpu = torch.device("cuda", torch.cuda.current_device())
    x = torch.zeros(1 << 28, dtype=torch.uint8, device=gpu)
    (eager,) = registry.implementations("vector_add", ["torch.eager"])
    impl = dataclasses.replace(eager, run=lambda x: x + 1)
    bench = _Bench(impl, [(x,)], (), x.to("meta"), torch.empty_like(x), CudaStopwatch(gpu), False)
    gc.enable()  # in a worker it is of no more use
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(gpu)
    bench.first()
    bench.capture(0)
    assert x.numel() <= torch.cuda.memory_reserved(gpu) - before < 1.5 * x.numel()
    assert bench.warm("graph", 0, 1)["problem"] is None


def test_every_op_and_layout_reaches_a_worker_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "layouts.py"
    seen = tmp_path / "seen"
    file.write_text(
        BEGINNING + "@own('looks')\ndef looks(x, y):\n"
        "    layout = x.shape, x.stride(), x.storage_offset(), x.data_ptr() % 64\n"
        f"    print(*layout, file=open({str(seen)!r}, 'a'))\n"
        "    return added(x, y)\n"
    )
    user_files.load([str(file)], 60.0)
    op = registry.get_op("vector_add")
    cases = tuple(
        case("fp32", layout, fill, N=33)
        for layout in LAYOUTS
        if layout not in ("padded", "transposed")
        for fill in FILLS[:1]
    )
    options = Options(cases=cases, device="cpu", only=("triton.looks",))
    with mock.patch("compare.resources.static.Compiling", made_up.Compiled):
        comparison = running.run(op, options, results=tmp_path)
    assert {row.status for c in comparison.cases for row in c.rows} == {"ok"}
    lines = set(seen.read_text().splitlines())
    for c in cases:
        (x, _) = op.make_inputs(c, torch.Generator(), CPU)
        assert f"{x.shape} {x.stride()} {x.storage_offset()} {x.data_ptr() % 64}" in lines
        assert meta_inputs(op, c)[0].stride() == x.stride()
