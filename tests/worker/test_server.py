"""The server that workers are forked from."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from compare.command_line.status import USAGE
from compare.registry import ROOT
from compare.worker import server, start
from processes import command, python, running, until

FORKING = """
import os, torch
from compare.worker import server
from compare.worker.messages import Rest
from compare.worker.process import Worker

os.pipe()  # the server must not keep it
server.start(["vector_add"], from_here=True)
worker = Worker("test", torch.device("cpu"))
worker.ask(Rest())
parent = int(open(f"/proc/{worker.pid}/stat").read().rpartition(")")[2].split()[1])
mine, its = (open(f"/proc/{pid}/cmdline").read() for pid in (os.getpid(), parent))
print(parent, len(os.listdir(f"/proc/{parent}/fd")), mine == its)
server.start(["vector_add"], from_here=True)
worker.close()
"""


def test_the_command_forks_the_server_from_itself_and_takes_it_along() -> None:
    done = python("-c", FORKING)
    assert done.returncode == 0, done.stderr
    pid, descriptors, same = done.stdout.split()
    assert same == "True"
    assert int(descriptors) < 12
    assert until(lambda: not running(int(pid)))


def test_only_the_command_itself_forks_the_server() -> None:
    """And only without variables that workers do not get."""
    with mock.patch.dict(os.environ, {"PATH": ""}, clear=True):
        assert not start._is_clean_command()
        with mock.patch.dict(sys.modules, {"__main__": mock.Mock(__spec__=mock.Mock())}) as modules:
            modules["__main__"].__spec__.name = "compare.__main__"
            assert start._is_clean_command()
            os.environ["GITHUB_TOKEN"] = "secret"
            assert not start._is_clean_command()


@pytest.mark.thorough
def test_rows_that_need_no_cupy_run_where_it_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("vector_add", "--device", "cpu", "--case", "N=16,fp32", "--only", "torch.eager")
    done = command(*words, CUPY_CACHE_DIR=str(tmp_path / "file" / "cupy"))
    assert done.returncode == 0
    assert "cupy" not in done.stderr


def test_too_few_descriptors_are_a_sentence() -> None:
    words = "-m compare vector_add --device cpu --case N=16,fp32"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 24; {sys.executable} {words}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == USAGE
    assert "may open 24 files at a time" in done.stderr
    assert "a run needs up to 256" in done.stderr


def test_a_soft_limit_of_descriptors_is_raised() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        server.allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_judge_that_is_gone_before_it_has_begun_is_no_error(tmp_path: Path) -> None:
    """As after Ctrl-C: only the judge prints to the screen."""
    ours, theirs = socket.socketpair()
    their_end, lifeline = os.pipe()
    with (tmp_path / "printed").open("wb") as printed:
        for end in (lifeline, ours.detach()):
            os.close(end)
        order = server.Order(str(tmp_path), None)
        process = server.fork(order, theirs.fileno(), printed.fileno(), their_end)
    assert process.wait(30.0) is not None
    assert (tmp_path / "printed").read_text() == ""
    theirs.close()
    os.close(their_end)


COMMAND = """
import os, sys

def main(words):
    facts = os.environ["MINE"], os.getpgrp() == os.getpid(), len(os.listdir("/proc/self/fd"))
    print(*words, *facts, file=sys.stderr)
    return 7
"""
FORKING_IT = """
import os
from compare.sandbox.environment import kept_variables
from compare.worker import server

kept = [os.pipe() for _ in range(20)]
command = server.Command("command", ("a", "b"), kept_variables() | {"MINE": "x"})
print(server.fork_command(command, 2).wait(60.0))
"""


@pytest.mark.thorough
def test_a_command_is_forked_with_its_own_variables_group_and_screen(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(COMMAND)
    done = python("-c", FORKING_IT, PYTHONPATH=os.pathsep.join((str(ROOT), str(tmp_path))))
    assert done.stdout.split() == ["7"], done.stderr
    *words, descriptors = done.stderr.split()
    assert words == ["a", "b", "x", "True"]
    assert int(descriptors) < 12
