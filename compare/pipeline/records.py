"""What the pipeline finds, as frozen data; units stand in the field names."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compare.resources.sass.disassembly import Instruction
from compare.resources.sass.instruction_mix import mix

_MLIR = r'\s*(?:%[^=]*= )?"?([a-z_]\w*\.[\w.]+)"?'
OPERATIONS = {
    "ast": r"\s*(?:\w+=)?([A-Za-z]\w*)\(",
    "frontend": _MLIR,
    "ttir": _MLIR,
    "ttgir": _MLIR,
    "llir": r"  (?:%\S+ = )?(?:(?:tail|musttail|notail) )?([a-z]\w*)",
    "ptx": r"\s*(?:\{\s*)?(?:@!?%\w+\s+)?([a-z]\w*(?:[.:]+\w+)*)(?=[\s;]).*;",
    "sass": r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*(?:\.[\w.]+)*)",
}
"""What names the operation at the start of a line, by stage."""


@dataclass(frozen=True)
class CompilerStage:
    """What one step of a compiler made."""

    name: str
    """``ttgir``, ``ptx``: what it made, the same word for every compiler."""
    made_by: str
    """The tool or function."""
    content: bytes
    """Text, but for cubins, fat binaries and the host linker's output."""
    took_ms: float | None = None
    """Wall time of the step; None where there was nothing to do, or where it is part of another's."""
    command: str = ""
    """The command that made it, where one did."""
    log: str = ""
    """What the tool printed."""
    file: str = ""
    """Of a source: where it lies, as compilers name it."""
    first_line: int = 1
    """Of a source: the number of its first line in that file."""

    @property
    def binary(self) -> bool:
        return b"\0" in self.content

    @property
    def text(self) -> str:
        """Empty for a binary."""
        return "" if self.binary else self.content.decode(errors="replace")

    @property
    def lines(self) -> int | None:
        """None for a binary."""
        return None if self.binary else len(self.text.splitlines())

    @property
    def ops(self) -> dict[str, int]:
        """How often each operation stands in it, the most frequent first; empty where none are counted.

        >>> CompilerStage("ttir", "", b"  %x = tt.load %p : f32 loc(#loc1)\\n  tt.store %q, %x : f32").ops
        {'tt.load': 1, 'tt.store': 1}
        >>> CompilerStage("llir", "", b"define void @f() {\\n  %1 = tail call i32 @llvm.x(), !dbg !5\\n}").ops
        {'call': 1}
        >>> CompilerStage("ptx", "", b"\\t.reg .b32 %r<3>;\\n\\t@%p1 ld.global.v4.b32 { %r1 }, [ %rd1 ];").ops
        {'ld.global.v4.b32': 1}
        """
        pattern = OPERATIONS.get(self.name)
        matches = (re.match(pattern, line) for line in self.text.splitlines()) if pattern else ()
        return dict(Counter(match[1] for match in matches if match).most_common())


@dataclass(frozen=True)
class StageFailure:
    """The stage at which a compiler failed."""

    stage: str
    message: str
    """The compiler's own."""
    line: str = ""
    """Of the source, as ``file:line``; empty where the compiler does not say."""


@dataclass(frozen=True)
class Pass:
    """One MLIR pass of Triton's, in the order they ran."""

    stage: str
    name: str
    """As MLIR has it: ``tritongpu-coalesce``."""
    title: str
    """The class: ``TritonGPUCoalesce``."""
    before: str
    """The module, without locations."""
    after: str | None
    """None where this Triton does not show it."""

    @property
    def changed(self) -> bool:
        return self.after is not None and self.before != self.after


@dataclass(frozen=True)
class CacheEntry:
    """What a compiler keeps of one kernel on disk, or would keep."""

    cache: str
    """Whose it is: a name of `compare.pipeline.caches.caches`."""
    what: str
    """``kernel``, ``pybind11 module for sm_90, the one in use``."""
    key: str
    place: str = ""
    """Its folder, or its only file."""
    files: Mapping[str, int] = field(default_factory=dict)
    """Bytes by name; empty: nothing is kept there."""
    made_of: Mapping[str, str] = field(default_factory=dict)
    """What the key is a hash of, part by part; empty where that is said of the cache."""


@dataclass(frozen=True)
class Opened:
    """One kernel of one implementation, with every stage of its compiler."""

    op: str
    label: str
    case: str
    arch: str
    kernel: str = ""
    stages: tuple[CompilerStage, ...] = ()
    passes: tuple[Pass, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    cached: tuple[CacheEntry, ...] = ()
    """What is on this machine's disk; of Triton also what it would keep."""
    failure: StageFailure | None = None
    unavailable: str = ""
    """Why no stage can be shown; empty if one can."""
    symbol: str = ""
    """The kernel's name in the cubin."""

    def stage(self, name: str) -> CompilerStage | None:
        return next((stage for stage in self.stages if stage.name == name), None)

    def plus(self, result: CompilerStage | StageFailure) -> Opened:
        """The same with one more stage, or stopped at one."""
        if isinstance(result, StageFailure):
            return replace(self, failure=result)
        return replace(self, stages=(*self.stages, result))


@dataclass(frozen=True)
class OpenRequest:
    """What to open up."""

    op: str
    load: tuple[str, ...] = ()
    """The user's files."""
    only: tuple[str, ...] = ()
    """Patterns of labels; empty: all."""
    case: str = ""
    """Empty: the op's default."""
    archs: tuple[str, ...] = ()
    """Empty: the default ones."""
    dump: bool = False
    """With every MLIR pass."""
    triton_only: bool = False


@dataclass(frozen=True)
class OpenedOp:
    """An op's kernels, opened up."""

    signature: str
    opened: tuple[Opened, ...]


def as_data(opened: Opened) -> dict[str, Any]:
    """For `compare.records.encoding.encode`: all of it, of binaries their size and hash."""
    data = {**vars(opened), "mix": mix(opened.instructions)}
    shown = ("name", "made_by", "took_ms", "lines", "ops", "command", "log", "text")
    data["stages"] = [
        {name: getattr(stage, name) for name in shown}
        | {"size_bytes": len(stage.content), "sha256": hashlib.sha256(stage.content).hexdigest()}
        for stage in opened.stages
    ]
    data["passes"] = [vars(one) | {"changed": one.changed} for one in opened.passes]
    return data
