"""Why a row was refused: what an exception makes of it, as a status and one sentence."""

from __future__ import annotations

import os
import re
import traceback

from compare.model.op import UsageError
from compare.model.result import Status
from compare.resources.static import CompileError, Refused
from compare.worker.process import Ended, NotLoaded, Raised
from compare.worker.timing import Cheated
from cuda_impl.build import is_asserted

_LONGEST = 200
"""Characters of a reason."""
_LONGEST_OF_COMPILERS = 1000
"""The same where a compiler lists errors, whose number `cuda_impl.source` limits."""


def verdict(error: BaseException) -> tuple[Status, str]:
    """The status of a row whose check, timing or compilation raised ``error``, and the reason it shows."""
    if os.environ.get("COMPARE_TRACEBACK"):
        traceback.print_exception(error)
    text = " ".join(str(error).split())
    if isinstance(error, (NotImplementedError, UsageError)):
        return "unavailable", _cut(text, _LONGEST_OF_COMPILERS)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "unavailable", f"out of memory on this device{_asked(text)}; give a smaller --case"
    if isinstance(error, Cheated):
        return "disagrees", _cut(text, _LONGEST_OF_COMPILERS)
    if isinstance(error, (Ended, NotLoaded)):
        return "failed", text
    name = error.name if isinstance(error, Raised) else type(error).__name__
    if name == "BuildError":
        text = str(error).partition("\n")[0]
        if is_asserted(text):
            return "unavailable", text
        return "failed", f"{_cut(text, _LONGEST_OF_COMPILERS)} (COMPARE_TRACEBACK=1 shows all that it said)"
    if "Unexpected non-ASCII character" in text:  # ptxas says no more than that
        return "failed", (
            "ptxas takes ASCII only, and Triton tells it the names of the file and of its kernels: rename "
            "what has other letters"
        )
    if isinstance(error, Refused):
        text = _cut(text, _LONGEST_OF_COMPILERS)
        return "failed", f"{text} (python -m compare pipeline shows all that its compiler says)"
    text = _cut(text, _LONGEST)
    if isinstance(error, CompileError):
        return "failed", text
    if where := getattr(error, "where", ""):
        return "failed", f"{where}: {name}: {text} (COMPARE_TRACEBACK=1 shows the traceback)"
    return "failed", f"{name}: {text} (COMPARE_TRACEBACK=1 shows where)"


def of_judge(error: BaseException) -> bool:
    """Whether it is an error of the judge's own."""
    return isinstance(error, Ended) and error.by_judge


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]} ..."


def _asked(text: str) -> str:
    """How much an allocator says was asked for, and the worker's own limit."""
    found = (
        re.search(r"([Tt]ried|[Uu]nable) to allocate [\d.]+ \w+", text),
        re.search(r"[\d.]+ \w+ allowed", text),
    )
    said = ", ".join(match[0].lower().replace("gib", "GiB").replace("mib", "MiB") for match in found if match)
    return f" ({said})" if said else ""
