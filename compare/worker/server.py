"""The server that workers are forked from: it has imported everything and never used a GPU.

The command forks it from itself, right after its own import of PyTorch.  Any other process, such as a
notebook's, may have initialised CUDA: there it is a new Python, which takes two seconds to import PyTorch.
A command that runs many others has them forked too, each with servers of its own.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec import Struct

from compare import registry
from compare.model.op import Implementation, UsageError
from compare.sandbox import kernel, scratch
from compare.sandbox.environment import kept_variables
from compare.sandbox.isolation import Hidden, Isolation
from compare.sandbox.limits import close_all_but
from compare.worker.channel import Channel, readable

_MODULES = ("torch", "numpy", "triton", "cuda_impl.early", "compare.worker.main")
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
_DESCRIPTORS = 256
"""Five for each row, and those of files and libraries."""
_NUMBER = struct.Struct("=i")
_NUMBERS = 2
"""A process's number, then its exit code."""
_UNKNOWN = 255
"""Exit code of a process whose server was killed."""
_INTERRUPTED = 3
"""Exit status of a command that was interrupted, as the command line has it."""


class Order(Struct, frozen=True, tag=True):
    """How a worker runs."""

    cwd: str
    host_bytes: int | None
    interpreted: bool | None = None
    """Whether Triton interprets kernels; None: as `TRITON_INTERPRET` says."""
    isolation: Isolation | None = None
    private: str = ""
    hidden: Hidden = ()


class Command(Struct, frozen=True, tag=True):
    """A judge of its own: a module whose ``main`` takes a command line's words."""

    module: str
    words: tuple[str, ...]
    environment: dict[str, str]


class Again(Struct, frozen=True, tag=True):
    """Another server with what this one has imported."""


class Forked:
    """A process that the server forks.

    Args:
        status: a pipe through which the server tells its process number, and its exit code when it has ended.
    """

    def __init__(self, status: int) -> None:
        self._status = status
        self._lock = threading.Lock()
        """Callers and shutdown may both wait for its end, in two threads."""
        self._numbers: list[int | None] = []

    @property
    def pid(self) -> int:
        """Its number.

        Raises:
            OSError: the server was killed.
        """
        pid = self._number(0)
        if pid is None:
            raise OSError("the server of worker processes was killed")
        return pid

    def _number(self, index: int) -> int | None:
        """A number of the pipe, waited for; None: the server was killed."""
        with self._lock:
            while len(self._numbers) <= index:
                number = os.read(self._status, _NUMBER.size)
                self._numbers.append(int(_NUMBER.unpack(number)[0]) if number else None)
                if len(self._numbers) == _NUMBERS:
                    os.close(self._status)
        return self._numbers[index]

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative if a signal killed it; None if it still runs after ``seconds``."""
        self._number(0)
        if len(self._numbers) < _NUMBERS and not readable(self._status, seconds):
            return None
        code = self._number(1)
        return _UNKNOWN if code is None else code

    def signal_group(self, number: signal.Signals) -> None:
        """Signal all processes of its group, or itself before it leads one."""
        with suppress(ProcessLookupError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)

    def forget(self) -> None:
        """Wait for neither its number nor its end."""
        with self._lock:
            os.close(self._status)
            self._numbers += [None] * _NUMBERS

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.wait(0.0) is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class _Server:
    """The judge's end of a server."""

    channel: Channel
    pid: int | None = None
    """None: it is no child of this process."""

    @property
    def ended(self) -> bool:
        if self.pid is None:
            return readable(self.channel.fileno(), 0.0)  # it never writes
        try:
            return os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:  # something in a notebook waited for it
            return True


_lock = threading.Lock()
_running: dict[bool, _Server] = {}
"""By whether Triton interprets kernels: that is decided when it is imported."""
forked_here = False
"""Whether this process is a server's fork, that runs a command: it has imported modules and done no more."""


