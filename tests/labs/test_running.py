"""A comparison in a process forked from the workers' server."""

from __future__ import annotations

from pathlib import Path

import pytest

import processes
from compare.labs import running
from compare.labs.running import run
from compare.worker import server

CASE = "M=3,N=129,fp32"


def test_pytorch_is_not_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start()
    (tmp_path / "torch.py").write_text("raise ImportError('imported again')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run("softmax", [CASE], ["triton.onepass"], "cpu", 60.0)
    row = done.row(CASE, "triton.onepass")
    assert row is not None, done.error
    assert row.status == "ok"


@pytest.mark.thorough
def test_a_server_that_cannot_interpret_is_not_forked() -> None:
    program = (
        "from compare.labs.running import run\n"
        "from compare.worker import server\n"
        "server.start(from_here=True)\n"
        f"row = run('softmax', [{CASE!r}], ['triton.onepass'], 'cpu', 60.0).row({CASE!r}, 'triton.onepass')\n"
        "print(row.status, row.reason)\n"
    )
    done = processes.python("-c", program)
    assert done.stdout.strip() == "ok", done


def test_an_interrupted_run_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[int, int | None]] = []
    end, wait, interruptions = running._end, server.Forked.wait, iter([KeyboardInterrupt()])

    def waiting(process: server.Forked, seconds: float) -> int | None:
        for error in interruptions:
            raise error
        return wait(process, seconds)

    monkeypatch.setattr(server.Forked, "wait", waiting)
    monkeypatch.setattr(running, "_end", lambda process: ended.append((process.pid, end(process))))
    with pytest.raises(KeyboardInterrupt):
        run("softmax", [CASE], ["torch.eager"], "cpu", 60.0)
    ((pid, code),) = ended
    assert code in (-15, -9)
    assert not processes.running(pid)


def test_a_mistake_in_the_command_is_told() -> None:
    done = run("softmax", [CASE], ["triton.onepas"], "cpu", 60.0)
    assert "did you mean triton.onepass" in done.error
    assert not done.refused
