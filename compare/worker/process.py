"""The judge's half: starts a worker process, sends requests, and reports how the worker ended.

Workers are forked from a server that has imported everything and never used a GPU, so one starts in
milliseconds.  Answers are JSON of limited size, read as data only.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from compare.model.op import UsageError
from compare.model.result import Options
from compare.sandbox import isolation, limits, scratch
from compare.sandbox.environment import kept_variables
from compare.sandbox.words import how_it_ended, printable
from compare.worker import late, messages, server
from compare.worker.channel import Channel, Malformed
from compare.worker.messages import Answer, AnswerT, WorkerRequest
from compare.worker.parallel import waited_s

PRINTED_BYTES = 1 << 20
"""Most output of a worker, in bytes."""

MOST_OUT_OF_MEMORY = 2
"""Without a GPU a user's implementation is ended after this many times: to fill all memory takes long."""

_LOOK_S = 0.1
"""Interval at which a busy worker is checked."""
_LONGEST_ERROR = 2000
_QUOTED = 300
"""Characters of a worker's output that are quoted."""

_FROM_OUTSIDE = tuple(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of a process that another may have killed, or the kernel where memory runs out."""

_SHARE_FOR_LOCKS = 0.8
"""Of the time limit: then the row names the lock of a build, and not the step alone."""


class Raised(Exception):
    """The implementation raised; its worker lives on."""

    def __init__(self, name: str, text: str, where: str = "") -> None:
        super().__init__(text)
        self.name = name
        """Name of the exception's type."""
        self.where = where
        """``my_softmax.py:31``: the line of its file; empty if unknown."""


class NotLoaded(Exception):
    """A user's file cannot be loaded; the text is a whole sentence."""


class Ended(Exception):
    """The worker has exited or was ended; the text is a whole sentence that says why."""

    final = True
    """Whether starting another worker for the next case is useless."""
    retry = False
    """Whether something other than its code may have ended it: another worker is tried, once."""
    by_judge = False
    """Whether an error of the judge's own ended it."""
    late = False
    """Whether a step took too long."""


class Worker:
    """A process that holds one implementation.

    Args:
        isolated: it runs a user's file. While it has no request it is stopped: it cannot work ahead, or
            disturb another row's samples.
        interpreted: False: Triton is imported without its interpreter, on a CPU too.
        hidden: what an isolated one cannot read.
    """

    def __init__(
        self,
        who: str,
        device: torch.device,
        timeout_s: float = Options.timeout_s,
        *,
        isolated: bool = False,
        interpreted: bool | None = None,
        hidden: isolation.Hidden = (),
    ) -> None:
        self.who, self.device, self.timeout_s = who, device, timeout_s
        self._ended: Ended | None = None
        self._ending = threading.RLock()
        """Callers and shutdown may both observe, in two threads, that the worker has exited."""
        self._busy = False
        self._out_of_memory = 0
        self._waiting: list[tuple[str, WorkerRequest[Any]]] = []
        """Requests whose answers were not received yet, by number."""
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._private = scratch.private_folder() if isolated else None
        """Where it may write; None: everywhere."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", ceil(timeout_s), 0))
        self._channel = Channel(ours)
        their_end, lifeline = os.pipe()
        self._lifeline = os.fdopen(lifeline, "wb", buffering=0)
        host_bytes = limits.HOST_BYTES if device.type == "cpu" else None
        order = server.Order(str(Path.cwd()), host_bytes, interpreted)
        if self._private is not None:
            order = structs.replace(
                order, isolation=isolation.found(), private=str(self._private), hidden=hidden
            )
        self._process = server.fork(order, theirs.fileno(), self._printed.fileno(), their_end)
        theirs.close()
        os.close(their_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._ended is None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it needs of this process's."""
        variables = kept_variables() | scratch.variables()
        variables |= {"COMPARE_LOCK_S": f"{_SHARE_FOR_LOCKS * self.timeout_s:g}"}
        return variables if self._private is None else variables | isolation.environment(self._private)

    def ask(self, request: WorkerRequest[AnswerT], step: str = "") -> AnswerT:
        """Send a request and wait for the answer.

        Args:
            request: one of `compare.worker.messages`.
            step: the request in a reader's words: ``building and the first call``.

        Raises:
            Raised, NotImplementedError, UsageError, MemoryError: as the implementation did.
            Ended: the worker exited, or was ended for what it did.
        """
        self.send(request)
        answer: AnswerT = self.receive(step)
        return answer

    def send(self, request: WorkerRequest[Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request without waiting; `receive` returns the answers in the order of the requests."""
        if self._ended is not None:
            raise self._ended
        if not self._waiting and not self._channel.empty:
            raise self._breach("a message that was not asked for")
        number = secrets.token_hex(8)
        message = messages.encode(messages.NumberedRequest(number, request))
        self._signal_idle(signal.SIGCONT)
        self._waiting.append((number, request))  # before sending: Ctrl-C may come right after
        try:
            self._channel.send(message, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died("between two steps") from None
        except BlockingIOError:
            raise self.end(f"it read no request for {self.timeout_s:g} s (--timeout)") from None
        except Exception as error:
            raise self._failed("sending a request", error) from error

    def ask_back(self) -> None:
        """Request the shared memory back without waiting; `receive` waits.

        A worker that is still busy is ended.
        """
        if not self.alive:
            return
        if self._busy or self._waiting:
            self.end("it was interrupted")
        else:
            with suppress(Ended):
                self.send(messages.GiveBack())

    def receive(self, step: str = "") -> Any:
        """The answer to the oldest open request."""
        self._busy = True  # until the answer has come: Ctrl-C may come first
        number, request = self._waiting.pop(0)
        step = step or type(request).__name__.lower()
        answer = self._wait(step, request)
        self._busy = False
        if not self._waiting:
            self._signal_idle(signal.SIGSTOP)
        if answer.number != number:
            raise self._breach("an answer to another request")
        if answer.forked:
            raise self.end("it forked its process: an implementation may not do this")
        if answer.raised:
            self._raise(answer.raised, answer.lost, step)
        return answer.value

    def _raise(self, error: messages.Error, lost: str | None, step: str) -> None:
        name, text = error.name[:_QUOTED], error.text[:_LONGEST_ERROR]
        if os.environ.get("COMPARE_TRACEBACK"):
            print(error.trace, file=sys.stderr)
        if lost:
            first = text.strip().partition("\n")[0]
            raise self.end(f"{name} in {step}: {first}. It left its GPU context unusable ({lost[:_QUOTED]})")
        if error.kind == "unavailable":
            raise (UsageError if name == "UsageError" else NotImplementedError)(text)
        if error.kind == "memory":
            self._out_of_memory += 1
            of_host = self._private is not None and self.device.type == "cpu"
            if of_host and self._out_of_memory >= MOST_OUT_OF_MEMORY:
                first = text.strip().partition("\n")[0]
                raise self.end(
                    f"it ran out of memory {self._out_of_memory} times, at last in {step}: {first}"
                )
            raise MemoryError(text)
        raise Raised(name, text, error.where[:_QUOTED])

    def _wait(self, step: str, request: WorkerRequest[Any]) -> Answer:
        until, extended = time.monotonic() + self.timeout_s, False
        try:
            while (
                message := self._channel.receive(min(_LOOK_S, max(0.0, until - time.monotonic())))
            ) is None:
                if time.monotonic() > until and not extended:
                    extended = True
                    until += min(self.timeout_s, waited_s(self.pid))
                self._check_limits(step, until, request)
        except (EOFError, ConnectionResetError):
            raise self._died(step) from None
        except Malformed as error:
            raise self._breach(str(error)) from None
        except Ended:
            raise
        except Exception as error:
            raise self._failed(step, error) from error
        try:
            return messages.read_answer(message, request)
        except (TypeError, ValueError) as error:  # of nothing but what the worker has written
            raise self._breach(str(error)) from None

    def _check_limits(self, step: str, until: float, request: WorkerRequest[Any]) -> None:
        """End it if it prints too much, or takes too long."""
        if os.fstat(self._printed.fileno()).st_size > PRINTED_BYTES:
            raise self.end(f"it printed more than {PRINTED_BYTES >> 20} MB in {step}")
        if time.monotonic() > until:
            limit = f"it took longer than {self.timeout_s:g} s, the limit for {step} (--timeout)"
            ended = self.end(limit + late.place(self.pid, self._channel, request))
            ended.late = True
            raise ended

    def _breach(self, what: str) -> Ended:
        return self.end(f"it wrote into the pipe between its process and the judge's: {what[:_QUOTED]}")

    def _failed(self, step: str, error: Exception) -> Ended:
        """End it for an error of the judge's own, which leaves its answers out of step."""
        running = self._ended is None  # else the judge has closed it, in another thread
        ended = self.end(f"the judge failed in {step}: {type(error).__name__}: {error}. Run it again")
        ended.final, ended.retry, ended.by_judge = False, running, running
        return ended

    def _died(self, step: str) -> Ended:
        running, code = self._ended is None, self._process.wait(2.0)
        how = "its process closed the connection" if code is None else how_it_ended(code)
        ended = self.end(f"{how} in {step}")
        ended.final, ended.retry = False, running and code in _FROM_OUTSIDE
        return ended

    def end(self, why: str) -> Ended:
        """End the worker; returns the exception to raise, with the reason that its row shows."""
        with self._ending:
            self._signal()
            self._bury()
            said = "" if self._printed.closed else self._last_words()
        self._ended = Ended(f"{why}; the last it printed: {said}" if said else why)
        return self._ended

    def abandon(self) -> None:
        """End the worker without waiting; `close` waits."""
        if self._ended is None:
            self._ended = Ended("its worker was closed")
            self._signal()

    def close(self) -> None:
        """End the worker and wait for it."""
        self.abandon()
        with self._ending:
            if not self._printed.closed:
                self._bury()
                self._printed.close()
                if self._private is not None:
                    scratch.remove(self._private)

    def _signal_idle(self, number: signal.Signals) -> None:
        """Stop a user's worker and all that it has started, or let it go on."""
        if self._private is not None and self._ended is None:
            with suppress(OSError):
                os.killpg(self.pid, number)

    def _signal(self) -> None:
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()

    def _bury(self) -> None:
        self._process.wait(10.0)
        self._channel.close()
        self._lifeline.close()

    def _last_words(self) -> str:
        size = os.fstat(self._printed.fileno()).st_size
        text = os.pread(self._printed.fileno(), 4 * _QUOTED, max(0, size - 4 * _QUOTED))
        words = " ".join(printable(text.decode(errors="replace")).split())
        return words if len(words) <= _QUOTED else f"... {words[-_QUOTED:]}"
