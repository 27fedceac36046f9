"""Faults of a cluster: what was lost runs elsewhere, at most twice more, and is recorded once.

The workers are real processes of Dask's, killed by signals; their GPUs and comparisons are made up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client

from cluster_sweeps import Swept, begun, first, go, local
from compare.cluster import engines
from compare.model.op import UsageError
from processes import until

OPTIONS = ("--nthreads", "1", "--resources", "GPU=1", "--no-dashboard")
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@contextmanager
def meanwhile(do: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=do)
    thread.start()
    yield
    thread.join()


def test_a_killed_worker_s_task_runs_on_another_gpu_and_is_recorded_once(tmp_path: Path) -> None:
    ops = ["waits-1", *(f"op-{n}" for n in range(6))]
    swept = Swept(tmp_path, ops)

    def kill() -> None:
        os.kill(first(tmp_path, "waits-1").pid, signal.SIGKILL)
        go(tmp_path, "waits-1")

    with local("GPU-a", "GPU-b") as client, meanwhile(kill):
        swept.run(client)
    assert not swept.given_up
    assert sorted(swept.results) == sorted(ops)
    assert swept.recorded() == dict.fromkeys(ops, 1)
    attempts = Counter(each.op for each in begun(tmp_path))
    assert attempts == {**dict.fromkeys(ops, 1), "waits-1": 2}
    assert len({each.gpu for each in begun(tmp_path) if each.op == "waits-1"}) == 2
    assert any("its worker process ended; it is tried again" in line for line in swept.said)


def test_an_op_that_kills_every_worker_is_given_up_after_three_attempts(tmp_path: Path) -> None:
    swept = Swept(tmp_path, ["kills-1", "op-1", "op-2"])
    with local("GPU-a", "GPU-b") as client:
        swept.run(client)
    assert [task.name for task in swept.given_up] == ["kills-1"]
    assert len(swept.given_up[0].failures) == 3
    assert Counter(each.op for each in begun(tmp_path))["kills-1"] == 3
    assert swept.recorded() == {"op-1": 1, "op-2": 1}


def test_a_lost_gpu_gets_no_other_task(tmp_path: Path) -> None:
    ops = ["lost-1", "lost-2", *(f"op-{n}" for n in range(4))]
    swept = Swept(tmp_path, ops)
    with local("GPU-a", "GPU-b") as client:
        swept.run(client)
    assert not swept.given_up
    assert swept.recorded() == dict.fromkeys(ops, 1)
    on_lost = [each.op for each in begun(tmp_path) if each.gpu == "GPU-a"]
    assert len(on_lost) <= 2  # the one that lost it, and at most one before
    assert any("no longer answers; it is tried again" in line for line in swept.said)


def test_a_full_disk_on_one_worker_sends_the_task_elsewhere(tmp_path: Path) -> None:
    swept = Swept(tmp_path, ["full-1"])
    with local("GPU-a", "GPU-b") as client:
        swept.run(client)
    assert swept.recorded() == {"full-1": 1}
    assert begun(tmp_path)[-1].gpu == "GPU-b"


def test_two_workers_of_one_gpu_are_one(tmp_path: Path) -> None:
    ops = [f"op-{n}" for n in range(6)]
    swept = Swept(tmp_path, ops)
    with local("GPU-a", "GPU-a") as client:
        swept.run(client)
    assert swept.recorded() == dict.fromkeys(ops, 1)
    assert len({each.pid for each in begun(tmp_path)}) == 1
    assert sum("another worker has the same GPU, GPU-a" in line for line in swept.said) == 1


def test_no_worker_for_too_long_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.cluster.sweep._SAY_S", 0.2)
    swept = Swept(tmp_path, ["op-1"], sources="of yesterday", patience_s=2.5)
    with local("GPU-a") as client:
        swept.run(client)
    assert swept.results == []
    assert any("have the hash of today, here it is of yesterday" in line for line in swept.said)
    assert sum("no worker is there: waiting for one" in line for line in swept.said) == 1


@contextmanager
def scheduler(
    folder: Path, *gpus: str, allowed_failures: int = 0
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A scheduler and workers as a user starts them, each a process."""
    file = folder / "address"
    python = [sys.executable, "-c"]
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from distributed import Scheduler\n"
        "async def serve():\n"
        "    at = {'host': '127.0.0.1', 'port': 0, 'dashboard_address': '127.0.0.1:0'}\n"
        "    async with Scheduler(**at, allowed_failures=int(sys.argv[2])) as s:\n"
        "        Path(sys.argv[1]).write_text(s.address)\n"
        "        await s.finished()\n"
        "asyncio.run(serve())\n"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    started = [
        subprocess.Popen(
            [*python, code, str(file), str(allowed_failures)], env=environment, stderr=subprocess.DEVNULL
        )
    ]
    try:
        assert until(lambda: file.exists() and bool(file.read_text()))
        address = file.read_text()
        for gpu in gpus:
            words = [sys.executable, "-m", "distributed.cli.dask_worker", address, *OPTIONS]
            its = {**environment, "CUDA_VISIBLE_DEVICES": gpu}
            started.append(subprocess.Popen(words, env=its, stderr=subprocess.DEVNULL))
        yield address, started[0]
    finally:
        for process in started:
            process.kill()
            process.wait()
        file.unlink(missing_ok=True)


def test_a_lost_scheduler_is_said_and_the_rest_is_done_by_the_next_sweep(tmp_path: Path) -> None:
    swept = Swept(tmp_path, ["op-1", "waits-1"])
    with scheduler(tmp_path, "GPU-a") as (address, process):

        def kill() -> None:
            first(tmp_path, "waits-1")
            process.kill()

        with Client(address) as client, meanwhile(kill), pytest.raises(UsageError, match="no longer answers"):
            swept.run(client)
    assert swept.recorded() == {"op-1": 1}
    go(tmp_path, "waits-1")
    rest = Swept(tmp_path, ["waits-1"])
    with scheduler(tmp_path, "GPU-a") as (address, _), Client(address) as client:
        rest.run(client)
    assert rest.recorded() == {"op-1": 1, "waits-1": 1}


def test_a_scheduler_that_repeats_tasks_itself_is_refused(tmp_path: Path) -> None:
    with scheduler(tmp_path, allowed_failures=3) as (address, _):
        with pytest.raises(UsageError, match="dead worker 3 more times"), engines.connected(address):
            pass
    with pytest.raises(UsageError, match="no scheduler answers there"), engines.connected(address):
        pass
