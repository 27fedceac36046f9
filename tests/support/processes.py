"""Python as a user starts it: in the project's folder, and without Triton's interpreter.

Importing PyTorch takes two seconds. So a server process that has imported only PyTorch forks for every call;
a test of the start itself starts a new process. This file is the server: it imports nothing of the project.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[2]
COMPILING = ("aot", "pipeline")
"""Commands that never run Triton's interpreter."""
NO_PROGRAM = "launches . kernels|calls PyTorch's|needs sm_|. outputs|of its kernel is a "
"""Reasons for an op's implementation not to become a program of one kernel."""


def python(*words: object, ready: str = "torch", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words.

    Args:
        words: a file, or ``-m`` and a module, or ``-c`` and a program; and arguments.
        ready: ``torch`` is imported; or ``triton``, ready to compile, and unfit for its interpreter.
        environment: in addition to this process's.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        server = _server(os.getpid(), ready)
        _begin(server, words, environment, out.fileno(), err.fileno())
        status = _number(server)
        out.seek(0)
        err.seek(0)
        said = out.read().decode(), err.read().decode()
    return subprocess.CompletedProcess([str(word) for word in words], status, *said)


@contextmanager
def started(*words: object, ready: str = "torch") -> Iterator[tuple[int, TextIO]]:
    """`python`, still running: its process, and what it prints. No other may be started meanwhile.

    It is killed at the end, if that has not happened yet.
    """
    receiver, sender = os.pipe()
    with os.fdopen(receiver) as stdout:
        server = _server(os.getpid(), ready)
        pid = _begin(server, words, {}, sender, 2)
        os.close(sender)
        try:
            yield pid, stdout
        finally:
            if not select.select([server], [], [], 0)[0]:  # its process number is still its own
                os.kill(pid, signal.SIGKILL)
            _number(server)


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m compare``."""
    ready = "triton" if words and words[0] in COMPILING else "torch"
    return python("-m", "compare", *words, ready=ready, **environment)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether the condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def called_with(token: str) -> int:
    """The process with this word among its arguments, as it is numbered here; waits for it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has exited
                if token.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                    return int(folder.name)
        time.sleep(0.05)
    raise AssertionError("it was not started")


def stat(pid: int) -> list[str]:
    """A process's state, parent, group and so on, as `/proc` has them; none if it has exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return fields if fields[0] != "Z" else []  # a zombie: exited, not waited for yet


def running(pid: int) -> bool:
    """Whether a process exists and has not exited."""
    return bool(stat(pid))


def descendants(pid: int) -> list[int]:
    """All processes that a process has started, directly or not."""
    every = {int(folder.name): stat(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")}
    parents = {each: int(fields[1]) for each, fields in every.items() if fields}
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {pid})


def _begin(
    server: socket.socket, words: Sequence[object], environment: Mapping[str, str], out: int, err: int
) -> int:
    """Have a process forked; returns its number. Its exit status comes from ``server`` later."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    request = {"words": [str(word) for word in words], "environment": {**inherited, **environment}}
    message = json.dumps(request).encode()
    socket.send_fds(server, [struct.pack("!I", len(message))], [out, err])
    server.sendall(message)
    return _number(server)


@functools.cache
def _server(of_process: int, ready: str) -> socket.socket:
    """The connection to this process's own; it ends when that is closed."""
    mine, theirs = socket.socketpair()
    with theirs:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), ready],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=ROOT,
        )
    atexit.register(_end, of_process, mine, process)
    return mine


def _end(of_process: int, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    if os.getpid() == of_process:  # and not a process forked from it
        connection.close()
        process.wait()


def _number(connection: socket.socket) -> int:
    (number,) = struct.unpack("!i", _received(connection, 4))
    return int(number)


def _received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


# --------------------------------------------------------------------------- the process that forks


def _next_child(connection: socket.socket) -> dict[str, Any]:
    """Fork for every request: returns in each child, with its request."""
    while True:
        head, fds, _, _ = socket.recv_fds(connection, 4, 2)
        if not head:
            os._exit(0)
        request: dict[str, Any] = json.loads(_received(connection, struct.unpack("!I", head)[0]))
        child = os.fork()
        if child == 0:
            connection.close()
            for fd, number in zip(fds, (1, 2), strict=True):
                os.dup2(fd, number)
                os.close(fd)
            return request
        for fd in fds:
            os.close(fd)
        connection.sendall(struct.pack("!i", child))
        _, status = os.waitpid(child, 0)
        connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))


def _run(words: list[str], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = [str(ROOT), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    import torch  # noqa: F401

    if sys.argv[2] == "triton":
        from triton.runtime.cache import triton_key

        triton_key()  # reads all of Triton, which takes longer than to import it

    _run(**_next_child(socket.socket(fileno=int(sys.argv[1]))))
