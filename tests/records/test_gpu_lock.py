"""The lock of a GPU: of two processes one waits, says for which, and gets it however the other ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compare.records import gpu_lock
from processes import ROOT

UUID = "GPU-00000000-1111-2222-3333-444444444444"
HOLD = (
    "import sys\nfrom compare.records import gpu_lock\n"
    f"with gpu_lock.held('{UUID}', print):\n    print('held', flush=True)\n    sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPARE_LOCKS", str(tmp_path))
    return tmp_path


def test_a_run_waits_for_the_holder_by_name_and_goes_on_when_that_is_killed() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, "softmax"], cwd=ROOT, stdin=pipe, stdout=pipe
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        said = []

        def say(text: str) -> None:
            said.append(text)
            os.kill(holder.pid, signal.SIGKILL)

        with gpu_lock.held(UUID, say):
            assert holder.wait() == -signal.SIGKILL
        (text,) = said
        assert text.startswith(f"waiting for {UUID}: process {holder.pid} of ")
        assert text.endswith(": compare softmax")


def test_other_gpus_and_machines_without_one_do_not_wait(locks: Path) -> None:
    said: list[str] = []
    with (
        gpu_lock.held(UUID, said.append),
        gpu_lock.held("GPU-other", said.append),
        gpu_lock.held(None, said.append),
    ):
        assert len(list(locks.iterdir())) == 2
    with gpu_lock.held(UUID, said.append):  # it was released
        assert gpu_lock.holder(UUID).startswith(f"process {os.getpid()} of ")
    assert said == []


def test_a_folder_that_cannot_be_written_is_said_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPARE_LOCKS", str(tmp_path / "file"))
    said: list[str] = []
    with gpu_lock.held(UUID, said.append):
        pass
    assert "cannot be locked" in said[0]
