"""CUDA text from a user's file: rewritten for g++, and compilers' messages with the user's line numbers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten

from cuda_impl.flags import KERNELS

_ERRORS = 5
"""Of a compiler's errors in the first line of a message; all of them are in its log."""
_ERROR_LENGTH = 160
_LINE_LENGTH = 60

# --------------------------------------------------------------------------- for g++

_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|(?m:^)[ \t]*#(?:\\\n|[^\n])*', re.DOTALL
)
"""Comments, strings, and lines of the preprocessor."""

_IN_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_ALIGNED = rf"(?:alignas|__align__|__attribute__)\s*{_IN_PARENTHESES}\s*"
_BUFFER = r"(\w+)\s*(\[\s*\](?:\s*\[[^\]]*\])*)"
_DYNAMIC = re.compile(
    rf"(?:\bvolatile\s+|{_ALIGNED})*"
    rf"\b(?:extern\s+(?:volatile\s+|{_ALIGNED})*__shared__|__shared__\s+extern)\b"
    rf"(?P<type>[^;{{}}=\[\]]*?)(?P<buffers>\b{_BUFFER}(?:\s*,\s*{_BUFFER})*)\s*;"
)
_STATIC = re.compile(rf"\b(?:static\s+)?(__shared__)\s+(alignas\s*{_IN_PARENTHESES})|\bstatic\s+(__shared__)")
_FUNCTION_BEGINS = re.compile(r"\)\s*(?:const|noexcept|\s)*$")


def for_host(text: str) -> str:
    """``text`` as g++ takes it with ``host/device.h``, every line where it was.

    ``extern __shared__ T buffer[];`` becomes a reference to the block's dynamic shared memory: in place
    within a function, else at the start of each later function that names the buffer.  g++ takes
    ``alignas`` only before other specifiers.
    """
    code = _blanked(text)
    functions = list(_functions(code))
    edits: list[tuple[int, int, str]] = []
    for found in _DYNAMIC.finditer(code):
        begin, end = found.span()
        lines = "\n" * code.count("\n", begin, end)
        references = _references(found)
        inside = any(body < begin < stop for _, body, stop in functions)
        edits.append((begin, end, ("".join(references.values()) if inside else "") + lines))
        for name, reference in references.items() if not inside else ():
            named = re.compile(rf"\b{name}\b")
            edits += [
                (body, body, reference)
                for head, body, stop in functions
                if body > end and named.search(code, body, stop) and not named.search(code, head, body)
            ]
    for found in _STATIC.finditer(code):
        aligned = f"{found[2]} {found[1]}" if found[1] else found[3]
        edits.append((*found.span(), aligned + "\n" * code.count("\n", *found.span())))
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def _blanked(text: str) -> str:
    """``text`` with blanks for all that is no code, so that offsets stay."""
    return _NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _references(found: re.Match[str]) -> dict[str, str]:
    """By buffer of a declaration, the reference that stands for it."""
    kind = " ".join(re.sub(_ALIGNED, "", found["type"]).split())
    if "volatile" in found[0] and "volatile" not in kind:
        kind = f"volatile {kind}"
    shared = f"reinterpret_cast<{kind} (*)%s>(host::dynamic_shared())"
    return {
        name: f" [[maybe_unused]] {kind} (&{name}){sizes} = *{shared % sizes};"
        for name, sizes in re.findall(_BUFFER, found["buffers"])
    }


def _functions(code: str) -> Iterator[tuple[int, int, int]]:
    """Of each function the offsets of its head, its body and its end."""
    depth = 0
    head = body = 0
    for brace in re.finditer(r"[{};]", code):
        at = brace.start()
        if depth == 0:
            if brace[0] == "{" and _FUNCTION_BEGINS.search(code, head, at):
                depth, body = 1, at + 1
            else:
                head = at + 1
        elif brace[0] != ";":
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                yield head, body, at
                head = at + 1


# --------------------------------------------------------------------------- what compilers say

_PLACE = re.compile(r"(?m)^(?P<file>[^\s:(][^:(\n]*)(?:\((?P<nvcc>\d+)\)|:(?P<gxx>\d+)(?::\d+)?): ")
_ERROR = re.compile(
    r"(?m)^(?:(?P<place>\S[^\n]*?): )?(?:fatal |catastrophic )?error(?:\s[^:\n]*)?: *(?P<said>.*)"
)


def by_users_lines(log: str, text: str) -> str:
    """A compiler's ``log`` with the places of the user's file in place of those of the compiled ``text``."""

    def users(found: re.Match[str]) -> str:
        file, line = Path(found["file"]), int(found["nvcc"] or found["gxx"])
        if file.suffix in (".cpp", ".cu") and not file.is_relative_to(KERNELS.parent):
            where = place(text, line)
            return f"{where}: " if where else ""
        return f"{file.name}:{line}: "

    return _PLACE.sub(users, log)


def errors_in(log: str) -> str:
    """All errors of a compiler's ``log`` in one line, within limits; empty if it has none."""
    found = []
    for error in _ERROR.finditer(log):
        place, said = error["place"], shorten(error["said"], _ERROR_LENGTH)
        found.append(f"{place}: {said}" if place else said)
    found = list(dict.fromkeys(found))
    more = f"; and {len(found) - _ERRORS} more" if len(found) > _ERRORS else ""
    return "; ".join(found[:_ERRORS]) + more


def place(text: str, line: int) -> str:
    """``my_softmax.py:31``: where a user's file has a line of ``text``; empty for a line behind its end."""
    lines = text.split("\n")
    if line > len(lines):
        return ""
    wanted = lines[line - 1].strip()
    held = {file: file.read_text(errors="replace") for file in _users_files()}
    for file, whole in held.items():
        at = whole.find(text.strip())
        if at >= 0:
            blank = text.count("\n", 0, len(text) - len(text.lstrip()))
            return f"{file.name}:{whole.count(chr(10), 0, at) + line - blank}"
    # A text that is put together: the line itself, where it is written once.
    for file, whole in held.items():
        places = [n for n, other in enumerate(whole.split("\n"), 1) if wanted and other.strip() == wanted]
        if len(places) == 1:
            return f"{file.name}:{places[0]}"
    return f"line {line} of the CUDA text, '{shorten(wanted, _LINE_LENGTH)}'"


def _users_files() -> Iterator[Path]:
    """The files that were given to ``--load`` or are run as a program, and the CUDA files beside them."""
    for name, module in list(sys.modules.items()):
        if name == "__main__" or name.startswith("_loaded_"):
            file = Path(getattr(module, "__file__", None) or "")
            if file.is_file():
                yield file
                yield from sorted(file.parent.glob("*.cu*"))
