"""Each line of each stage, and the source lines of the kernel that it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compare.pipeline.passes import bare
from compare.pipeline.records import CompilerStage, Opened
from compare.resources.sass.disassembly import listed

FileLine = tuple[str, int]
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

    def own(places: Sequence[FileLine]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(line for file, line in places if line and _same(file, source.file)))

    return [Traced(text, own(places)) for text, places in _READERS[stage.name](stage.text)]


def _same(file: str, source: str) -> bool:
    return Path(file).name == source if "/" not in source else file == source


def _untraced(text: str) -> Iterator[tuple[str, Sequence[FileLine]]]:
    for line in text.splitlines():
        yield line, ()


def mlir(text: str) -> Iterator[tuple[str, Sequence[FileLine]]]:
    """Each line, and the places that it comes from, the innermost first."""
    named = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))

    def places(location: str, depth: int = 0) -> list[FileLine]:
        if match := re.match(r'"([^"]+)":(\d+)', location):
            return [(match[1], int(match[2]))]
        # By its name, as part of a named place, or the place and the one that it was inlined into.
        found: list[FileLine] = []
        for name in re.findall(r"#loc\d*", location) if depth < 20 else ():
            found += places(named.get(name, ""), depth + 1)
        return found

    for line in text.splitlines():
        if line.startswith("#loc"):
            continue
        locations = re.findall(r" loc\((.*)\)$", line)
        yield bare(line), places(locations[-1]) if locations else ()


def _llvm(text: str) -> Iterator[tuple[str, Sequence[FileLine]]]:
    """Each line without the debug information, which is not followed."""
    for row in text.splitlines():
        if not re.match(r"!|\s*#dbg_|\s*call void @llvm\.dbg", row):
            yield re.sub(r",? !dbg !\d+", "", row).rstrip(), ()


_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at (\d+) (\d+) (\d+))?")


def ptx(text: str) -> Iterator[tuple[str, Sequence[FileLine]]]:
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
        found: list[FileLine] = []
        at = here
        while at and len(found) < 20:
            found.append((files.get(at[0], ""), int(at[1])))
            at = into.get(at, ())
        yield row.rstrip(), found if re.search(r";\s*}?\s*(//.*)?$", row) else ()


def _sass(text: str) -> Iterator[tuple[str, Sequence[FileLine]]]:
    for row, instruction in listed(text):
        places = [(instruction.file, instruction.line), *instruction.callers] if instruction else ()
        yield _NARROWER.sub(r"\1", row.rstrip()), places


_NARROWER = re.compile(r"^ {8}(/\*\w+\*/) {,13}(?= )")
"""nvdisasm indents instructions by 35 characters; this leaves room for a predicate."""


_READERS: dict[str, Callable[[str], Iterator[tuple[str, Sequence[FileLine]]]]] = {
    "source": _untraced,
    "frontend": mlir,
    "ttir": mlir,
    "ttgir": mlir,
    "llir": _llvm,
    "ptx": ptx,
    "sass": _sass,
    "inductor": _untraced,
}


# --------------------------------------------------------------------------- source lines

_PTX_INSTRUCTION = re.compile(r"^\s*(?:\{\s*)?(?:@!?%\w+\s+)?[a-z][\w.:]*(?:\s.*)?;")


@dataclass
class SourceLine:
    """One line of a source file."""

    file: str
    line: int
    """From 1; 0: the compiler does not say where the instructions come from."""
    text: str = ""
    ptx: list[str] = field(default_factory=list)
    sass: list[str] = field(default_factory=list)


def source_map(opened: Opened) -> list[SourceLine]:
    """The source lines that became code, in the order of the files; the kernel's own file first."""
    found: dict[tuple[str, int], SourceLine] = {}

    def at(file: str, line: int) -> SourceLine:
        return found.setdefault((file, line), SourceLine(file, line))

    stage = opened.stage("ptx")
    for file, number, text in ptx_lines(stage.text if stage else ""):
        at(file, number).ptx.append(text)
    for instruction in opened.instructions:
        if instruction.opcode != "NOP":
            at(instruction.file, instruction.line).sass.append(instruction.text)
    texts = {file: _read(file) for file, _ in found}
    weight: dict[str, int] = {}
    for line in found.values():
        rows = texts[line.file]
        line.text = rows[line.line - 1].strip() if 0 < line.line <= len(rows) else ""
        weight[line.file] = weight.get(line.file, 0) + len(line.sass)
    return sorted(found.values(), key=lambda line: (-weight[line.file], line.file, line.line))


def ptx_lines(text: str) -> list[tuple[str, int, str]]:
    """Each instruction of PTX with the file and line it came from; ``("", 0)`` where it is not said."""
    rows = ((row.partition("//")[0], places) for row, places in ptx(text) if _PTX_INSTRUCTION.match(row))
    return [(*(places[0] if places else ("", 0)), " ".join(row.split())) for row, places in rows]


def _read(file: str) -> Sequence[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ()
