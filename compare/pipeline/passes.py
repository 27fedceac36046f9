"""The MLIR passes of a compilation, read from their dumps, and what each changed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from compare.pipeline.records import Pass
from compare.pipeline.triton_adapter import MARK, pass_begins

_OTHER = re.compile(r"^// -----// (?!IR Dump Before )")
_LOCATION = re.compile(r" ?loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")


def read(dump: str) -> tuple[Pass, ...]:
    """All passes in the order they ran, from stderr under ``MLIR_ENABLE_DUMP=1``.

    Every pass prints its input, so its output is what the next pass prints.
    """
    found: list[tuple[str, str, str, list[str]]] = []  # stage, name, title, lines; the last without a name
    stage = ""
    lines: list[str] = []
    for line in dump.splitlines():
        if line.startswith(MARK):
            stage = line.removeprefix(MARK).strip()
            lines = []
            if stage == "end":
                found.append((stage, "", "", lines))
        elif began := pass_begins(line):
            title, name = began
            lines = []
            found.append((stage, name, title, lines))
        elif _OTHER.match(line):  # printed by a pass from within
            lines = []
        else:
            lines.append(line)
    modules = [_bare(lines) for *_, lines in found] + [None]
    return tuple(
        Pass(stage, name, title, before, after)
        for (stage, name, title, _), before, after in zip(found, modules, modules[1:], strict=False)
        if name and before is not None
    )


def diff(one: Pass, context: int = 2) -> str:
    """What a pass changed, as a unified diff; empty where it changed nothing."""
    if one.after is None:
        return ""
    lines = difflib.unified_diff(
        one.before.splitlines(),
        one.after.splitlines(),
        f"before {one.name}",
        f"after {one.name}",
        n=context,
        lineterm="",
    )
    return "\n".join(lines)


def _bare(lines: Sequence[str]) -> str:
    """A module without source locations."""
    kept = [bare(line) for line in lines if not line.startswith("#loc")]
    return "\n".join(line for line in kept if line)


def bare(line: str) -> str:
    """A line without locations.

    >>> bare('%1 = tt.load %0 : f32 loc(callsite(#loc1 at #loc2))')
    '%1 = tt.load %0 : f32'
    """
    return _LOCATION.sub("", line).rstrip()
