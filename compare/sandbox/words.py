"""What a process said, made safe to print, and how it ended, in words."""

from __future__ import annotations

import signal
from typing import Any


def how_it_ended(code: int) -> str:
    """What a process's exit code says, in words."""
    if code >= 0:
        return f"its process ended itself with exit code {code}"
    name = signal.Signals(-code).name
    return f"its process was ended by {name} ({_SIGNALS.get(name, signal.strsignal(-code))})"


def printable(told: Any) -> Any:
    """What a worker says, without anything that would make a terminal do more than print it."""
    if isinstance(told, str):
        return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in told)
    if isinstance(told, list):
        return [printable(each) for each in told]
    if isinstance(told, dict):
        return {printable(key): printable(value) for key, value in told.items()}
    return told


_SIGNALS = {
    "SIGSEGV": "an access to memory that is not its own",
    "SIGABRT": "it aborted",
    "SIGKILL": "from outside, most likely as memory ran out",
    "SIGFPE": "an arithmetic error such as a division by zero",
    "SIGILL": "an instruction that this processor does not have",
    "SIGBUS": "an access to memory that is not there",
    "SIGXFSZ": "a file that grew too large",
    "SIGTERM": "it was asked to end",
}
