"""The real source of one implementation as a file that ``--load`` takes: its own lines, without the others'.

Of a module these are the statements that its function reaches, with the comments above them; of a CUDA kernel
the declarations that it reaches in its own file, as text beside its launch.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import places, registry
from compare.code_size import cpp
from compare.code_size.count import launched
from compare.code_size.sources import first_line, include_depths
from compare.model.op import UsageError, way_of
from cuda_impl.flags import KERNELS

MINE = "mine"
"""The name of the user's row: ``triton.mine``."""
EXAMPLE = "example"
_FOLDERS = {"torch": "torch_impl", "triton": "triton_impl", "cuda": "cuda_impl/launches"}
_IMPORTS = (ast.Import, ast.ImportFrom)
_PLANNED = "from cuda_impl.launch import Planned, tensors_of"
_BY_HAND = '''
@implementation("{op}", "cupy.{mine}", {keywords})
def {mine}(*tensors, **options):
    """The launch table's grid, block and arguments, with the kernels of SOURCE."""
    planned = Planned(SOURCE, {plan}(*tensors, **options), tensors_of(tensors, options))
    return planned.through_python()(planned.tensors)
'''


@dataclass(frozen=True)
class Starter:
    """A text to begin with."""

    label: str
    """``triton.onepass``: what it was; ``example`` of a file of examples/."""
    level: str
    file: Path
    row: str
    """The label that the file has for it."""


@functools.cache
def starters(op: str) -> dict[str, list[Starter]]:
    """By way, the easiest first: an example, then the project's own, slow to fast."""
    found: dict[str, list[Starter]] = {"torch": [], "triton": [], "cuda": []}
    example = places.DATA / "examples" / f"my_{op}.py"
    if example.is_file():
        for _, call in _decorated(ast.parse(example.read_text())):
            row = str(ast.literal_eval(call.args[1]))
            level = next(str(ast.literal_eval(k.value)) for k in call.keywords if k.arg == "level")
            found[way_of(row)].append(Starter(EXAMPLE, level, example, row))
    for impl in registry.implementations(op):
        way = impl.way
        if impl.route in ("torch", "triton", "cupy") and impl.prepare is None and not impl.untuned:
            file = registry.ROOT / _FOLDERS[way] / f"{op}.py"
            if file.is_file() and _function(file, impl.label):
                found[way].append(Starter(impl.label, impl.level, file, impl.label))
    return found


def text(op: str, way: str, label: str) -> str:
    """The file of a starter.

    Raises:
        UsageError: no starter has that label.
    """
    known = {each.label: each for each in starters(op).get(way, [])}
    if label not in known:
        raise UsageError(registry.unknown("starting point", label, known))
    starter = known[label]
    if way == "cuda" and label != EXAMPLE:
        return _cuda(op, starter)
    return _python(op, starter)


# --------------------------------------------------------------------------- Python


def _python(op: str, starter: Starter) -> str:
    function = _function(starter.file, starter.row)
    assert function is not None
    decorator = f'@implementation("{op}", "{_row(starter)}", {_keywords(op, starter)})'
    changed = {function.name: decorator}
    return _head(op, starter) + _sliced(starter.file, {function.name, "implementation"}, changed)


def _head(op: str, starter: Starter) -> str:
    what = f"{starter.row} of {starter.file.name}" if starter.label == EXAMPLE else starter.label
    return f'"""{op}: {what}, to be changed. A run checks and times it as {_row(starter)}."""\n\n'


def _row(starter: Starter) -> str:
    return f"{starter.row.partition('.')[0]}.{MINE}"


def _keywords(op: str, starter: Starter) -> str:
    """What the decorator says of a user's row too, with literal values."""
    if starter.label == EXAMPLE:
        return f'level="{starter.level}"'
    impl = next(iter(registry.implementations(op, [starter.label])))
    words = [f'level="{impl.level}"']
    if impl.requires:
        words.append(f'requires="{impl.requires}"')
    if impl.accumulator != "fp32":
        words.append(f'accumulator="{impl.accumulator}"')
    words += [f"{name}=False" for name in ("deterministic", "without_gpu") if not getattr(impl, name)]
    if impl.triton:
        words.append(f'triton="{impl.triton}"')
    if impl.tunable and impl.route != "cupy":  # of CUDA the launch table has the parameters
        tunable = ", ".join(f'"{name}": {tuple(values)}' for name, values in impl.tunable)
        words.append(f"tunable={{{tunable}}}")
    return ", ".join(words)


@functools.cache
def _function(file: Path, label: str) -> ast.FunctionDef | None:
    """The decorated function of a label."""
    for function, call in _decorated(ast.parse(file.read_text())):
        name = call.args[1].value if isinstance(call.args[1], ast.Constant) else ""
        route = "cupy." if ast.unparse(call.func) == "variant" else ""
        if f"{route}{name!s}" == label:
            return function
    return None


def _decorated(module: ast.Module) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and (call := _call_of(node)):
            yield node, call


def _call_of(function: ast.FunctionDef) -> Any:
    """Its decorator that registers it."""
    calls = (each for each in function.decorator_list if isinstance(each, ast.Call) and len(each.args) > 1)
    return next((call for call in calls if ast.unparse(call.func) in ("implementation", "variant")), None)


