"""A process's output made safe to print, and its exit code in words."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from compare import registry
from cuda_impl.source import place

_DEEPEST = 16
_MOST_VALUES = 1 << 16
_LONGEST_TEXT = 1 << 20


def how_it_ended(code: int) -> str:
    """An exit code of a `multiprocessing` or `subprocess` process in words; negative: a signal."""
    if code >= 0:
        return f"its process exited with exit code {code}"
    name = signal.Signals(-code).name
    return f"its process was killed by {name} ({_SIGNALS.get(name, signal.strsignal(-code))})"


def raised_in(file: str, error: BaseException) -> tuple[str, str, str]:
    """Type, text and place in a user's ``file`` of what its code raised, without what Triton wraps it in.

    Triton's interpreter and its compiler wrap an error once for every function that it passes through.  The
    place is ``my_softmax.py:31``, and empty where the file had no part in it.
    """
    while (inner := error.__cause__) is not None and _is_tritons(error):
        if hasattr(error, "src") and not hasattr(inner, "src"):  # raised by Triton's own code
            break
        error = inner
    name, text = type(error).__name__, _text(error)
    if _is_tritons(error) and getattr(error, "src", None):
        last = text.rstrip().rpartition("\n")[2]
        return name, getattr(error, "error_message", None) or last, place(error.src, error.node.lineno)  # type: ignore[attr-defined]
    line = registry.line_in(error, Path(file)) if name != "BuildError" else None  # which names places itself
    return name, text, f"{Path(file).name}:{line}" if line else ""


def _is_tritons(error: BaseException) -> bool:
    return type(error).__name__ == "InterpreterError" or (
        type(error).__module__.startswith("triton.") and hasattr(error, "node")
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def read_json(message: bytes, values: int = _MOST_VALUES, text: int = _LONGEST_TEXT) -> Any:
    """A value that a process with user code sent, with printable text only.

    Args:
        message: JSON.
        values: the most in it.
        text: the most characters of a string.

    Raises:
        ValueError: it is no JSON, or deeper, longer or more than any honest one.
    """
    try:
        told = json.loads(message)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    count, level, depth = 0, [told], 0
    while level:
        count, depth = count + len(level), depth + 1
        if depth > _DEEPEST or count > values:
            raise ValueError(f"more than {_DEEPEST} levels or {values} values")
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += [*each.keys(), *each.values()]
            elif isinstance(each, list):
                inner += each
            elif isinstance(each, str) and len(each) > text:
                raise ValueError(f"a text of more than {text} characters")
            elif isinstance(each, int) and abs(each) >> 63:
                raise ValueError("a number of more than 64 bits")
        level = inner
    return printable(told)


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
