"""Hand-ins that try to fool, to fill or to leave the grader: what each is, and what must come of it.

Kinds, as of issue 46.  A: marks follow from the student's words, names and files.  B: the judge reads data of
others.  C: isolation, stopping, memory, processes and what is left behind.  Most are in ``hostile.toml``.

``PYTHONPATH=.:tests/support python tests/labs/hostile.py DIR [NAME ...]`` writes a class of them.
"""

from __future__ import annotations

import io
import os
import py_compile
import re
import socket
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from compare.labs.lab import tomllib
from right_files import ALL, changed

RIGHT = {right.file: right.text for right in ALL if right.lab == "01"}
TRITON, CUDA = "triton_add.py", "cuda_add.py"
FULL = 5
"""Points of a right file: for its values, and for its registers."""
_FIRST_LINE = "    x, y = x.contiguous(), y.contiguous()\n"
KERNEL = "// Thread n adds element n.\n"
_LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
ANSWERS = 'lab = "01"\n[predictions]\n[answers]\nwhy = ""\n'
_TASK = """
[[task]]
title = "{title}"
file = "{file}"
label = "{route}.mine"
reference = "{reference}"
group = [
    {{ name = "short", points = 2, cases = ["N=1000,fp32"] }},
    {{ name = "long", points = 2, cases = ["N=2049,fp16"] }},
]
limit = [{{ figure = "registers", at_most = 128, points = 1 }}]
"""
RUBRIC = (
    'title = "Hostile"\nop = "vector_add"\nhours = 1\nhint = []\nprediction = []\n'
    'question = [{ name = "why", text = "Why?", points = 1 }]\n'
    '[tiers]\ncpu = "All."\nt4 = "All."\nampere = "All."\nhopper = "All."\n'
    + _TASK.format(title="Triton", file=TRITON, route="triton", reference="triton.blocked")
    + _TASK.format(title="CUDA", file=CUDA, route="cupy", reference="cupy.scalar")
)


@dataclass(frozen=True)
class Hostile:
    """One hostile hand-in."""

    kind: str
    name: str
    """Of its folder."""
    build: Callable[[Path], object]
    """Fills the folder, which is there."""
    points: float
    """Of its one file; `FULL`: the attempt changes nothing."""
    says: str = ""
    """A pattern in the reason of a part."""


# --------------------------------------------------------------------------- those of the table


def _text(text: str) -> Any:
    """A text of the table with the values of its expressions; bytes, if it is one expression of bytes."""
    parts = re.split(r"\{\{(.+?)\}\}(?!\})", text, flags=re.DOTALL)
    values = [eval(part, globals()) if number % 2 else part for number, part in enumerate(parts)]
    if isinstance(values[1:2] and values[1], bytes):
        return values[1]
    return "".join(values)


def _indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip("\n").split("\n"))


def _content(spec: dict[str, Any], file: str) -> Any:
    """A task's file, as the table describes it."""
    if "content" in spec:
        return _text(spec["content"])
    text = RIGHT[file]
    end = _text(spec.get("end", ""))
    if "refused" in spec:
        spec = {**spec, "first": f"assert libc.syscall({spec['refused']}) < 0, 'reached'"}
        end = _LIBC
    if "first" in spec:
        text = changed(text, (_FIRST_LINE, _indented(_text(spec["first"])) + _FIRST_LINE))
    if "body" in spec:
        text = text[: text.index(_FIRST_LINE)] + _indented(_text(spec["body"]))
    if "source" in spec:
        text = changed(text, (KERNEL, f"{_text(spec['source'])}\n{KERNEL}"))
    text = changed(text, *((_text(old), _text(new)) for old, new in spec.get("change", ())))
    return f"{text}\n\n{end}"


def _of_table(spec: dict[str, Any]) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        if "zip" in spec:
            (folder / "answers.toml").unlink()
            folder.rmdir()
            folder.with_name(f"{folder.name}.zip").write_bytes(_text(spec["zip"]))
            return
        file = spec.get("file", CUDA if "source" in spec else TRITON)
        put(folder, file, _content(spec, file))
        if "answers" in spec:
            put(folder, "answers.toml", _text(spec["answers"]))
        for name, text in spec.get("beside", {}).items():
            put(folder, name, _text(text))

    return build


