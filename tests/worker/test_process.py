"""A worker process by itself: how it starts, answers and ends."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from compare.sandbox.environment import kept
from compare.worker.messages import Error, Held, Load, Rest, Setup
from compare.worker.process import Ended, Raised, Worker
from loaded_files import CPU, written
from processes import called_with, running, started, stat, until


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("test", CPU, 60.0)
    yield worker
    worker.close()


def test_it_is_gone_with_all_it_started(worker: Worker, tmp_path: Path) -> None:
    text = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
    )
    worker.ask(Load((written(tmp_path / "children.py", text),)))
    child = int((tmp_path / "pid").read_text())
    os.kill(child, 0)
    worker.close()
    assert until(lambda: not running(child))
    assert until(lambda: not running(worker.pid))


def test_its_environment_holds_no_secrets(worker: Worker, tmp_path: Path) -> None:
    assert not kept("GITHUB_TOKEN")
    assert not kept("SSH_AUTH_SOCK")
    assert not kept("AWS_SECRET_ACCESS_KEY")
    assert not kept("NVIDIA_API_KEY")
    assert all(kept(name) for name in ("PATH", "HOME", "CUDA_VISIBLE_DEVICES", "LC_ALL", "TRITON_INTERPRET"))
    text = f"open({str(tmp_path / 'seen')!r}, 'w').write('\\n'.join(os.environ))\n"
    worker.ask(Load((written(tmp_path / "environment.py", text),)))
    assert all(kept(name) for name in (tmp_path / "seen").read_text().split())


def test_it_gains_no_privileges_and_dumps_no_core(worker: Worker) -> None:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    worker.ask(Rest())
    assert re.search(r"NoNewPrivs:\s+1", Path(f"/proc/{worker.pid}/status").read_text()), status
    allowed = Path(f"/proc/{worker.pid}/limits").read_text()
    assert re.search(r"Max core file size\s+0\s", allowed)
    assert os.getsid(worker.pid) == worker.pid


def test_an_answer_without_a_request_ends_it(worker: Worker, tmp_path: Path) -> None:
    text = (
        "frame = sys._getframe()\n"
        "while frame:\n"
        "    if 'channel' in frame.f_locals:\n"
        "        frame.f_locals['channel'].send(b'{\"value\": 1}')\n"
        "    frame = frame.f_back\n"
    )
    with pytest.raises(Ended, match="wrote into the pipe"):
        worker.ask(Load((written(tmp_path / "eager.py", text),)))
    with pytest.raises(Ended):
        worker.ask(Rest())


def test_what_it_raises_comes_across(worker: Worker) -> None:
    with pytest.raises(Raised, match="no_such") as caught:
        worker.ask(Setup("cpu", {}, ("no_such",)))
    assert caught.value.name == "ModuleNotFoundError"
    assert worker.ask(Rest()) == Held(0, 0)


def interrupted_at(line: int | None, worker: Worker, file: Path, seen: set[int]) -> None:
    """Load a file, with Ctrl-C at a line of sending or waiting; adds the lines reached to ``seen``."""
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
        worker.ask(Load((str(file),)))
    finally:
        sys.settrace(before)


def test_wherever_ctrl_c_comes_a_worker_that_is_busy_is_ended(tmp_path: Path) -> None:
    """It is not asked to give its memory back."""

    def starting() -> Worker:
        worker = Worker("test", CPU, 60.0)
        worker.ask(Rest())
        worker.timeout_s = 0.05
        return worker

    file = tmp_path / "slow.py"
    file.write_text("import time\ntime.sleep(1000)\n")
    lines: set[int] = set()
    with pytest.raises(Ended, match="took longer"):
        interrupted_at(None, worker := starting(), file, lines)
    worker.close()
    reached: set[int] = set()
    for line in sorted(lines):
        worker = starting()
        with pytest.raises((KeyboardInterrupt, Ended)):  # a line of giving up comes too late
            interrupted_at(line, worker, file, reached)
        worker.ask_back()
        if worker.alive:  # it was not asked yet
            worker.timeout_s = 60.0
            worker.receive("giving back nothing")
        worker.close()
    assert reached == lines


def test_one_thread_at_a_time_ends_a_worker(worker: Worker) -> None:
    """Callers and shutdown may both observe that the worker has exited; a descriptor is closed once."""
    bury, inside, begun = worker._bury, threading.Lock(), threading.Event()
    alone = []

    def watched() -> None:
        alone.append(inside.acquire(blocking=False))
        begun.set()
        if threading.current_thread() is not closing:
            closing.join(0.2)  # long enough for it to come in as well, if it may
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


def test_it_starts_in_no_time() -> None:
    def seconds() -> float:
        begin = time.perf_counter()
        worker = Worker("test", CPU, 60.0)
        worker.ask(Rest())
        took = time.perf_counter() - begin
        worker.close()
        return took

    seconds()  # the server may have to be started first
    assert min(seconds() for _ in range(5)) < 0.25


COUNTING = (
    "import threading, time\ncount = 0\n\n"
    "def work():\n    global count\n    while True:\n        count += 1\n"
    "        open(os.environ['TMPDIR'] + '/count', 'w').write(str(count))\n        time.sleep(0.001)\n\n"
    "threading.Thread(target=work, daemon=True).start()\n"
)
"""A user's file that works without being asked."""


def states(pid: int) -> set[str]:
    """The states of a process's children and of itself: ``T`` is stopped."""
    every = (stat(int(folder.name)) for folder in Path("/proc").glob("[0-9]*"))
    return {fields[0] for fields in every if fields and int(fields[2]) == pid}  # its process group


