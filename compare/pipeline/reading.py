"""What the compilers' texts say: what each MLIR pass changed, and the source lines that a line comes from."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from compare.pipeline.records import OPERATIONS, CompilerStage, Opened, Pass
from compare.pipeline.triton_adapter import MARK
from compare.resources.sass.disassembly import listed

# --------------------------------------------------------------------------- passes

_BEGINS = re.compile(
    rf"(?m)^(?:{re.escape(MARK)}(?P<stage>\w+)$"
    r"|// -----// IR Dump Before (?P<title>\S+?):? \(?(?P<name>[\w.-]*).*$)"
)
"""What begins a module: to Triton 3.7 ``CSE (cse) (...)``, in 3.9 ``CSEPass: cse{a=b} (...)``."""
_LOCATION = re.compile(r" ?loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")


def passes(dump: str) -> tuple[Pass, ...]:
    """All passes in the order they ran, from stderr under ``MLIR_ENABLE_DUMP=1``.

    Every pass prints its input, so its output is what the next pass prints.

    >>> text = "// -----// IR Dump Before {} ('builtin.module' operation)\\nmodule {}\\n"
    >>> text = text.format("CSE (cse)", 1) + text.format("CSEPass: cse{a=b}", 2)
    >>> [(one.name, one.title, one.before, one.after) for one in passes(text)]
    [('cse', 'CSE', 'module 1', 'module 2'), ('cse', 'CSEPass', 'module 2', None)]
    """
    begins = [*_BEGINS.finditer(dump)]
    ends = [*(match.start() for match in begins[1:]), len(dump)]
    ran: list[Pass] = []
    stage = ""
    for match, end in zip(begins, ends, strict=True):
        stage = match["stage"] or stage
        module = _without_locations(dump[match.end() : end])
        if ran and ran[-1].after is None and (match["title"] or stage == "end"):
            ran[-1] = replace(ran[-1], after=module)
        if match["title"]:
            ran.append(Pass(stage, match["name"] or match["title"], match["title"], module, None))
    return tuple(ran)


def _without_locations(module: str) -> str:
    """A module without source locations, up to what a pass prints from within."""
    text = re.split(r"(?m)^// -----// ", module)[0]
    lines = (bare(line) for line in text.splitlines() if not line.startswith("#loc"))
    return "\n".join(line for line in lines if line)


def bare(line: str) -> str:
    """A line without locations.

    >>> bare('%1 = tt.load %0 : f32 loc(callsite(#loc1 at #loc2))')
    '%1 = tt.load %0 : f32'
    """
    return _LOCATION.sub("", line).rstrip()


def diff(ran: Pass, context: int = 2) -> str:
    """What a pass changed, as a unified diff; empty where it changed nothing."""
    before, after = ran.before.splitlines(), (ran.after or ran.before).splitlines()
    names = f"before {ran.name}", f"after {ran.name}"
    return "\n".join(difflib.unified_diff(before, after, *names, n=context, lineterm=""))


# --------------------------------------------------------------------------- where a line comes from

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


Placed = Iterator[tuple[str, Sequence[FileLine]]]
"""Each line, and the places that it comes from, the innermost first."""


def _mlir(text: str) -> Placed:
    named = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))

    def places(location: str, depth: int = 0) -> list[FileLine]:
        if match := re.match(r'"([^"]+)":(\d+)', location):
            return [(match[1], int(match[2]))]
        # By its name, as part of a named place, or the place and the one that it was inlined into.
        names = re.findall(r"#loc\d*", location) if depth < 20 else ()
        return [place for name in names for place in places(named.get(name, ""), depth + 1)]

    for line in text.splitlines():
        if not line.startswith("#loc"):
            locations = re.findall(r" loc\((.*)\)$", line)
            yield bare(line), places(locations[-1]) if locations else ()


def _llvm(text: str) -> Placed:
    """Without the debug information, which is not followed."""
    for row in text.splitlines():
        if not re.match(r"!|\s*#dbg_|\s*call void @llvm\.dbg", row):
            yield re.sub(r",? !dbg !\d+", "", row).rstrip(), ()


_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at (\d+) (\d+) (\d+))?")


def _ptx(text: str) -> Placed:
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
        places: list[FileLine] = []
        at = here
        while at and len(places) < 20:
            places.append((files.get(at[0], ""), int(at[1])))
            at = into.get(at, ())
        yield row.rstrip(), places if re.search(r";\s*}?\s*(//.*)?$", row) else ()


def _sass(text: str) -> Placed:
    for row, instruction in listed(text):
        places = [(instruction.file, instruction.line), *instruction.callers] if instruction else ()
        yield _NARROWER.sub(r"\1", row.rstrip()), places


_NARROWER = re.compile(r"^ {8}(/\*\w+\*/) {,13}(?= )")
"""nvdisasm indents instructions by 35 characters; this leaves room for a predicate."""


def _untraced(text: str) -> Placed:
    for line in text.splitlines():
        yield line, ()


_READERS: dict[str, Callable[[str], Placed]] = {
    **dict.fromkeys(("source", "inductor"), _untraced),
    **dict.fromkeys(("frontend", "ttir", "ttgir"), _mlir),
    "llir": _llvm,
    "ptx": _ptx,
    "sass": _sass,
}


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
    lines: dict[FileLine, SourceLine] = {}

    def at(file: str, line: int) -> SourceLine:
        return lines.setdefault((file, line), SourceLine(file, line))

    stage = opened.stage("ptx")
    for row, places in _ptx(stage.text if stage else ""):
        if re.match(OPERATIONS["ptx"], row):
            at(*(places or [("", 0)])[0]).ptx.append(" ".join(row.partition("//")[0].split()))
    for instruction in opened.instructions:
        if instruction.opcode != "NOP":
            at(instruction.file, instruction.line).sass.append(instruction.text)
    texts = {file: text_of(file).splitlines() for file, _ in lines}
    for line in lines.values():
        line.text = "".join(texts[line.file][line.line - 1 : line.line] if line.line else ()).strip()
    weight = Counter(line.file for line in lines.values() for _ in line.sass)
    return sorted(lines.values(), key=lambda line: (-weight[line.file], line.file, line.line))


def text_of(file: str) -> str:
    """A source file's text; empty where it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
