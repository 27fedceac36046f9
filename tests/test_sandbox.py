"""Isolation: what a user's file can reach, by each mechanism that this machine has."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from compare import doctor
from compare.registry import ROOT
from compare.sandbox import isolation
from compare.sandbox.isolation import Isolation
from compare.sandbox.words import read_json
from conftest import HAS_GPU

FOUND = isolation.found()
WITH_NAMESPACES = pytest.mark.skipif(not FOUND.namespaces, reason=f"no namespaces here: {FOUND.refused}")
WITH_LANDLOCK = pytest.mark.skipif(not FOUND.landlock, reason=f"no Landlock here: {FOUND.refused}")

pytestmark = [
    pytest.mark.skipif(not FOUND.seccomp, reason=f"no seccomp here: {FOUND.refused}"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def inside(found: Isolation, gpu: bool, tries: dict[str, Callable[[Path], object]]) -> dict[str, str]:
    """What each try came to in an isolated child process: ``ok`` or the exception."""
    private = isolation.private_folder()
    lifeline, kept = os.pipe()
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(kept)
        isolation.enter(found, private, lifeline, gpu=gpu)
        said = {}
        for name, attempt in tries.items():
            try:
                attempt(private)
                said[name] = "ok"
            except BaseException as error:
                said[name] = type(error).__name__
        os.write(sender, json.dumps(said).encode())
        os._exit(0)
    for descriptor in (lifeline, sender):
        os.close(descriptor)
    with os.fdopen(receiver) as told:
        text = told.read()
    assert os.waitpid(child, 0)[1] == 0
    os.close(kept)
    isolation.remove(private)
    assert not private.exists()
    return dict(json.loads(text))


VARIANTS = [
    pytest.param(FOUND, False, id="all"),
    pytest.param(FOUND, True, id="gpu", marks=WITH_NAMESPACES),
    pytest.param(Isolation(landlock=FOUND.landlock, seccomp=True), False, id="landlock", marks=WITH_LANDLOCK),
    pytest.param(
        Isolation(namespaces=FOUND.namespaces, seccomp=True), False, id="namespaces", marks=WITH_NAMESPACES
    ),
    pytest.param(
        Isolation(landlock=min(1, FOUND.landlock), seccomp=True), True, id="landlock 1", marks=WITH_LANDLOCK
    ),
]


@pytest.mark.parametrize(("found", "gpu"), VARIANTS)
def test_only_the_private_folder_can_be_changed(found: Isolation, gpu: bool, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("as it was")
    tries: dict[str, Callable[[Path], object]] = {
        "project": lambda _: (ROOT / "secrets.py").write_text(""),
        "bytecode": lambda _: (ROOT / "compare" / "__pycache__").joinpath("x.pyc").write_text(""),
        "home": lambda _: (Path.home() / "planted").write_text(""),
        "write": lambda _: mine.write_text("changed"),
        "remove": lambda _: mine.unlink(),
        "rename": lambda private: mine.rename(private / "mine"),
        "read": lambda _: mine.read_text(),
        "private": lambda private: (private / "mine").write_text(""),
        "null": lambda _: Path(os.devnull).write_text("x"),
    }
    said = inside(found, gpu, tries)
    assert {name for name, came in said.items() if came == "ok"} == {"read", "private", "null"}
    assert mine.read_text() == "as it was"
    assert not (ROOT / "secrets.py").exists()


@pytest.mark.parametrize(("found", "gpu"), VARIANTS)
def test_no_other_process_can_be_reached(found: Isolation, gpu: bool) -> None:
    judge = os.getpid()
    tries: dict[str, Callable[[Path], object]] = {
        "signal": lambda _: os.kill(judge, signal.SIGSTOP),
        "parent": lambda _: os.kill(os.getppid(), 0),
        "session": lambda _: os.setsid(),
        "memory": lambda _: os.close(os.open(f"/proc/{judge}/mem", os.O_RDWR)),
        "network": lambda _: socket.socket(),
        "local": lambda _: socket.socket(socket.AF_UNIX),
        "own": lambda _: os.kill(os.getpid(), 0),
        "pair": lambda _: socket.socketpair(),
    }
    said = inside(found, gpu, tries)
    assert {name for name, came in said.items() if came == "ok"} == {"own", "pair"}


@WITH_NAMESPACES
def test_what_it_leaves_behind_ends_with_it() -> None:
    token = f"left-{time.monotonic_ns()}"
    program = [sys.executable, "-c", "import time; time.sleep(600)", token]

    def leave(_: Path) -> None:
        if os.fork() == 0:
            os.execv(program[0], program)

    assert inside(FOUND, False, {"leave": leave}) == {"leave": "ok"}
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [command for command in commands if token.encode() in command]


def test_folders_of_runs_that_were_killed_are_removed(tmp_path: Path) -> None:
    with mock.patch("tempfile.gettempdir", return_value=str(tmp_path)), mock.patch("tempfile.tempdir", None):
        ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
        old = tmp_path / f"gpu-three-ways-{int(ended.stdout)}-x"
        (old / "deep").mkdir(parents=True)
        (old / "deep").chmod(0)
        new = isolation.private_folder()
        assert not old.exists()
        isolation.remove(new)


def test_who_asks_is_told_what_holds() -> None:
    assert Isolation(True, 7, True).holds
    assert Isolation(False, 1, True).holds
    assert not Isolation(True, 7, False).holds
    none = Isolation(refused=("seccomp: Operation not permitted",))
    assert not none.holds
    assert "seccomp: Operation not permitted" in none.warning
    assert "\n" not in none.warning
    assert Isolation(True, 7, True).warning == ""
    with mock.patch.object(isolation, "found", return_value=none):
        (row,) = [each for each in doctor.diagnose() if each.name == "isolation"]
    assert (row.ok, row.optional) == (False, True)


@pytest.mark.parametrize(
    "message",
    [
        b"[" * 100_000,
        b"[" * 20 + b"]" * 20,
        b"[" + b"1," * 100_000 + b"1]",
        b'"' + b"x" * (2 << 20) + b'"',
        b"1" * 400,
        b"{",
        b"\xff",
    ],
)
def test_what_no_honest_process_sends_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        read_json(message)


@pytest.mark.skipif(HAS_GPU, reason="CUDA starts here")
def test_a_mechanism_that_cuda_does_not_start_with_is_not_used() -> None:
    tried: list[str] = []
    why = isolation._why_not(lambda: isolation._with_cuda(lambda: tried.append("it")))
    assert "libcuda" in why or "CUDA does not start with it" in why
    assert isolation._why_not(lambda: None) == ""
