"""``serve --cluster``: runs of the page on workers, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from page_server import PageServerProcess, page_server
from processes import ROOT, running, stat, until

pytest.importorskip("tornado", reason="the page needs tornado: pip install -r requirements-serve.txt")
pytest.importorskip("django_ace", reason="the page needs its editor: pip install -r requirements-serve.txt")

pytestmark = pytest.mark.thorough

SLEEP = "import time\n\ntime.sleep(3)\n"


@pytest.fixture(scope="module")
def server() -> Iterator[PageServerProcess]:
    with page_server("--device", "cpu", "--cluster", "local") as it:
        assert list(it.client.events("example"))[-1]["kind"] == "done"
        yield it
        descendants = it.descendants
    assert until(lambda: not any(map(running, descendants)))


@pytest.fixture(scope="module")
def right(server: PageServerProcess) -> str:
    return server.client.source("triton", "example")


def worker_of(server: PageServerProcess) -> int:
    """The worker's process: of those that the server has spawned, the one with children."""
    parents = {int(stat(pid)[1]) for pid in server.descendants}
    spawned = (pid for pid in server.descendants if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text())
    (worker,) = (pid for pid in spawned if pid in parents)
    return worker


def test_a_run_has_the_answer_of_a_local_one(server: PageServerProcess, right: str):
    run = server.client.start(right, beside="triton.onepass")
    told = {event["kind"]: event for event in server.client.events(run)}
    assert [*told] == ["queue", "began", "step", "first", "answer", "lanes", "stages", "done"]
    assert told["answer"]["verdicts"][0]["status"] == "ok"
    assert told["began"]["device"] == "worker 1"
    assert not any("worker" in event for event in told.values())
    assert "ttgir" in server.client.ask(f"runs/{run}/stages")[1]
    assert server.client.result(right.replace("tl.max(", "tl.sum("))["first"]["wrong"]


def test_a_cancelled_run_ends_in_its_worker(server: PageServerProcess, right: str):
    run = server.client.start(SLEEP + right)
    events = server.client.events(run)
    assert any(event["kind"] == "step" for event in events)
    assert server.client.ask(f"runs/{run}", method="DELETE")[0] == 200
    assert [*events][-1]["kind"] == "cancelled"
    assert server.client.result(right)["done"]


def test_a_run_whose_worker_is_killed_is_done_again(server: PageServerProcess, right: str):
    events = server.client.events(server.client.start(SLEEP + right))
    assert any(event["kind"] == "step" for event in events)
    os.kill(worker_of(server), signal.SIGKILL)
    rest = [*events]
    assert any("its worker process ended; it is tried again" in event.get("text", "") for event in rest)
    assert rest[-1]["kind"] == "done"


def test_ctrl_c_ends_it_without_a_traceback():
    """A terminal sends SIGINT to the workers as well."""
    line = [sys.executable, "-m", "compare", "serve", "--device", "cpu", "--cluster", "local", "--port", "0"]
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as it:
        assert any("open http" in text for text in it.stderr)
        os.killpg(it.pid, signal.SIGINT)
        rest = it.stderr.read()
    assert (it.returncode, "Traceback" in rest) == (0, False), rest
