"""Ctrl-C that waits while results are put in order, as it would lose them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Have Ctrl-C wait for the end of this.  Only the main thread gets it: in another one nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if waiting:
            signal.raise_signal(signal.SIGINT)
