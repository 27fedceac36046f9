"""Each protection of docs/trust.md by each mechanism that gives it, with the others off.

Where several mechanisms are on, the loss of one goes unnoticed.  Every attempt is made twice: isolated, where
it must be refused, and without isolation, where it must succeed, or the refusal would prove nothing.
``tests/mutations/sandbox.diff`` removes the protections one at a time.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import importlib
import mmap
import os
import pty
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from compare.registry import ROOT
from compare.sandbox import isolation, kernel, limits
from compare.sandbox.isolation import Isolation
from isolated import entering, inside
from mutations import Mutation, mutations_in
from mutations.instruments import mutated

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

FOUND = isolation.found()
HOST_BYTES = 256 << 20
MACHINE = os.uname().machine
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Surroundings:
    """What an isolated process must not reach."""

    file: Path
    victim: int
    """Another process of the same user."""
    terminal: str
    port: int
    """Of a service on this machine."""
    segment: int
    """Key of System V shared memory, and name of a socket of this machine."""
    private: Path = Path()
    """What it may write to."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    file = tmp_path_factory.mktemp("others") / "file"
    file.write_text("as it was")
    key = os.getpid()
    segment = LIBC.shmget(key, 4096, 0o1600)
    master, terminal = pty.openpty()
    with (
        subprocess.Popen(
            [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1
        ) as victim,
        socket.create_server(("127.0.0.1", 0)) as service,
        socket.socket(socket.AF_UNIX) as named,
    ):
        named.bind(f"\0{key}")
        named.listen()
        victim.stdout.readline()  # its memory is that of Python now
        yield Surroundings(file, victim.pid, os.ttyname(terminal), service.getsockname()[1], key)
        victim.kill()
    LIBC.shmctl(segment, 0, None)
    os.close(master)
    os.close(terminal)


# --------------------------------------------------------------------------- what is attempted

Attempt = Callable[[Surroundings], object]


def call(x86_64: int, aarch64: int, *arguments: int | bytes) -> int:
    """Make a system call by its numbers; integers are passed in 64 bits."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(LIBC.syscall(ctypes.c_long({"x86_64": x86_64, "aarch64": aarch64}[MACHINE]), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), "system call")
    return result


def refused_if(condition: bool) -> None:
    if condition:
        raise OSError(errno.EPERM, "a limit holds")


def read_memory(pid: int) -> None:
    buffer = ctypes.create_string_buffer(8)
    begin = int(Path(f"/proc/{pid}/maps").read_text().partition("-")[0], 16)
    here, there = struct.pack("PN", ctypes.addressof(buffer), 8), struct.pack("PN", begin, 8)
    call(310, 270, pid, here, 1, there, 1, 0)


def open_other_memory(pid: int) -> None:
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))


def trace(pid: int) -> None:
    call(101, 117, 0x4206, pid, 0, 0)  # PTRACE_SEIZE


def run_with_capabilities(_: Surroundings) -> None:
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    refused_if(int(re.findall(r"CapEff:\s*(\w+)", status)[0], 16) == 0)


def have_much_room(world: Surroundings) -> None:
    disk = os.statvfs(world.private)
    refused_if(disk.f_blocks * disk.f_frsize <= isolation.PRIVATE_BYTES)


def have_many_files(world: Surroundings) -> None:
    refused_if(0 < os.statvfs(world.private).f_files <= 1 << 16)


def number_many_processes(_: Surroundings) -> None:
    if not kernel.has_own_pid_max():
        raise OSError(errno.ENOSYS, "the limit is the machine's before Linux 6.14")
    refused_if(int(Path("/proc/sys/kernel/pid_max").read_text()) <= 4096)


def write_settings(_: Surroundings) -> None:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


def connect(world: Surroundings) -> None:
    socket.create_connection(("127.0.0.1", world.port), timeout=5).close()


def connect_by_name(world: Surroundings) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{world.segment}")


def make_and_remove(make: Callable[[Path], object]) -> Attempt:
    def attempt(world: Surroundings) -> None:
        new = world.file.with_name("new")
        make(new)
        new.unlink()

    return attempt


def lead_a_group(_: Surroundings) -> None:
    """In a child: to ask for an own process group seems to succeed, and does nothing."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os._exit(int(os.getpgrp() == os.getpid()))
    if os.waitpid(child, 0)[1] == 0:
        raise OSError(errno.EACCES, "no group was made")


def own_pipe(command: int, value: int) -> Attempt:
    return lambda _: fcntl.fcntl(os.pipe()[0], command, value)


def own_file(command: int, value: int) -> Attempt:
    def attempt(world: Surroundings) -> None:
        with (world.private / "own").open("w") as file:
            fcntl.fcntl(file, command, value)

    return attempt


def clone_signalling(number: int) -> Attempt:
    """A process whose end sends its parent a signal."""

    def attempt(_: Surroundings) -> None:
        child = call(56, 220, number, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0x40000000)  # __WALL

    return attempt


# --------------------------------------------------------------------------- the protections


def nothing(private: Path, lifeline: int) -> None: ...


def in_own_namespace(private: Path, lifeline: int) -> None:
    """With privileges that change nothing outside."""
    kernel.unshare(kernel.NEW_USER | kernel.NEW_MOUNTS)


def restricted(private: Path, lifeline: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    limits.restrict(HOST_BYTES)


@dataclass(frozen=True)
class Mechanism:
    enter: Callable[[Path, int], None]
    refusals: frozenset[str]
    """Errors that are a refusal."""
    missing: str = ""
    """Why this machine cannot show it."""


def _reason(name: str) -> str:
    return "; ".join(reason for reason in FOUND.refused if reason.startswith(name))


_REFUSALS = frozenset({"EACCES", "EPERM", "EROFS"})
MECHANISMS = {
    "namespaces": Mechanism(
        entering(Isolation(namespaces=True)),
        _REFUSALS | {"ESRCH", "ENOENT", "ENOSPC", "ENETUNREACH", "ECONNREFUSED"},
        _reason("namespaces"),
    ),
    "namespaces on a GPU": Mechanism(
        entering(Isolation(namespaces=True), gpu=True),
        _REFUSALS | {"ENETUNREACH", "ECONNREFUSED"},
        _reason("namespaces"),
    ),
    "Landlock": Mechanism(entering(Isolation(landlock=FOUND.landlock)), _REFUSALS, _reason("Landlock")),
    "seccomp": Mechanism(entering(Isolation(seccomp=True)), frozenset({"EACCES"}), _reason("seccomp")),
    "limits": Mechanism(restricted, frozenset({"EPERM", "ENOMEM", "EFBIG"})),
}


@dataclass(frozen=True)
class Protection:
    what: str
    attempt: Attempt
    by: tuple[str, ...]
    """Mechanisms, each of which refuses it."""
    without: Callable[[Path, int], None] = nothing
    """Where it succeeds."""
    landlock: int = 1
    """The first version of Landlock that refuses it."""


_SPACES, _ON_GPU, _LANDLOCK, _SECCOMP, _LIMITS = ((name,) for name in MECHANISMS)

PROTECTIONS = [
    # files
    Protection("write a file", lambda w: w.file.open("r+").close(), (*_SPACES, *_ON_GPU, *_LANDLOCK)),
    Protection("shorten a file", lambda w: os.truncate(w.file, 0), (*_SPACES, *_LANDLOCK), landlock=3),
    Protection("make a file", make_and_remove(Path.touch), (*_SPACES, *_LANDLOCK)),
    Protection("change a mode", lambda w: w.file.chmod(0o600), _SPACES),
    Protection("change a time", lambda w: os.utime(w.file), _SPACES),
    Protection("make a link", make_and_remove(lambda new: new.symlink_to("x")), (*_SPACES, *_LANDLOCK)),
    Protection("have more than 1 GiB", have_much_room, _SPACES),
    Protection("have more than 65536 files", have_many_files, _SPACES),
    Protection("mount", lambda w: kernel.bind(w.private, w.private), _SPACES, in_own_namespace),
    Protection("run a program with capabilities", run_with_capabilities, _SPACES, in_own_namespace),
    Protection("nested user namespace", lambda _: call(272, 97, kernel.NEW_USER), _SPACES),
    Protection("change the kernel's settings", write_settings, (*_SPACES, *_ON_GPU, *_LANDLOCK)),
    # devices
    Protection(
        "read a terminal",
        lambda w: os.close(os.open(w.terminal, os.O_RDONLY | os.O_NOCTTY)),
        (*_SPACES, *_LANDLOCK),
    ),
    Protection(
        "write to a terminal",
        lambda w: os.close(os.open(w.terminal, os.O_WRONLY | os.O_NOCTTY)),
        (*_SPACES, *_LANDLOCK),
    ),
    Protection(
        "make a device",
        lambda w: os.mknod(w.private / "disk", 0o60600, os.makedev(7, 0)),
        (*_SPACES, *_LANDLOCK),
    ),
    # other processes
    Protection("read memory", lambda w: read_memory(w.victim), (*_SPACES, *_ON_GPU, *_LANDLOCK)),
    Protection("open memory", lambda w: open_other_memory(w.victim), (*_SPACES, *_ON_GPU, *_LANDLOCK)),
    Protection("trace", lambda w: trace(w.victim), (*_SPACES, *_ON_GPU, *_LANDLOCK, *_SECCOMP)),
    Protection("signal", lambda w: os.kill(w.victim, 0), (*_SPACES, *_LANDLOCK, *_SECCOMP), landlock=6),
    Protection(
        "change limits", lambda w: resource.prlimit(w.victim, resource.RLIMIT_CORE), (*_SPACES, *_SECCOMP)
    ),
    Protection(
        "change a priority", lambda w: os.setpriority(os.PRIO_PROCESS, w.victim, 5), (*_SPACES, *_SECCOMP)
    ),
    Protection("change an affinity", lambda w: os.sched_setaffinity(w.victim, {0}), (*_SPACES, *_SECCOMP)),
    Protection("number more than 4096 processes", number_many_processes, _SPACES),
    Protection(
        "start more than 4096 processes",
        lambda _: refused_if(resource.getrlimit(resource.RLIMIT_NPROC)[0] in range(4097)),
        (*_SPACES, *_ON_GPU),
    ),
    # the kernel and the network
    Protection("System V memory", lambda w: call(29, 194, w.segment, 0, 0), (*_SPACES, *_SECCOMP)),
    Protection("connect", connect, (*_SPACES, *_ON_GPU, *_SECCOMP)),
    Protection("connect by a name", connect_by_name, (*_SPACES, *_ON_GPU, *_LANDLOCK, *_SECCOMP), landlock=6),
    # calls that seccomp refuses whatever their arguments are: those here do nothing
    *(
        Protection(name, lambda _, numbers=numbers, arguments=arguments: call(*numbers, *arguments), _SECCOMP)
        for name, numbers, *arguments in (
            ("tkill", (200, 130), 1 << 30, 0),
            ("tgkill", (234, 131), 1 << 30, 1 << 30, 0),
            ("rt_sigqueueinfo", (129, 138), 1 << 30, 0, 0),
            ("rt_tgsigqueueinfo", (297, 240), 1 << 30, 1 << 30, 0, 0),
            ("pidfd_send_signal", (424, 424), -1, 0, 0, 0),
            ("setsid", (112, 157)),
            ("semget", (64, 190), 0, 0, 0),
            ("msgget", (68, 186), 1 << 30, 0),
            ("mq_open", (240, 180), 0, 0, 0, 0),
            ("add_key", (248, 217), 0, 0, 0, 0, 0),
            ("request_key", (249, 218), 0, 0, 0, 0),
            ("keyctl", (250, 219), 1 << 30),
            ("socket", (41, 198), 1, 1, 0),
            ("io_uring_setup", (425, 425), 0, 0),
            ("timer_create", (222, 107), 1 << 30, 0, 0),
            ("memfd_create", (319, 279), 0, 0),
            ("memfd_secret", (447, 447), 1 << 30),
            ("setpriority of all", (141, 140), 2, 0, 0),
            ("ioprio_set of all", (251, 30), 3, 0, 0),
            ("sched_setattr", (314, 274), 1 << 30, 0, 0),
            ("sched_setparam", (142, 118), 1 << 30, 0),
            ("sched_setscheduler", (144, 119), 1 << 30, 0, 0),
            ("file_setattr", (469, 469), -1, 0, 0, 0, 0),
            ("prctl PDEATHSIG", (157, 167), 1, 18, 0, 0, 0),
        )
    ),
    Protection("setpgid", lead_a_group, _SECCOMP),
    Protection("SIGCONT to itself", lambda _: os.kill(os.getpid(), signal.SIGCONT), _SECCOMP),
    Protection("SIGCONT to its group", lambda _: os.kill(0, signal.SIGCONT), _SECCOMP),
    Protection(
        "SIGCONT to a thread",
        lambda _: signal.pthread_kill(threading.main_thread().ident, signal.SIGCONT),
        _SECCOMP,
    ),
    Protection("x32 calls", lambda _: call(0x40000000 + 39, 1 << 30), _SECCOMP),
    Protection("F_SETOWN", own_pipe(8, 0), _SECCOMP),
    Protection("F_SETOWN_EX", lambda _: fcntl.fcntl(os.pipe()[0], 15, struct.pack("ii", 1, 0)), _SECCOMP),
    Protection("F_SETSIG", own_pipe(10, signal.SIGCONT), _SECCOMP),
    Protection("F_SETLEASE", own_file(1024, fcntl.F_WRLCK), _SECCOMP),
    Protection("F_NOTIFY", lambda w: fcntl.fcntl(os.open(w.private, os.O_RDONLY), 1026, 2), _SECCOMP),
    Protection("FIOSETOWN", lambda _: fcntl.ioctl(socket.socketpair()[0], 0x8901, bytes(4)), _SECCOMP),
    Protection("SIOCSPGRP", lambda _: fcntl.ioctl(socket.socketpair()[0], 0x8902, bytes(4)), _SECCOMP),
    Protection(
        "FS_IOC_SETFLAGS",
        lambda w: fcntl.ioctl(os.open(w.private, os.O_RDONLY), 0x40086602, bytes(8)),
        _SECCOMP,
    ),
    Protection(
        "FS_IOC_FSSETXATTR",
        lambda w: fcntl.ioctl(os.open(w.private, os.O_RDONLY), 0x401C5820, bytes(28)),
        _SECCOMP,
    ),
    Protection("clone with SIGCONT", clone_signalling(signal.SIGCONT), _SECCOMP),
    # limits that hold everywhere
    Protection("memory", lambda _: mmap.mmap(-1, 2 * HOST_BYTES).close(), _LIMITS),
    Protection(
        "a large file", lambda w: (w.private / "large").open("w").truncate(limits.FILE_BYTES + 1), _LIMITS
    ),
    Protection(
        "a core dump", lambda _: refused_if(resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)), _LIMITS
    ),
    Protection("new privileges", lambda _: refused_if(LIBC.prctl(39, 0, 0, 0, 0) == 1), _LIMITS),
    Protection(
        "outlive the judge when memory is short",
        lambda _: refused_if(Path("/proc/self/oom_score_adj").read_text() == "1000\n"),
        _LIMITS,
    ),
]


def refuses(protection: Protection, by: str, world: Surroundings) -> None:
    """Check that one mechanism refuses it, and that it succeeds without."""
    mechanism = MECHANISMS[by]
    if mechanism.missing:
        pytest.skip(mechanism.missing)
    if by == "Landlock" and FOUND.landlock < protection.landlock:
        pytest.skip(f"Landlock {FOUND.landlock} here; {protection.landlock} refuses it")

    def attempt(private: Path) -> None:
        protection.attempt(Surroundings(**{**vars(world), "private": private}))

    isolated = inside(mechanism.enter, {"": attempt})[""]
    if isolated == "ENOSYS" and by == "namespaces":
        pytest.skip("this kernel cannot limit it")
    assert isolated in mechanism.refusals, f"{by} alone: {protection.what}: {isolated}"
    free = inside(protection.without, {"": attempt})[""]
    if free in mechanism.refusals or free == "ENOSYS":
        pytest.skip(f"this machine refuses it without isolation too: {free}")
    assert free == "ok" or by == "seccomp", f"without isolation: {protection.what}: {free}"


# --------------------------------------------------------------------------- what is no single attempt


def leaves_no_process(world: Surroundings) -> None:
    """In a new PID namespace a process ends with the first one."""
    if reason := MECHANISMS["namespaces"].missing:
        pytest.skip(reason)
    alive, held = os.pipe()

    def leave(_: Path) -> None:
        if os.fork() == 0:
            os.closerange(3, held)
            os.closerange(held + 1, 1 << 10)
            time.sleep(5)
            os._exit(0)

    assert inside(MECHANISMS["namespaces"].enter, {"": leave}) == {"": "ok"}
    os.close(held)
    ended = bool(select.select([alive], [], [], 0.2)[0])  # the other end is closed
    os.close(alive)
    assert ended, "a process that it started is still there"


def judge_is_not_dumpable(world: Surroundings) -> None:
    """Else every process of the user may read its memory."""

    def protect(private: Path, lifeline: int) -> None:
        LIBC.prctl(4, 1, 0, 0, 0)  # dumpable, whatever was tested before
        isolation.protect_judge()

    assert inside(protect, {"": lambda _: refused_if(LIBC.prctl(3, 0, 0, 0, 0) == 0)}) == {"": "EPERM"}


def confined(look: Callable[[int, int], object]) -> tuple[bytes, int, int]:
    """What a confined process writes to its connection, its number, and the judge's end of its lifeline."""
    connection, receiver = os.pipe()[::-1]
    lifeline, kept = os.pipe()
    with Path(os.devnull).open("w") as output:
        child = os.fork()
        if child == 0:
            limits.confine(connection, output.fileno(), lifeline, None)
            os.write(connection, str(look(connection, lifeline)).encode())
            signal.pause()
    os.close(connection)
    os.close(lifeline)
    said = os.read(receiver, 1 << 10)
    os.close(receiver)
    return said, child, kept


def keeps_no_descriptor(world: Surroundings) -> None:
    """One of the judge's or of another worker's."""

    def others(connection: int, lifeline: int) -> set[int]:
        descriptors = {int(link.name) for link in Path("/proc/self/fd").iterdir() if link.exists()}
        return descriptors - {0, 1, 2, connection, lifeline}

    said, child, kept = confined(others)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(kept)
    assert said == b"set()"


def has_its_own_session(world: Surroundings) -> None:
    said, child, kept = confined(lambda *_: os.getsid(0) == os.getpgid(0) == os.getpid())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(kept)
    assert said == b"True"


def ends_with_the_judge(world: Surroundings) -> None:
    _, child, kept = confined(lambda *_: "ready")
    os.close(kept)
    end = time.monotonic() + 0.5
    while not (status := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.005)
    if not status[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status[0] == child, "it outlives the judge"


CHECKS: dict[str, Callable[[Surroundings], None]] = {
    f"{by}: {protection.what}": functools.partial(refuses, protection, by)
    for protection in PROTECTIONS
    for by in protection.by
}
CHECKS |= {
    "namespaces: leave a process": leaves_no_process,
    "judge: dumpable": judge_is_not_dumpable,
    "limits: descriptors of others": keeps_no_descriptor,
    "limits: own session": has_its_own_session,
    "limits: outlive the judge": ends_with_the_judge,
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_mechanism_alone(name: str, world: Surroundings) -> None:
    CHECKS[name](world)


# --------------------------------------------------------------------------- seeded bugs

BUGS = list(mutations_in(Path(__file__).parent / "mutations" / "sandbox.diff"))


def seed(bug: Mutation) -> None:
    """Put a bug into this process's modules."""
    for name in ("kernel", "limits", "isolation"):
        module = importlib.import_module(f"compare.sandbox.{name}")
        text = (ROOT / "compare" / "sandbox" / f"{name}.py").read_text()
        if bug.file.endswith(f"/{name}.py"):
            text = mutated(text, bug)
        exec(compile(text, str(module.__file__), "exec"), vars(module))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.label}: {bug.bug}")
def test_a_seeded_bug_is_noticed(bug: Mutation, world: Surroundings) -> None:
    """In a forked process, which has the bug to itself."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        result = "no check noticed it"
        try:
            seed(bug)
            CHECKS[bug.sign](world)
        except AssertionError as error:
            result = f"noticed: {error}"
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(sender, result.encode()[:4000])
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as results:
        if not select.select([results], [], [], 20)[0]:
            os.kill(child, signal.SIGKILL)
        result = results.read()
    os.waitpid(child, 0)
    if result.startswith("Skipped:"):
        pytest.skip(result)
    assert result.startswith("noticed: "), result


def test_every_mechanism_has_seeded_bugs() -> None:
    assert {bug.label.replace("-", " ") for bug in BUGS} == {name.partition(":")[0] for name in CHECKS}
    assert {bug.sign for bug in BUGS} <= CHECKS.keys()
