"""Each line of each stage, and the source lines of the kernel that it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.pipeline.passes import bare
from compare.pipeline.records import CompilerStage, Opened
from compare.resources.sass.disassembly import listed

Place = tuple[str, int]
"""File and line."""


@dataclass(frozen=True)
class Traced:
    """A line of a stage's text, without the compiler's notes on where it comes from."""

    text: str
    lines: tuple[int, ...] = ()
    """Of the kernel's own source file: the line itself, then those that it was inlined into."""


def traced(opened: Opened, stage: CompilerStage) -> list[Traced]:
    """A stage's text line by line; of a stage that is not traced, and of a binary, nothing."""
    source = opened.stage("source")
    if source is None or stage.name not in _READERS:
        return []
    if stage.name == "source":
        return [Traced(text, (source.first_line + i,)) for i, text in enumerate(stage.text.splitlines())]

    def own(places: Sequence[Place]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(line for file, line in places if line and _same(file, source.file)))

    return [Traced(text, own(places)) for text, places in _READERS[stage.name](stage.text)]


def _same(file: str, source: str) -> bool:
    return Path(file).name == source if "/" not in source else file == source


def _untraced(text: str) -> Iterator[tuple[str, Sequence[Place]]]:
    for line in text.splitlines():
        yield line, ()


def mlir(text: str) -> Iterator[tuple[str, Sequence[Place]]]:
    """Each line, and the places that it comes from, the innermost first."""
    named = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))

    def places(location: str, depth: int = 0) -> list[Place]:
        if match := re.match(r'"([^"]+)":(\d+)', location):
            return [(match[1], int(match[2]))]
        # By its name, as part of a named place, or the place and the one that it was inlined into.
        found: list[Place] = []
        for name in re.findall(r"#loc\d*", location) if depth < 20 else ():
            found += places(named.get(name, ""), depth + 1)
        return found

    for line in text.splitlines():
        if line.startswith("#loc"):
            continue
        locations = re.findall(r" loc\((.*)\)$", line)
        yield bare(line), places(locations[-1]) if locations else ()


_NODE = re.compile(r"^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$")


def _llvm(text: str) -> Iterator[tuple[str, Sequence[Place]]]:
    nodes: dict[str, dict[str, str]] = {}
    rows = text.splitlines()
    for row in rows:
        if match := _NODE.match(row):
            nodes[match[1]] = dict(_fields(match[3]))

    def file_of(scope: str) -> str:
        node = nodes.get(scope, {})
        if "filename" in node:
            return str(Path(node.get("directory", ""), node["filename"]))
        outer = node.get("file") or node.get("scope")
        return file_of(outer) if outer else ""

    def places(number: str) -> list[Place]:
        found = []
        while number in nodes:
            node = nodes[number]
            found.append((file_of(node.get("scope", "")), int(node.get("line", "0"))))
            number = node.get("inlinedAt", "")
        return found

    for row in rows:
        if re.match(r"!|\s*#dbg_|\s*call void @llvm\.dbg", row):
            continue
        at = re.search(r"!dbg !(\d+)", row)
        yield re.sub(r",? !dbg !\d+", "", row).rstrip(), places(at[1]) if at else ()


def _fields(text: str) -> list[tuple[str, str]]:
    """
    >>> _fields('line: 30, scope: !27, filename: "a.py"')
    [('line', '30'), ('scope', '27'), ('filename', 'a.py')]
    """
    found = re.findall(r'(\w+): (?:"([^"]*)"|!?(\w+))', text)
    return [(name, quoted or word) for name, quoted, word in found]


_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at (\d+) (\d+) (\d+))?")


def ptx(text: str) -> Iterator[tuple[str, Sequence[Place]]]:
    """Each line, and the places that it comes from, the innermost first."""
    named = re.findall(r'(?m)^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', text)
    files = {number: str(Path(folder, name)) if name else folder for number, folder, name in named}
    # The call site of an inlined place is given once, at the place; it may be inlined itself.
    into: dict[tuple[str, ...], tuple[str, ...]] = {}
    here: tuple[str, ...] = ()
    for row in text.splitlines():
        if match := _LOC.match(row):
            here = match.groups()[:3]
            if match[4]:
                into[here] = match.groups()[3:]
            continue
        if re.match(r"\s*\.section", row):
            return
        if re.match(r"\s*\.file", row):
            here = ()
            continue
        found: list[Place] = []
        at = here
        while at and len(found) < 20:
            found.append((files.get(at[0], ""), int(at[1])))
            at = into.get(at, ())
        yield row.rstrip(), found if re.search(r";\s*}?\s*(//.*)?$", row) else ()


def _sass(text: str) -> Iterator[tuple[str, Sequence[Place]]]:
    for row, instruction in listed(text):
        places = [(instruction.file, instruction.line), *instruction.callers] if instruction else ()
        yield _NARROWER.sub(r"\1", row.rstrip()), places


_NARROWER = re.compile(r"^ {8}(/\*\w+\*/) {,13}(?= )")
"""nvdisasm indents instructions by 35 characters; this leaves room for a predicate."""


_READERS: dict[str, Callable[[str], Iterator[tuple[str, Sequence[Place]]]]] = {
    "source": _untraced,
    "frontend": mlir,
    "ttir": mlir,
    "ttgir": mlir,
    "llir": _llvm,
    "ptx": ptx,
    "sass": _sass,
    "inductor": _untraced,
}
