"""A process's output made safe to print, and its exit code in words."""

from __future__ import annotations

import json
import re
import signal
import traceback
from pathlib import Path
from typing import Any

from compare import registry
from compare.model.op import UsageError
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


_INSTEAD = "launch CUDA text with cuda_impl.loader.kernel(text, name, x.device), which runs without a GPU too"
_GPU_LIBRARIES = {
    "cupy": "cupy-cuda13x",
    "numba": "numba-cuda",
    "cuda.core": "cuda-core",
    "cuda.bindings": "cuda-bindings",
    "torch.cuda": "",
}
"""Libraries that need a GPU, and the packages that have them."""


def instead_of(error: BaseException, *, gpu: bool) -> str:
    """What to write in place of a library that is missing or needs a GPU; empty: that is not why it failed.

    Args:
        error: raised by a user's code.
        gpu: whether there is a GPU.
    """
    if isinstance(error, UsageError) and error.__cause__ is not None:  # raised while the file was loaded
        error = error.__cause__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    raised_by = frames[-1].f_globals.get("__name__", "") if frames else ""
    if isinstance(error, ModuleNotFoundError):
        for library, package in _GPU_LIBRARIES.items():
            if package and error.name in (library, library.partition(".")[0]):
                return f"{error.name} is not installed: pip install {package}, or {_INSTEAD}"
    if raised_by == "torch.utils.cpp_extension" and re.search("CUDA_HOME|Ninja is required", _text(error)):
        return f"load_inline and load need nvcc, ninja and CUDA_HOME: install the CUDA toolkit, or {_INSTEAD}"
    for library in () if gpu else _GPU_LIBRARIES:
        if raised_by == library or raised_by.startswith(f"{library}."):
            tensors = "make tensors with device=x.device, and " if library == "torch.cuda" else ""
            return f"{library} needs a GPU: {tensors}{_INSTEAD}"
    return ""


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
        return bounded(json.loads(message), values, text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def bounded(value: Any, values: int = _MOST_VALUES, text: int = _LONGEST_TEXT) -> Any:
    """A parsed value with printable text only.

    Args:
        value: of JSON or TOML.
        values, text: as of `read_json`.

    Raises:
        ValueError: it is deeper, longer or more than any honest one.
    """
    count = 0

    def checked(part: Any, depth: int) -> Any:
        nonlocal count
        count += 1
        if depth > _DEEPEST or count > values:
            raise ValueError(f"more than {_DEEPEST} levels or {values} values")
        if isinstance(part, str):
            if len(part) > text:
                raise ValueError(f"a text of more than {text} characters")
            return printable(part)
        if isinstance(part, list):
            return [checked(each, depth + 1) for each in part]
        if isinstance(part, dict):
            return {checked(key, depth + 1): checked(value, depth + 1) for key, value in part.items()}
        if isinstance(part, int) and abs(part) >> 63:
            raise ValueError("a number of more than 64 bits")
        return part

    return checked(value, 1)


def printable(text: str) -> str:
    """A text with "?" for control characters, which could rewrite the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


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