def put(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def zipped(*entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as packed:
        for name, content in entries:
            packed.writestr(name, content)
    return stream.getvalue()


def overlapping() -> bytes:
    """A zip of 400 entries that share one compressed body of 16 MB: 6 GB when it is unpacked."""
    one = zipped(("a", bytes(16 << 20)))
    start, end = one.rindex(b"PK\1\2"), one.rindex(b"PK\5\6")
    entries = one[start:end] * 400
    return one[:start] + entries + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 400, 400, len(entries), start, 0)


def lying_zip() -> bytes:
    """A zip whose directory says that its first file has no bytes."""
    content = bytearray(zipped((TRITON, RIGHT[TRITON].encode())))
    at = content.index(b"PK\1\2")
    content[at + 24 : at + 28] = bytes(4)
    return bytes(content)


# --------------------------------------------------------------------------- those that are no plain files


def _bytecode(folder: Path) -> None:
    """Its text adds nothing, and bytecode that Python takes unchecked is right."""
    put(folder, TRITON, RIGHT[TRITON])
    file, unchecked = folder / TRITON, py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(file), cache_from_source(str(file)), invalidation_mode=unchecked)
    put(folder, TRITON, _content({"body": "return x"}, TRITON))


def _own_marks(folder: Path) -> None:
    put(folder, TRITON, _content({"body": "return x"}, TRITON))
    (folder / "_marks").mkdir()
    put(folder / "_marks", "marks_of_its_own.json", '{"student": "marks_of_its_own", "points": 99}')


def _deep(folder: Path) -> None:
    """Folders within folders, deeper than a path may be long."""
    put(folder, TRITON, RIGHT[TRITON])
    here = os.open(folder, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def _many(folder: Path) -> None:
    put(folder, TRITON, RIGHT[TRITON])
    for number in range(5000):
        (folder / f"{number}.txt").touch()


def _socket(folder: Path) -> None:
    here = os.open(folder, os.O_RDONLY)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{TRITON}")
    os.close(here)


def _linked_folder(folder: Path) -> None:
    (folder / "d").symlink_to("../witness")
    (folder / TRITON).symlink_to(f"d/{TRITON}")


def _linked(target: str) -> Callable[[Path], None]:
    return lambda folder: (folder / TRITON).symlink_to(target)


_UNREAD = "cannot be read"
_OTHERS = (
    Hostile("A", "bytecode_of_another_file", _bytecode, 0),
    Hostile("A", "marks_of_its_own", _own_marks, 0),
    Hostile("B", "a_deep_folder", _deep, FULL),
    Hostile("B", "many_files", _many, FULL),
    Hostile("B", "a_folder_in_place", lambda folder: (folder / TRITON).mkdir(), 0, _UNREAD),
    Hostile("B", "a_socket_in_place", _socket, 0, _UNREAD),
    Hostile("B", "a_link_in_a_circle", _linked(TRITON), 0, "there is no"),
    Hostile("B", "a_link_to_variables", _linked("/proc/self/environ"), 0, _UNREAD),
    Hostile("B", "a_link_through_a_link", _linked_folder, 0, "link that leads out"),
)
_NAMES = (
    *("\u212balice\u0301", "=HYPERLINK(1)", "-rf", "--json", "CON", "a'b\"c`d$(e)", "%2e%2e%2f", "x" * 240),
    "Witness",
)
_UNPRINTABLE = "ph\u202egnp.exe", "tab\tand\nline", "\u200b\u200bwitness"


def every() -> list[Hostile]:
    """All hostile hand-ins."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    listed = [
        Hostile(
            kind, name, _of_table(spec), spec.get("points", FULL * ("refused" in spec)), spec.get("says", "")
        )
        for kind, specs in table.items()
        for name, spec in specs.items()
    ]
    named = [Hostile("A", name, _of_table({}), FULL) for name in _NAMES]
    refused = [Hostile("A", name, _of_table({}), 0, "cannot be printed: rename") for name in _UNPRINTABLE]
    return [*listed, *_OTHERS, *named, *refused]


WITNESSES = {"witness": 2 * FULL, "mistaken": FULL + 2}
"""Honest hand-ins of two files: a right one, and one whose grid has two blocks."""


def build(folder: Path, hand_ins: Iterable[Hostile]) -> None:
    """A class of hostile hand-ins and the witnesses, and its lab."""
    (folder / "class").mkdir(parents=True)
    put(folder, "lab.toml", RUBRIC)
    for each in hand_ins:
        place = folder / "class" / each.name
        place.mkdir()
        put(place, "answers.toml", ANSWERS)
        each.build(place)
    for name in WITNESSES:
        (folder / "class" / name).mkdir()
        for file, text in RIGHT.items():
            put(folder / "class" / name, file, text)
    two_blocks = changed(RIGHT[TRITON], ("(triton.cdiv(N, BLOCK_SIZE),)", "(2,)"))
    put(folder / "class" / "mistaken", TRITON, two_blocks)


if __name__ == "__main__":
    names = sys.argv[2:]
    build(Path(sys.argv[1]), [each for each in every() if not names or {each.name, each.kind} & {*names}])
