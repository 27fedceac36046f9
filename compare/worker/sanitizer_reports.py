"""What compute-sanitizer's tools print, read: each report as a sentence with the lines of the user's file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from compare.worker.sanitized import SanitizedStep

_PREFIX = "========="
_ADDRESS = r"0x[0-9a-f]+"
_NEW_FRAME = re.compile(rf"(?P<function>.*)\+{_ADDRESS}(?: in (?P<file>.+?):(?P<line>\d+))?$")
_OLD_FRAME = re.compile(rf"{_ADDRESS} in (?:(?P<file>[^:]+):(?P<line>\d+):)?(?P<function>.+)$")
"""Of versions before 2023."""
_RACE = re.compile(r"^(?:\w+: Race reported between|and) (Read|Write) access at (.+?)(?: \[\d+ hazards?\])?$")
_ACCESS = re.compile(r"Invalid __(\w+)__ (read|write|atomic)\b.*? of size (\d+)")
_UNWRITTEN = re.compile(r"Uninitialized __(\w+)__ memory read of size (\d+)")
_BARRIER = re.compile(r"Divergent thread\(s\) in (block|warp)")
_LIBRARY = re.compile(
    r"\b(?:at|c10|cub|thrust|cutlass|cudnn)::|\b(?:cublas|nvjet|sm\d+_|ampere_|volta_|turing_)"
)
"""In the names of kernels of PyTorch and the libraries that it calls."""
_TROUBLE = re.compile(r"^(?:Error|Fatal|Internal).*?: (.+)|(Device not supported.*)")

Places = Mapping[str, tuple[str, ...]]
"""By CUDA text the places of its lines in the user's file."""


class _Frame(NamedTuple):
    """A place in a kernel."""

    function: str
    file: str
    line: int
    """0: unknown."""


def places_of(steps: Iterable[SanitizedStep]) -> Places:
    """The places that the watched process wrote."""
    return {step.text: step.places for step in steps if step.text}


def reports_in(output: str, places: Places) -> list[str]:
    """The reports on a row's own kernels, each once.

    Args:
        output: all that a tool printed.
        places: of the lines of CUDA text that is no file.
    """
    sentences = (_sentence(block, places) for block in _blocks(output))
    return list(dict.fromkeys(filter(None, sentences)))


def trouble_in(output: str) -> str:
    """What a tool says of itself where it could not watch; empty: nothing."""
    matches = (_TROUBLE.match(block[0]) for block in _blocks(output) if not _RACE.match(block[0]))
    return next((match[1] or match[2] for match in matches if match), "")


def _blocks(output: str) -> Iterator[list[str]]:
    """The lines of each report: its first is indented by one blank, the others by more."""
    block: list[str] = []
    for line in output.splitlines():
        if not line.startswith(_PREFIX):
            continue
        text = line.removeprefix(_PREFIX)
        if block and not text.startswith("  "):
            yield block
            block = []
        if text.strip():
            block.append(text.strip())
    if block:
        yield block


def _sentence(block: list[str], places: Places) -> str:
    """A report in words; empty if it is none, or of a library's kernel."""
    head, *details = block
    if _RACE.match(head):
        return _race(block, places)
    frames = [
        frame
        for line in details
        if line.startswith(("at ", "Device Frame:"))
        and (frame := _frame(re.sub(r"^(?:at|Device Frame:) ?", "", line)))
    ]
    if frames and _LIBRARY.search(frames[-1].function):
        return ""
    where = _where(frames, places)
    if access := _ACCESS.match(head):
        verb = {"read": "reads", "write": "writes"}.get(access[2], "updates")
        how = "at an unaligned address" if any("misaligned" in line for line in details) else "out of bounds"
        return f"{where} {verb} {access[3]} bytes {how} in {access[1]} memory"
    if unwritten := _UNWRITTEN.match(head):
        return f"{where} reads {unwritten[2]} bytes of {unwritten[1]} memory that nothing has written"
    if barrier := _BARRIER.search(head):
        return f"{where}: not all threads of the {barrier[1]} reach this barrier"
    return f"{where}: {head}" if frames else ""


def _race(block: list[str], places: Places) -> str:
    """``mine.py:31 reads shared memory that mine.py:23 of another thread writes, no barrier between``."""
    accesses = []
    for match in filter(None, map(_RACE.match, block)):
        frame = _frame(match[2])
        if frame and _LIBRARY.search(frame.function):
            return ""
        accesses.append((match[1].lower(), _where([frame] if frame else [], places)))
    (verb, where), (_, other) = sorted((*accesses, *accesses)[:2])  # a read before a write
    return f"{where} {verb}s shared memory that {other} of another thread writes, no barrier between"


def _frame(text: str) -> _Frame | None:
    frame = _NEW_FRAME.match(text) or _OLD_FRAME.match(text)
    return _Frame(frame["function"], frame["file"] or "", int(frame["line"] or 0)) if frame else None


def _where(frames: list[_Frame], places: Places) -> str:
    """The innermost place that is in the user's file, else in any, else the kernel's name."""
    known = [place for frame in frames if frame.line and (place := _place(frame, places))]
    if known:
        return known[0]
    return frames[-1].function.partition("(")[0] if frames else "a kernel"


def _place(frame: _Frame, places: Places) -> str:
    """``mine.py:31``, of a line of a file or of CUDA text."""
    file = frame.file.rpartition("/")[2]
    if not re.search(r"\.cubin\.cu$|^default_program$", file):
        return f"{file}:{frame.line}"
    name = re.search(r"(\w+)\s*(?:<.*>)?\s*(?:\(|$)", frame.function)
    of_function = [x for text, x in places.items() if name and re.search(rf"\b{name[1]}\b", text)]
    lines = next((x for x in (*of_function, *places.values()) if len(x) >= frame.line), ())
    return (lines[frame.line - 1] if lines else "") or f"line {frame.line} of the CUDA text"
