"""The steps of kernels in order: reads and writes of global memory, reductions, exponentials and products.

Of CUDA they are found in the PTX that NVRTC makes of one template instance, in the order of the kernel's
lines; of Triton in the text of the kernels and their helpers.  A repeated run of steps counts once, so
neither unrolling nor tiling matters.  A thread's own sums are no step, as the compiler makes Triton's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from compare.code_size.pieces import Piece

_PTX = (
    (re.compile(r"ld(\.\w+)*\.global|cp\.async\.c[ag]|cp\.async\.bulk\S*\.shared\S*\.global"), "read"),
    (re.compile(r"st(\.\w+)*\.global|cp\.async\.bulk\S*\.global\.shared"), "write"),
    (re.compile(r"(red|atom)(\.\w+)*\.global|cp\.reduce"), "atomic"),
    (re.compile(r"(w?mma|wgmma)\.mma|mma\.sync"), "product"),
    (re.compile(r"ex2\."), "exp"),
)
_COMBINED = {"add": "sum", "fma": "sum", "max": "max", "min": "min"}
"""What instructions make of two lanes' values."""

_TRITON = {
    **dict.fromkeys(("load", "async_load", "async_copy_global_to_shared"), "read"),
    **dict.fromkeys(("store", "async_store", "async_copy_shared_to_global"), "write"),
    **dict.fromkeys(("exp", "exp2", "fast_expf"), "exp"),
    **dict.fromkeys(("dot", "warpgroup_mma"), "product"),
    **dict.fromkeys(("reduce", "associative_scan", "cumsum"), "reduce"),
    **{name: name for name in ("sum", "max", "min")},
}
_MODULES = ("tl", "gl", "tma", "async_copy", "hopper", "libdevice")


def of_ptx(ptx: str) -> tuple[str, ...]:
    """The steps of an optimised kernel with line information."""
    found: list[tuple[tuple[int, ...], str]] = []
    around: dict[_Place, tuple[str, _Place]] = {}
    turns: dict[object, int] = {}
    at: tuple[int, ...] = ()
    shuffled: set[str] = set()
    for text in ptx.splitlines():
        if place := re.match(
            r"\s*\.loc\s+(\d+ \d+ \d+)(?:, function_name (\S+), inlined_at (\d+ \d+ \d+))?", text
        ):
            here, function, caller = place.groups()
            if caller:
                around[here] = function, caller
            else:
                around.pop(here, None)
            at = _order(here, around, turns)
            continue
        word, _, arguments = re.sub(r"^\s*(@!?%p\d+\s+)?", "", text).replace("\t", " ").partition(" ")
        registers = re.findall(r"%[a-z]+\d+", arguments)
        found += [(at, step) for pattern, step in _PTX if pattern.match(word)]
        kind = word.partition(".")[0]
        if kind == "shfl" and ".idx" not in word:  # that one broadcasts
            shuffled.add(registers[0])
        elif shuffled.intersection(registers[1:]):
            if kind in ("mov", "cvt"):
                shuffled.add(registers[0])
            elif kind in _COMBINED:
                found.append((at, _COMBINED[kind]))
    return collapsed([step for _, step in sorted(found, key=lambda each: each[0])])


_Place = str
"""File, line and column: ``2 74 5``."""


def _order(
    place: _Place, around: Mapping[_Place, tuple[str, _Place]], turns: dict[object, int]
) -> tuple[int, ...]:
    """The key by which instructions have the order of the source.

    It is the kernel's line, then for every inlined call its turn among the calls of that line and the line in
    it.  Turns are in the order of the PTX, as ``f(g(x))`` runs g first.
    """
    calls: list[tuple[str, _Place]] = []
    inner = place
    while inner in around and len(calls) < len(around):
        function, caller = around[inner]
        calls.insert(0, (function, inner))
        inner = caller
    key: tuple[int, ...] = (int(inner.split()[1]),)
    for function, inside in calls:
        key = (*key, turns.setdefault((key, function), len(turns)), int(inside.split()[1]))
    return key


def of_triton(kernels: Iterable[Piece], helpers: Iterable[Piece]) -> tuple[str, ...]:
    """The steps of these kernels, with those of the helpers that they call."""
    known = {}
    for piece in helpers:
        for node in ast.parse(piece.text).body:
            if isinstance(node, ast.FunctionDef):
                known[node.name] = node
    return tuple(
        step for kernel in kernels for step in collapsed(list(_steps(ast.parse(kernel.text), known, ())))
    )


def _steps(node: ast.AST, known: Mapping[str, ast.FunctionDef], within: tuple[str, ...]) -> Iterator[str]:
    """Steps in the order of evaluation."""
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call | ast.Assign | ast.AugAssign):
        parts.sort(key=lambda part: part in (getattr(node, "func", None), *getattr(node, "targets", ())))
    for part in parts:
        yield from _steps(part, known, within)
    if not isinstance(node, ast.Call):
        return
    base = ast.unparse(node.func.value).partition(".")[0] if isinstance(node.func, ast.Attribute) else ""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in known and name not in within:
        yield from _steps(known[name], known, (*within, name))
    elif name.startswith("atomic_"):
        yield "atomic"
    elif name in _TRITON and (
        base in _MODULES
        or (not base and "_" in name)  # imported by its name
        # A descriptor reads at a list of offsets, a tile in shared memory without.
        or (base and node.args and isinstance(node.args[0], ast.List))
    ):
        yield _TRITON[name]


def collapsed(steps: Sequence[str]) -> tuple[str, ...]:
    """Steps with every repeated run of them once."""
    found, length = list(steps), 1
    while length <= len(found) // 2:
        begin = 0
        while begin + 2 * length <= len(found):
            if found[begin : begin + length] == found[begin + length : begin + 2 * length]:
                del found[begin : begin + length]
            else:
                begin += 1
        length += 1
    return tuple(found)
