"""Ctrl-C that waits until results are saved, as it would lose them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

_saving: ContextVar[ExitStack | None] = ContextVar("saving", default=None)


@contextmanager
def saving() -> Iterator[None]:
    """A block that saves what it has measured: Ctrl-C after `hold` comes at its end."""
    with ExitStack() as held:
        token = _saving.set(held)
        try:
            yield
        finally:
            _saving.reset(token)


def hold() -> None:
    """Have Ctrl-C wait for the end of the block that saves.  Without such a block it comes at once."""
    held = _saving.get()
    if held is not None and threading.current_thread() is threading.main_thread():
        held.enter_context(_held())


@contextmanager
def _held() -> Iterator[None]:
    waiting: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if waiting:
            signal.raise_signal(signal.SIGINT)
