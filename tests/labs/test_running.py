"""A comparison in a process of its own."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from compare.labs import running
from compare.labs.running import run

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