def test_a_users_idle_worker_is_stopped(tmp_path: Path) -> None:
    worker = Worker("test", CPU, 60.0, isolated=True)
    try:
        worker.ask(Load((written(tmp_path / "counting.py", COUNTING),)))
        assert until(lambda: states(worker.pid) == {"T"})
        worker.ask(Rest())  # it goes on, answers, and is stopped again
        assert until(lambda: states(worker.pid) == {"T"})
    finally:
        worker.close()
    assert until(lambda: not running(worker.pid))


CONTINUING = (
    "import signal, threading\n\n"
    "def work():\n    while True:\n        try: os.kill(0, signal.SIGCONT)\n        except OSError: pass\n\n"
    "threading.Thread(target=work, daemon=True).start()\n"
)
"""A user's file that keeps itself from being stopped: SIGCONT cancels a SIGSTOP that has not been handled."""


def test_a_users_worker_that_sends_itself_sigcont_is_stopped(tmp_path: Path) -> None:
    worker = Worker("test", CPU, 60.0, isolated=True)
    try:
        worker.ask(Load((written(tmp_path / "continuing.py", CONTINUING),)))
        for _ in range(50):
            worker.ask(Rest())
            assert until(lambda: states(worker.pid) == {"T"}, 5)
    finally:
        worker.close()


JUDGE = """
import sys, torch
from compare.worker import server
from compare.worker.messages import Load, Rest
from compare.worker.process import Worker

server.start(from_here=True)
stopped, busy = (Worker("test", torch.device("cpu"), 60.0, isolated=True) for _ in range(2))
stopped.ask(Rest())
print(stopped.pid, flush=True)
busy.ask(Load(tuple(sys.argv[1:])))
"""


def test_none_outlives_the_judge_stopped_or_busy(tmp_path: Path) -> None:
    """Even when it is killed by SIGKILL; nor does what a worker has started."""
    token = secrets.token_hex()
    program = [sys.executable, "-c", "import signal; signal.pause()", token]
    file = written(tmp_path / "busy.py", f"import subprocess\nsubprocess.run({program})\n")
    with started("-c", JUDGE, file) as (judge, stdout):
        stopped = int(stdout.readline())
        child = called_with(token)
        assert until(lambda: states(stopped) == {"T"})
        os.kill(judge, signal.SIGKILL)
    assert until(lambda: not states(stopped))
    assert until(lambda: not running(child))


# --------------------------------------------------------------------------- whose fault it is


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("isolated", [False, True])
def test_one_that_is_killed_between_two_requests_has_written_nothing(
    sent: signal.Signals, isolated: bool
) -> None:
    """The end of its connection is no message; another worker may do better."""
    worker = Worker("test", CPU, 60.0, isolated=isolated)
    try:
        worker.ask(Rest())
        os.killpg(worker.pid, sent)
        os.killpg(worker.pid, signal.SIGCONT)
        assert until(lambda: not running(worker.pid))
        with pytest.raises(Ended, match=f"was killed by {sent.name}") as caught:
            worker.ask(Rest())
        assert (caught.value.retry, caught.value.by_judge) == (True, False)
    finally:
        worker.close()


@pytest.mark.parametrize("code", ["os._exit(3)", "os.abort()"])
def test_one_that_ends_itself_is_not_tried_again(code: str, worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(Ended) as caught:
        worker.ask(Load((written(tmp_path / "ends.py", code),)))
    assert not caught.value.retry


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), TypeError("no"), ValueError("-1")])
@pytest.mark.parametrize("method", ["send", "receive"])
def test_an_error_of_the_judge_is_shown_and_not_blamed_on_the_worker(
    error: Exception, method: str, worker: Worker
) -> None:
    with (
        mock.patch.object(worker._channel, method, side_effect=error),
        pytest.raises(
            Ended, match=f"the judge failed in .*: {type(error).__name__}: .*{error.args[-1]}"
        ) as caught,
    ):
        worker.ask(Rest())
    assert (caught.value.retry, caught.value.by_judge) == (True, True)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"{", b"\xff", b"[]", b'{"number": 3}', b"[" * 100_000, b"1" * 5000),
        b'{"number": "x", "value": {"held_bytes": 1e999}}',
    ],
    ids=lambda message: message[:12].decode("latin1"),
)
def test_a_malformed_message_is_blamed_on_who_wrote_it(message: bytes, worker: Worker) -> None:
    worker.ask(Rest())
    with (
        mock.patch.object(worker._channel, "receive", return_value=message),
        pytest.raises(Ended, match=r"wrote into the pipe between its process and the judge's: .") as caught,
    ):
        worker.ask(Rest())
    assert not caught.value.retry


def test_time_in_which_others_have_the_cores_does_not_count(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compare.worker.process.waited_s", lambda group: 60.0 * (group == worker.pid))
    worker.timeout_s = 1.0
    begin = time.monotonic()
    with pytest.raises(Ended, match="took longer than 1 s"):
        worker.ask(Load((written(tmp_path / "hangs.py", "import time\ntime.sleep(1000)\n"),)))
    assert 2.0 <= time.monotonic() - begin < 30.0  # twice the limit at most


def test_all_memory_is_filled_twice_only() -> None:
    worker = Worker("test", CPU, 60.0, isolated=True)
    error = Error("memory", "MemoryError", "too much", "", "")
    try:
        with pytest.raises(MemoryError, match="too much"):
            worker._raise(error, None, "x")
        with pytest.raises(Ended, match="out of memory 2 times, at last in x: too much"):
            worker._raise(error, None, "x")
    finally:
        worker.close()
