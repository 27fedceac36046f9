"""One source line beside its PTX and SASS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compare.pipeline import tracing
from compare.pipeline.records import Opened

_PTX = re.compile(r"^\s*(?:\{\s*)?(?:@!?%\w+\s+)?[a-z][\w.:]*(?:\s.*)?;")


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

    ptx = opened.stage("ptx")
    for file, number, text in ptx_lines(ptx.text if ptx else ""):
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


def ptx_lines(ptx: str) -> list[tuple[str, int, str]]:
    """Each instruction of PTX with the file and line it came from; ``("", 0)`` where it is not said."""
    rows = ((row.partition("//")[0], places) for row, places in tracing.ptx(ptx) if _PTX.match(row))
    return [(*(places[0] if places else ("", 0)), " ".join(row.split())) for row, places in rows]


def _read(file: str) -> Sequence[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ()
