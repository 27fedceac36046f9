"""A process's output made safe to print, and its exit code in words."""

from __future__ import annotations

import signal
from typing import Any


def how_it_ended(code: int) -> str:
    """An exit code of a `multiprocessing` or `subprocess` process in words; negative: a signal."""
    if code >= 0:
        return f"its process exited with exit code {code}"
    name = signal.Signals(-code).name
    return f"its process was killed by {name} ({_SIGNALS.get(name, signal.strsignal(-code))})"


def printable(told: Any) -> Any:
    """Strings of a JSON value with "?" for control characters, which could rewrite the terminal."""
    if isinstance(told, str):
        return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in told)
    if isinstance(told, list):
        return [printable(each) for each in told]
    if isinstance(told, dict):
        return {printable(key): printable(value) for key, value in told.items()}
    return told


_SIGNALS = {
    "SIGSEGV": "segmentation fault: access to memory outside its own",
    "SIGABRT": "abort",
    "SIGKILL": "from outside; likely out of host memory",
    "SIGFPE": "arithmetic error such as division by zero",
    "SIGILL": "illegal instruction for this processor",
    "SIGBUS": "bus error: access to unmapped memory",
    "SIGXFSZ": "file size limit exceeded",
    "SIGTERM": "terminated from outside",
}
