"""Isolation: what a user's file can reach, by each mechanism that this machine has."""

from __future__ import annotations

import os
import pty
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from compare.commands import doctor
from compare.registry import ROOT
from compare.sandbox import isolation, scratch
from compare.sandbox.isolation import Isolation
from compare.sandbox.words import read_json
from conftest import HAS_GPU
from isolated import entering, inside
from loops import for_each

FOUND = isolation.found()
WITH_NAMESPACES = pytest.mark.skipif(not FOUND.namespaces, reason=f"no namespaces here: {FOUND.refused}")
WITH_LANDLOCK = pytest.mark.skipif(not FOUND.landlock, reason=f"no Landlock here: {FOUND.refused}")

pytestmark = [
    pytest.mark.skipif(not FOUND.seccomp, reason=f"no seccomp here: {FOUND.refused}"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def allowed(found: Isolation, gpu: bool, tries: dict[str, Callable[[Path], object]]) -> set[str]:
    """The tries that come to an end in an isolated child process."""
    return {name for name, came in inside(entering(found, gpu=gpu), tries).items() if came == "ok"}


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
    assert allowed(found, gpu, tries) == {"read", "private", "null"}
    assert mine.read_text() == "as it was"
    assert not (ROOT / "secrets.py").exists()


@pytest.mark.parametrize(("found", "gpu"), VARIANTS)
def test_compilers_write_into_the_private_folder_or_not_at_all(found: Isolation, gpu: bool) -> None:
    """cupy was imported before: version 14.2 reads CUPY_CACHE_DIR then, and CUPY_CACHE_IN_MEMORY later."""

    def attempt(private: Path) -> None:
        assert os.environ["CUPY_CACHE_IN_MEMORY"] == "1"
        for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
            (Path(os.environ[name]) / "kernel.cubin").write_bytes(b"code")
            assert private in Path(os.environ[name]).parents

    assert inside(entering(found, gpu=gpu), {"write": attempt}) == {"write": "ok"}


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
        "all": lambda _: os.kill(-1, 0),
        "own": lambda _: os.kill(os.getpid(), 0),
        "own limit": lambda _: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        "own priority": lambda _: os.setpriority(os.PRIO_PROCESS, 0, 19),
        "pair": lambda _: socket.socketpair(),
        "a program": lambda _: subprocess.run(["/bin/sh", "-c", "exit 0"], check=True),
    }
    assert allowed(found, gpu, tries) == {"own", "own limit", "own priority", "pair", "a program"}


@pytest.mark.parametrize(("found", "gpu"), VARIANTS)
def test_a_process_stays_in_its_group_though_it_leads_one(found: Isolation, gpu: bool) -> None:
    """ninja has every compiler do so."""

    def attempt(_: Path) -> None:
        group = os.getpgrp()
        child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], {}, setpgroup=0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        os.setpgid(0, 0)
        assert os.getpgrp() == group

    assert allowed(found, gpu, {"group": attempt}) == {"group"}


@WITH_NAMESPACES
@pytest.mark.parametrize("landlock", [0, FOUND.landlock])
def test_on_a_gpu_what_cuda_starts_with_is_allowed(landlock: int) -> None:
    def rename(_: Path) -> None:
        Path(f"/proc/self/task/{os.getpid()}/comm").write_text("cuda-EvtHandlr")

    def packets(_: Path) -> None:
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind("\0cuda-uvmfd-test")

    def connect(_: Path) -> None:
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect("\0cuda-uvmfd-test")

    tries: dict[str, Callable[[Path], object]] = {
        "thread's name": rename,
        "packets": packets,
        "connect": connect,
        "stream": lambda _: socket.socket(socket.AF_UNIX),
        "other process": lambda _: Path(f"/proc/{os.getppid()}/comm").write_text("x"),
        "kernel": lambda _: Path("/proc/sys/kernel/core_pattern").write_text("x"),
    }
    found = Isolation(namespaces=True, landlock=landlock, seccomp=True)
    assert allowed(found, True, tries) == {"thread's name", "packets"}


