"""Machine code as text, by the disassembler that Triton's wheel carries, and its instructions one by one."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_impl import build

_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)( inlined at )?')
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<offset>[0-9a-f]{4,})\*/\s+(?P<text>(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z]\w*(?:\.[\w.]+)*)[^;]*?)\s*;"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction of machine code."""

    offset: int
    """Bytes from the kernel's first."""
    opcode: str
    """With its modifiers: ``LDG.E.128``."""
    text: str
    """Whole, its predicate included."""
    file: str = ""
    line: int = 0
    """Of the source; 0 where the compiler does not say."""
    callers: tuple[tuple[str, int], ...] = ()
    """Where that line was inlined, the innermost first: file and line."""


class NoDisassembler(RuntimeError):
    """nvdisasm is missing or refuses the file; the text says what to do next."""


@functools.cache
def nvdisasm() -> Path:
    """Of Triton's wheel.

    Raises:
        NoDisassembler: this Triton carries none.
    """
    tool = build.triton_nvidia() / "bin" / "nvdisasm"
    if not tool.is_file():
        raise NoDisassembler(f"no nvdisasm at {tool}: this Triton does not bring it; pip install triton")
    return tool


def disassembled(cubin: bytes) -> str:
    """The code of a cubin, with the source line of each instruction.

    Raises:
        NoDisassembler: there is none, or it refuses the file.
    """
    # A `NamedTemporaryFile` that cannot be written whole is not closed before Python ends.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        # Without dataflow analysis, which is half of its time and annotates indirect branches only.
        command = [str(nvdisasm()), "--print-code", "--print-line-info-inline", "--no-dataflow", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoDisassembler(f"{nvdisasm()} refuses the cubin: {done.stderr.strip()}")
    return done.stdout


def of_kernel(text: str, mangled: str) -> str:
    """The part of a disassembly that is one kernel's."""
    _, _, rest = text.partition(f"\n.text.{mangled}:\n")
    return rest.partition("\n//-------")[0].strip("\n")


def instructions(text: str) -> tuple[Instruction, ...]:
    """All of a disassembly, in order.

    >>> (found,) = instructions('''
    ... //## File "/a/b.py", line 21
    ...         /*0200*/              @!P0 LDG.E.128 R12, desc[UR4][R2.64] ;
    ... ''')
    >>> found.offset, found.opcode, found.text, found.line
    (512, 'LDG.E.128', '@!P0 LDG.E.128 R12, desc[UR4][R2.64]', 21)
    """
    return tuple(instruction for _, instruction in listed(text) if instruction)


def listed(text: str) -> Iterator[tuple[str, Instruction | None]]:
    """The rows of a disassembly but those that name source lines, each with its instruction, if it is one."""
    places: list[tuple[str, int]] = []
    inlined = False
    for row in text.splitlines():
        if place := _LINE.match(row):
            places = [*(places if inlined else ()), (place[1], int(place[2]))]
            inlined = place[3] is not None
        elif match := _INSTRUCTION.match(row):
            code = re.sub(r"\s+", " ", match["text"])
            (file, line), *callers = places or [("", 0)]
            offset = int(match["offset"], 16)
            yield row, Instruction(offset, match["opcode"], code, file, line, tuple(callers))
        else:
            yield row, None