def likely_cpu(device: str) -> bool:
    """Whether ``--device`` will mean a CPU, without initialising CUDA; False where that is not known."""
    if device == "auto":
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        return hidden or not any(Path(file).exists() for file in _GPU_FILES)
    return device == "cpu"


def allow_descriptors() -> None:
    """Raise this process's limit to what a run may need.

    Raises:
        UsageError: the limit may not be raised that far.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < _DESCRIPTORS:
        raise UsageError(
            f"this process may open {hard} files at a time ('ulimit -Hn' shows it), and a run needs up to "
            f"{_DESCRIPTORS}. Start it from a new shell, or have an administrator raise the limit"
        )
    if resource.RLIM_INFINITY != soft < _DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))


def start(
    ops: Sequence[str] = (),
    *,
    commands: Sequence[str] = (),
    from_here: bool = False,
    interpreted: bool | None = None,
) -> _Server:
    """The server, started unless it is running.

    Args:
        ops: it imports their modules, if it is not running yet.
        commands: so it does the modules of commands that it will fork.
        from_here: fork it from this process, which has imported PyTorch and not used it.
        interpreted: as of `Order`.
    """
    if interpreted is None:
        interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    with _lock:
        if interpreted in _running and _running[interpreted].ended:
            _running.pop(interpreted).channel.close()
        if interpreted not in _running:
            modules = [*_MODULES, *commands, *(module for op in ops for module in modules_of(op))]
            ours, theirs = socket.socketpair()
            # Later this process may have initialised CUDA.
            from_here = from_here and all(other.pid is None for other in _running.values())
            pid = _fork(theirs, modules) if from_here else _spawn(theirs, modules, interpreted)
            theirs.close()
            _running[interpreted] = _Server(Channel(ours), pid)
        return _running[interpreted]


@atexit.register
def _close() -> None:
    """Let the servers end."""
    while _running:
        _running.popitem()[1].channel.close()


def _spawn(theirs: socket.socket, modules: Sequence[str], interpreted: bool) -> int:
    """Start the server as a new Python; its process number."""
    # Python's own modules may come from the current folder first.
    setup = f"import os, sys; os.chdir({str(registry.ROOT)!r}); sys.path[:] = {sys.path!r}"
    setup += f"; sys.argv[:] = {sys.argv!r}"
    program = f"{setup}; from {__name__} import serve; serve({theirs.fileno()}, {modules!r})"
    os.set_inheritable(theirs.fileno(), True)
    no_stdin = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    arguments = [sys.executable, "-c", program]
    variables = kept_variables() | scratch.variables() | {"TRITON_INTERPRET": str(int(interpreted))}
    # Ctrl-C is for the judge: the server is in a session of its own.
    return os.posix_spawn(sys.executable, arguments, variables, file_actions=[no_stdin], setsid=True)


def _fork(theirs: socket.socket, modules: Sequence[str]) -> int:
    """Start the server as a fork of this process; its number."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the fork prints it too
    # An interrupt within the fork would leave a lock of logging's held.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    pid = os.fork()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if pid == 0:
        try:
            close_all_but(0, 1, 2, theirs.fileno())
            serve(theirs.fileno(), modules)
        finally:
            os._exit(0)
    return pid


def fork(order: Order, connection: int, output: int, lifeline: int) -> Forked:
    """Fork a process that runs `compare.worker.main.main`; returns at once.

    Args:
        order: how it runs.
        connection: its end of the channel.
        output: file for its stdout and stderr.
        lifeline: the read end of a pipe that closes when the judge exits.
    """
    return _send(order, start(interpreted=order.interpreted), connection, output, lifeline)


def fork_command(command: Command, output: int) -> Forked:
    """Fork a process that runs a command and leads a process group, with servers of its own.

    Args:
        command: what it runs.
        output: file for its stderr; what it prints to stdout is lost.
    """
    server, compiling = start(), start(interpreted=False)
    if compiling is server:
        return _send(command, server, output)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _send(Again(), compiling, theirs.fileno()).forget()
        return _send(command, server, output, ours.fileno())