@pytest.mark.parametrize(("found", "gpu"), VARIANTS)
def test_no_device_but_those_of_computing_can_be_used(found: Isolation, gpu: bool) -> None:
    """A terminal could be read and written, and a disk changed where its user may do so."""
    master, terminal = pty.openpty()
    name = os.ttyname(terminal)
    tries: dict[str, Callable[[Path], object]] = {
        "read a terminal": lambda _: os.open(name, os.O_RDONLY | os.O_NOCTTY),
        "write to it": lambda _: os.open(name, os.O_WRONLY | os.O_NOCTTY),
        "random": lambda _: os.open("/dev/urandom", os.O_RDONLY),
        "null": lambda _: os.open(os.devnull, os.O_RDWR),
        "make one": lambda private: os.mknod(private / "null", 0o20666, os.makedev(1, 3)),
    }
    assert allowed(found, gpu, tries) == {"random", "null"}
    os.close(master)
    os.close(terminal)


def test_a_folder_of_any_depth_and_mode_is_removed(tmp_path: Path) -> None:
    """Its paths are longer than PATH_MAX."""
    folder = tmp_path / "private"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("deep" * 20, dir_fd=descriptor)
        inner = os.open("deep" * 20, os.O_RDONLY, dir_fd=descriptor)
        os.close(os.open("file", os.O_CREAT, dir_fd=inner))
        os.mkdir("closed", 0o000, dir_fd=inner)
        os.symlink("/", "link", dir_fd=inner)
        os.fchmod(descriptor, 0o000)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    scratch.remove(folder)
    assert not folder.exists()


def test_removing_never_raises(tmp_path: Path) -> None:
    scratch.remove(tmp_path / "none")
    (tmp_path / "file").touch()
    scratch.remove(tmp_path / "file")
    mounted = tmp_path / "folder"
    (mounted / "kept").mkdir(parents=True)
    with mock.patch("os.rmdir", side_effect=OSError("busy")):
        scratch.remove(mounted)


def test_a_name_of_others_is_not_followed(tmp_path: Path) -> None:
    """In /tmp anyone may link a name like that of a run that was killed to a folder of the user's."""
    mine = tmp_path / "mine"
    (mine / "secret").mkdir(parents=True)
    (mine / "secret").chmod(0o500)
    link = tmp_path / "three-ways-x"
    link.symlink_to(mine)
    with mock.patch("tempfile.tempdir", str(tmp_path)):
        scratch.remove(scratch.folder.__wrapped__())
    assert (mine / "secret").stat().st_mode & 0o777 == 0o500
    assert link.is_symlink()


def test_trying_the_mechanisms_imports_nothing_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "ctypes", "subprocess", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert isolation.found.__wrapped__() == FOUND


SEARCH = """
import re, sys
from compare.registry import implementation

found = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
    for line in maps:
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        if " rw" in line:
            try:
                memory.seek(begin)
                found += len(re.findall(rb"Hidden[A-Z]{8}", memory.read(end - begin)))
            except OSError:
                continue
raise SystemExit(f"{found} secrets")


@implementation("vector_add", "torch.searching", level="naive")
def searching(x, y):
    return x + y
"""


@pytest.mark.thorough
def test_no_variable_of_the_environment_is_in_the_memory_of_a_fork(tmp_path: Path) -> None:
    """The command begins again without them: to delete one leaves its text in freed memory."""
    (tmp_path / "search.py").write_text(SEARCH)
    secrets = {f"TOKEN_{n}": "HiddenABCDEFGH" + "x" * 20 * n for n in range(60)}
    done = subprocess.run(
        [sys.executable, "-m", "compare", "vector_add", "--device", "cpu", "--load", tmp_path / "search.py"],
        cwd=ROOT,
        env={**os.environ, **secrets},
        capture_output=True,
        text=True,
    )
    assert " 0 secrets" in " ".join(done.stdout.split()), done.stdout + done.stderr


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


@for_each(
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
def test_cuda_that_does_not_start_is_an_error_of_the_probe() -> None:
    with pytest.raises(OSError, match=r"libcuda|CUDA does not start with it"):
        isolation.start_cuda()
