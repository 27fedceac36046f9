"""Where a worker is when its time is over: a signal ends its work with an error, whose place is told."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

from compare.worker import messages
from compare.worker.channel import Channel

SIGNAL = signal.SIGUSR1
_WAIT_S, _AGAIN_S = 3.0, 0.02
"""It takes several signals where a destructor loses the error, and until one meets a kernel on the CPU in its
own code."""
_STOPPED = "stopped at "
"""In the error of a kernel on the CPU: ``cuda_impl/host/fibers.cpp``."""
_QUOTED = 200


class TookTooLong(BaseException):
    """Raised in a worker, wherever it is; ``except Exception`` does not catch it."""


# --------------------------------------------------------------------------- in the worker


def ignore() -> None:
    """Have the signal change nothing: where a process only waits for others, or answers already."""
    signal.signal(SIGNAL, signal.SIG_IGN)


def prepare() -> None:
    """Have the signal raise `TookTooLong`."""
    signal.signal(SIGNAL, _raise)


def _raise(*_: object) -> None:
    raise TookTooLong("its time is over")


# --------------------------------------------------------------------------- in the judge


def place(pid: int, channel: Channel, request: messages.WorkerRequest[Any]) -> str:
    """``; it was at mine.py:14``: where a worker is that has not answered a request; empty: unknown.

    It has to be ended afterwards.
    """
    until, message = time.monotonic() + _WAIT_S, None
    with suppress(
        Exception
    ):  # of what the worker has written, or of one that has ended: it is late all the same
        while message is None and time.monotonic() < until:
            os.killpg(pid, SIGNAL)
            message = channel.receive(_AGAIN_S)
        raised = messages.read_answer(message, request).raised if message else None
        _, stopped, line = raised.text.partition(_STOPPED) if raised else ("", "", "")
        where = line if stopped else raised.where if raised and raised.name == TookTooLong.__name__ else ""
        return f"; it was at {where[:_QUOTED]}" if where else ""
    return ""