def _sliced(file: Path, wanted: set[str], changed: Mapping[str, str]) -> str:
    """The statements of a module that these names reach, with the blank lines and comments above them.

    Args:
        file: the module.
        wanted: names to begin with.
        changed: by function, the line in place of the decorator that registers it.
    """
    text = file.read_text()
    rows, nodes = text.splitlines(), ast.parse(text).body
    kept: set[int] = set()
    waiting, seen = [*wanted], set(wanted)
    while waiting:
        name = waiting.pop()
        for number, node in enumerate(nodes):
            if name in _bound(node) and number not in kept:
                kept.add(number)
                whole = isinstance(node, _IMPORTS) or _is_others(node, changed)
                new = set() if whole else _used(node, changed) - seen
                waiting += new
                seen |= new
    module = file.relative_to(registry.ROOT).with_suffix("").as_posix().replace("/", ".")
    parts = [
        f"\nfrom {module} import {node.name}"  # type: ignore[attr-defined]
        if _is_others(node, changed)
        else _statement(node, rows, seen, changed)
        for node in (nodes[number] for number in sorted(kept))
    ]
    return "\n".join(parts).strip() + "\n"


def _is_others(node: ast.stmt, changed: Mapping[str, str]) -> bool:
    """Whether it is the function of another implementation: imported, for a label is registered once."""
    return isinstance(node, ast.FunctionDef) and node.name not in changed and _call_of(node) is not None


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement of a module gives something to."""
    if isinstance(node, _IMPORTS):
        return _imported(node)
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    return {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


def _imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {_name(each) for each in node.names}


def _name(alias: ast.alias) -> str:
    return (alias.asname or alias.name).partition(".")[0]


def _used(node: ast.stmt, changed: Mapping[str, str]) -> set[str]:
    """The names in a statement; without those of a decorator that is replaced."""
    left_out = _call_of(node) if isinstance(node, ast.FunctionDef) and node.name in changed else None
    own = {id(each) for each in ast.walk(left_out)} if left_out else set()
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and id(each) not in own}


def _statement(node: ast.stmt, rows: Sequence[str], names: set[str], changed: Mapping[str, str]) -> str:
    """A statement with what is above it; of an import only what is used."""
    first = first_line(node) - 1
    lines = list(rows[first : node.end_lineno])
    if isinstance(node, _IMPORTS) and not names >= _imported(node):
        node.names = [each for each in node.names if _name(each) in names]
        lines = [ast.unparse(node)]
    if isinstance(node, ast.FunctionDef) and node.name in changed and (call := _call_of(node)):
        lines[call.lineno - 1 - first : (call.end_lineno or 0) - first] = filter(None, [changed[node.name]])
    while first and rows[first - 1].startswith("#"):
        first -= 1
        if not rows[first].startswith("# ---"):
            lines.insert(0, rows[first])
    while first and not rows[first - 1]:
        first -= 1
        lines.insert(0, "")
    return "\n".join(lines)


# --------------------------------------------------------------------------- CUDA


def _cuda(op: str, starter: Starter) -> str:
    """The kernels that a launch table launches as text, then the table, then what executes it."""
    function = _function(starter.file, starter.row)
    assert function is not None
    table = _sliced(starter.file, {function.name}, {function.name: ""})
    found = launched(next(iter(registry.implementations(op, [starter.label]))))
    names = [*(one.name for one in found.kernels if one.source == op), *found.fallbacks]
    rows = table.splitlines()
    imports = [node for node in ast.parse(table).body if isinstance(node, _IMPORTS)]
    head, rest = rows[: imports[-1].end_lineno], rows[imports[-1].end_lineno :]
    begin = "\n".join([*head, "from compare.registry import implementation", _PLANNED])
    last = _BY_HAND.format(op=op, mine=MINE, plan=function.name, keywords=_keywords(op, starter))
    source = f'SOURCE = r"""\n{_kernels(op, names)}"""\n'
    return (
        _head(op, starter) + "\n\n".join([begin, source, "\n".join(rest).strip() + "\n", last.strip()]) + "\n"
    )


def _kernels(op: str, names: Sequence[str]) -> str:
    """Their declarations in their own file, and what these reach there; other files stay included."""
    unit = cpp.unit_of(op)
    uses = [cpp.Use(name) for name in names]
    files = list(dict.fromkeys(piece.file for piece in unit.meant(uses)))
    included = {str(path) for file in files for path in include_depths(Path(file)) if str(path) != file}
    files = [file for file in files if file not in included]
    reached = unit.reached(uses)
    parts = []
    for file in files:
        whole = Path(file).read_text()
        pieces = [piece.text for piece in reached if piece.file == file]
        enums = (one.piece for one in unit.declarations if one.piece.text.startswith("enum"))
        pieces += [piece.text for piece in enums if piece.file == file and piece.text not in pieces]
        spans = sorted((whole.index(piece), piece) for piece in pieces if piece in whole)
        parts += [line for line in whole.splitlines() if line.startswith("#include")]
        if len(spans) < len(pieces) or _has_conditions(unit, pieces) or "\nnamespace" in whole:
            parts = [re.sub(r"(?m)^#pragma once\n", "", whole)]
            continue
        parts += [f"\n{_comment(whole, begin)}{piece}" for begin, piece in spans]
    if not parts:
        raise UsageError(f"{KERNELS}: no kernel of {op} is {', '.join(names)}")
    return "\n".join(parts) + "\n"


def _has_conditions(unit: cpp.Unit, pieces: Collection[str]) -> bool:
    """Whether a constant is among these twice: once for each branch of an ``#if``."""
    constants = (one for one in unit.declarations if one.parameters is None and not one.is_specialisation)
    counts = Counter(name for one in constants if one.piece.text in pieces for name in one.names)
    return max(counts.values(), default=0) > 1


def _comment(whole: str, begin: int) -> str:
    """The comment right above a declaration."""
    found = re.search(r"((?:^//[^\n]*\n)+)\Z", whole[:begin], re.MULTILINE)
    return found[1] if found else ""
