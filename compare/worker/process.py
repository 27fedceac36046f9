"""The judge's half: a worker process, what is asked of it, and how it may end.

Workers are forked from a server that has imported everything and has never touched a GPU, so that one
starts in milliseconds.  What comes back is JSON of limited size, read as data only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection as connections
from multiprocessing import reduction
from typing import Any

import torch

from compare.sandbox import limits
from compare.sandbox.words import how_it_ended, printable
from compare.spec import Options, UsageError
from compare.worker import main, server
from compare.worker.memory import Memory

PRINTED_BYTES = 1 << 20
"""What a worker may print."""

_ANSWER_BYTES = 8 << 20
_LOOK_S = 0.1
"""How often a worker that is still busy is looked after."""
_QUOTED = 300

_STARTING = threading.Lock()
"""An exit code can be read once, and multiprocessing looks for those of all processes when it starts one."""


class Raised(Exception):
    """An implementation raised in its worker; the worker lives on."""

    def __init__(self, name: str, text: str, where: str = "") -> None:
        super().__init__(text)
        self.name = name
        """The type of what it raised."""
        self.where = where
        """``my_softmax.py:31``: the place in its file; empty where there is none."""


class Ended(Exception):
    """A worker is no more, or is not believed any more; the text is a whole sentence that says why."""

    final = True
    """Whether there is no use in starting another for the next case."""


class Worker:
    """A process that holds one implementation."""

    def __init__(self, who: str, device: torch.device, timeout_s: float = Options.timeout_s) -> None:
        self.who, self.device, self.timeout_s = who, device, timeout_s
        self._ended: Ended | None = None
        self._ending = threading.RLock()
        """Who asks it and who ends all may see that it is gone at the same time, in two threads."""
        self._busy = False
        self._waiting: list[tuple[str, str]] = []
        """Requests sent ahead, whose answers nobody has taken yet: number and what was asked."""
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        server.start()
        self._connection, theirs = multiprocessing.Pipe()
        their_end, self._lifeline = multiprocessing.Pipe(duplex=False)
        host_bytes = limits.HOST_BYTES if device.type == "cpu" else None
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(
            target=main.main, args=(theirs, their_end, host_bytes), name=who, daemon=True
        )
        with _STARTING, _ctrl_c_held_back():
            self._process.start()
        theirs.close()
        their_end.close()
        reduction.send_handle(self._connection, self._printed.fileno(), self.pid)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._ended is None

    def ask(self, what: str, step: str = "", timeout_s: float | None = None, **arguments: Any) -> Any:
        """Ask for one thing and wait for it.

        Args:
            what: a method of `compare.worker.main._Work`.
            step: what that is for, in a reader's words: ``building and the first call``.
            timeout_s: the limit; the worker's own, if not given.
            arguments: the method's.

        Raises:
            Raised, NotImplementedError, UsageError, MemoryError: as the implementation did.
            Ended: the worker is gone, or was ended for what it did.
        """
        self.send(what, **arguments)
        return self.receive(step, timeout_s)

    def send(self, what: str, **arguments: Any) -> None:
        """Ask without waiting; `receive` takes the answers in the order of the questions."""
        if self._ended is not None:
            raise self._ended
        if not self._waiting and self._connection.poll(0):
            self._breach()
        number = secrets.token_hex(8)
        message = {"number": number, "do": what, "with": arguments}
        self._waiting.append((number, what))  # before it is sent: Ctrl-C may come as soon as it is
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError:
            raise self._died("between two steps") from None

    def share(self, name: str, memory: Memory) -> None:
        """Give the worker memory under a name."""
        self.send("view", name=name, memory=memory.as_json())
        memory.send(self._connection, self.pid)
        self.receive("taking its inputs")

    def ask_back(self, names: Sequence[str]) -> None:
        """Have it give back memory that was shared under these names, without waiting; `receive` does.

        From one that is busy, for whatever reason, it is taken together with its life.
        """
        if not self.alive:
            return
        if self._busy or self._waiting:
            self.end("it was interrupted")
        else:
            with suppress(Ended):
                self.send("leave", names=list(names))

    def receive(self, step: str = "", timeout_s: float | None = None) -> Any:
        """The answer to the oldest question that has none yet."""
        self._busy = True  # until an answer is there; Ctrl-C may come first
        number, what = self._waiting.pop(0)
        step = step or what
        answer = self._wait(step, self.timeout_s if timeout_s is None else timeout_s)
        self._busy = False
        if not isinstance(answer, dict) or answer.get("number") != number:
            self._breach()
        changed, did = answer.get("changed"), answer.get("did")
        if did:
            raise self.end(f"it {', '.join(map(str, did))}, which an implementation has no need to")
        if changed:
            raise self.end(
                f"it replaced {', '.join(map(str, changed))}: nothing that is measured with it can be trusted"
            )
        if "raised" in answer:
            self._raise(answer["raised"], answer.get("lost"), step)
        return answer.get("answer")

    def _raise(self, told: dict[str, str], lost: str | None, step: str) -> None:
        kind, name, text = told["kind"], told["name"], told["text"]
        if os.environ.get("COMPARE_TRACEBACK"):
            print(told["trace"], file=sys.stderr)
        if lost:
            first = text.strip().partition("\n")[0]
            raise self.end(f"{name} in {step}: {first}. It left its GPU context unusable ({lost})")
        if kind == "unavailable":
            raise (UsageError if name == "UsageError" else NotImplementedError)(text)
        if kind == "memory":
            raise MemoryError(text)
        raise Raised(name, text, told["where"])

    def _wait(self, step: str, timeout_s: float) -> Any:
        until = time.monotonic() + timeout_s
        waited: list[Any] = [self._connection, self._process.sentinel]
        while True:
            ready = connections.wait(waited, max(0.0, min(_LOOK_S, until - time.monotonic())))
            if self._connection in ready:
                break
            if ready:  # the process is gone; what it had still sent is there by now
                if self._connection.poll(0):
                    break
                raise self._died(step)
            if os.fstat(self._printed.fileno()).st_size > PRINTED_BYTES:
                raise self.end(f"it printed more than {PRINTED_BYTES >> 20} MB in {step}")
            if time.monotonic() > until:
                raise self.end(f"it took longer than {timeout_s:g} s, the limit for {step} (--timeout)")
        try:
            return printable(json.loads(self._connection.recv_bytes(_ANSWER_BYTES)))
        except (EOFError, ConnectionResetError):
            raise self._died(step) from None
        except (OSError, ValueError):
            self._breach()

    def _breach(self) -> None:
        raise self.end("it wrote into the pipe between its process and the judge's")

    def _died(self, step: str) -> Ended:
        code = self._join(2.0)
        how = "its process hung up" if code is None else how_it_ended(code)
        ended = self.end(f"{how} in {step}")
        ended.final = False
        return ended

    def end(self, why: str) -> Ended:
        """End it, for a reason that its row will show; the exception is for the caller to raise."""
        with self._ending:
            self._signal()
            self._bury()
            said = "" if self._printed.closed else self._last_words()
        self._ended = Ended(f"{why}; the last it printed: {said}" if said else why)
        return self._ended

    def abandon(self) -> None:
        """Have it end without waiting for that, as there is nothing more to ask; `close` waits."""
        if self._ended is None:
            self._ended = Ended("its worker was closed")
            self._signal()

    def close(self) -> None:
        """End it."""
        self.abandon()
        with self._ending:
            if not self._printed.closed:
                self._bury()
                self._printed.close()

    def _signal(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(Exception):
            self._process.kill()

    def _bury(self) -> None:
        self._join(10.0)
        self._connection.close()
        self._lifeline.close()

    def _join(self, timeout_s: float) -> int | None:
        """Its exit code, None while it lives."""
        until = time.monotonic() + timeout_s
        while True:
            with _STARTING:
                code = self._process.exitcode
            if code is not None or time.monotonic() > until:
                return code
            connections.wait([self._process.sentinel], max(0.0, until - time.monotonic()))

    def _last_words(self) -> str:
        size = os.fstat(self._printed.fileno()).st_size
        text = os.pread(self._printed.fileno(), 4 * _QUOTED, max(0, size - 4 * _QUOTED))
        words = " ".join(printable(text.decode(errors="replace")).split())
        return words if len(words) <= _QUOTED else f"... {words[-_QUOTED:]}"


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """It takes effect at the end: a process that is told half of how to start complains on the terminal."""
    if threading.current_thread() is not threading.main_thread():  # which alone is ever interrupted
        yield
        return
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