def _send(order: Order | Command | Again, server: _Server, *descriptors: int) -> Forked:
    receiver, sender = os.pipe()
    try:
        with _lock:
            server.channel.send(msgspec.json.encode(order), (sender, *descriptors))
    finally:
        os.close(sender)
    return Forked(receiver)


def modules_of(op: str, impl: Implementation | None = None) -> list[str]:
    """Names of the modules with implementations of an op: what the worker of ``impl`` imports."""
    if impl is not None and impl.hidden:
        return ["triton_impl"]  # which completes Triton's interpreter
    names = [f"{package}.{op}" for package in registry.IMPLEMENTATION_PACKAGES]
    return [name for name in names if importlib.util.find_spec(name) is not None]


# --------------------------------------------------------------------------- inside the server


def serve(connection: int, modules: Sequence[str]) -> None:
    """Import modules, then fork a process for each order, until the judge closes the connection."""
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C, and the end of the terminal, are for the judge
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for module in modules:
        with suppress(Exception):  # a worker that needs it reports it
            importlib.import_module(module)
    channel = Channel(socket.socket(fileno=connection), from_judge=True)
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    statuses: dict[int, int] = {}
    while True:
        poll = select.poll()
        for descriptor in (channel.fileno(), woken):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll()]
        if woken in ready:
            os.read(woken, 4096)
            _reap(statuses)
        if channel.fileno() in ready:
            try:
                message = channel.receive()
            except EOFError:
                return
            assert message is not None
            status, *descriptors = channel.descriptors
            pid = os.fork()
            if pid == 0:
                _run(message, descriptors)
            _tell(status, pid)
            statuses[pid] = status
            for descriptor in descriptors:
                os.close(descriptor)
            channel.descriptors.clear()


def _reap(statuses: dict[int, int]) -> None:
    """Tell the exit codes of processes that have ended."""
    for pid in [*statuses]:
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            _tell(status := statuses.pop(pid), os.waitstatus_to_exitcode(code))
            os.close(status)


def _tell(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the judge no longer wants to know
        os.write(status, _NUMBER.pack(number))


def _run(message: bytes, descriptors: Sequence[int]) -> NoReturn:
    """In the fork: carry out an order, and end."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        order = msgspec.json.decode(message, type=Order | Command | Again)
        close_all_but(0, 1, 2, *descriptors)
        if isinstance(order, Again):
            serve(descriptors[0], ())
            code = 0
        elif isinstance(order, Command):
            code = _judge(order, *descriptors)
        else:
            _work(order, *descriptors)
            code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _work(order: Order, connection: int, output: int, lifeline: int) -> None:
    from compare.worker.main import main  # start-up: the judge needs none of it

    os.chdir(order.cwd)
    box = (order.isolation, Path(order.private), order.hidden) if order.isolation else None
    main(connection, output, lifeline, order.host_bytes, box)


def _judge(command: Command, output: int, *compiling: int) -> int:
    """Run a command; its exit status.

    Args:
        command: what to run.
        output: as of `fork_command`.
        compiling: the channel to a server without Triton's interpreter.
    """
    global _lock, forked_here
    os.setsid()
    kernel.end_with_parent()  # the server ends with the judge that asked for this
    os.chdir(registry.ROOT)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in ((nothing, 0), (nothing, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.environ.clear()
    os.environ.update(command.environment)
    _lock, forked_here = threading.Lock(), True  # the other was held when the server was forked
    for each in compiling:
        _running[False] = _Server(Channel(socket.socket(fileno=each)))
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        status = int(importlib.import_module(command.module).main(command.words))
    except KeyboardInterrupt:  # before there is anything that could answer it
        status = _INTERRUPTED
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _close()
    return status
