"""The source files behind each row, highlighted, and where in them the row's own code begins and ends."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markupsafe import Markup
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType

from compare import registry
from compare.code_size.hashes import source_hash
from compare.code_size.sources import code_of, sources, text_of
from compare.model.op import Implementation, UsageError
from compare.model.result import Row
from compare.records.archive import changed_since
from compare.timing import figures

_NOT_SHOWN = tuple(registry.ROOT / path for path in ("compare", "ops", "cuda_impl/flags.py"))
"""A row's hash covers these as well; they are the op's description and the compilers' flags."""
_CLASSES = (
    (Comment, "c"),
    (String, "s"),
    (Number, "m"),
    (Keyword.Type, "t"),
    (Keyword, "k"),
    (Name.Function, "f"),
    (Name.Variable, "v"),
    (Name.Decorator, "d"),
    (Name.Builtin, "k"),
)
"""Pygments' tokens, and the style sheets' classes for them."""


@dataclass(frozen=True)
class Code:
    """One row's source."""

    files: tuple[Path, ...]
    """The file with its kernel first."""
    start: tuple[int, int]
    """First and last line of its kernel, else of its launch, in the first file; counted from 1."""
    changed: bool
    """The source is no longer the one that was measured."""
    implementation: Implementation


def implementations(op: str) -> dict[str, Implementation]:
    """By label; none of an op that only a user's file knew."""
    with suppress(UsageError):
        return {impl.label: impl for impl in registry.implementations(op)}
    return {}


def code(impl: Implementation, row: Row) -> Code | None:
    """The source of ``row``; None where its file is gone or can no longer be read."""
    try:
        files = [impl.user_file] if impl.user_file else _shown(impl)
        found = next(
            filter(None, (_start(file, names) for names in _wanted(impl, row) for file in files)), None
        )
        file, start = found or (files[0], (1, 1))
        changed = changed_since(row) or (
            bool(row.source_hash) and not row.recorded and row.source_hash != source_hash(impl)
        )
    except (OSError, SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
        return None
    return Code((file, *(other for other in files if other != file)), start, changed, impl)


def name(path: Path) -> str:
    """As the page has it: within the project, or without the folders that it lies in."""
    return path.relative_to(registry.ROOT).as_posix() if path.is_relative_to(registry.ROOT) else path.name


@functools.cache
def highlighted(path: Path) -> Markup:
    """A ``<b>`` for each line of the file, with a ``<i>`` for each run of one colour."""
    text = text_of(path) if path.suffix == ".py" else path.read_text(encoding="utf-8")
    # Pygments takes quadratic time for lines of spaces.
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    lexer = get_lexer_by_name("python" if path.suffix == ".py" else "cuda", stripnl=False, ensurenl=False)
    lines: list[list[tuple[str, str]]] = [[]]
    for kind, value in lexer.get_tokens(text.rstrip("\n")):
        for count, part in enumerate(value.split("\n")):
            if count:
                lines.append([])
            if part and lines[-1] and lines[-1][-1][0] == class_of(kind):
                part = lines[-1].pop()[1] + part
            if part:
                lines[-1].append((class_of(kind), part))
    return Markup("".join(f"<b>{''.join(map(_run, line))}</b>" for line in lines))


def _run(part: tuple[str, str]) -> str:
    colour, text = part
    return f"<i class={colour}>{escape(text)}</i>" if colour else escape(text)


@functools.cache
def class_of(kind: _TokenType) -> str:
    """The style sheet's class of a token; empty: no colour."""
    return next((letter for of, letter in _CLASSES if kind in of), "")


def _shown(impl: Implementation) -> list[Path]:
    """The op's own files before shared headers, kernels before the code that launches them."""
    found = [path for path in sources(impl) if not any(path.is_relative_to(no) for no in _NOT_SHOWN)]
    return sorted(
        found,
        key=lambda path: (impl.op not in (path.stem, path.parent.name), path.suffix != ".cuh", path.name),
    )


def _wanted(impl: Implementation, row: Row) -> Iterator[Sequence[str]]:
    """Names of what to look for in the files: its kernels, then its launch."""
    kernels = [figures.short_kernel(kernel.kernel) for kernel in row.resources]
    yield [name for name in kernels if impl.has_own_kernels]
    yield [] if impl.user_file else [code_of(impl.run).co_name]


def _start(file: Path, names: Iterable[str]) -> tuple[Path, tuple[int, int]] | None:
    for wanted in names:
        lines = _functions(file).get(wanted) if file.suffix == ".py" else _block(file, wanted)
        if lines:
            return file, lines
    return None


@functools.cache
def _functions(file: Path) -> dict[str, tuple[int, int]]:
    """First and last line of every function in a module, decorators included."""
    return {
        node.name: (
            min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]),
            node.end_lineno or node.lineno,
        )
        for node in ast.walk(ast.parse(text_of(file)))
        if isinstance(node, ast.FunctionDef)
    }


def _block(file: Path, wanted: str) -> tuple[int, int] | None:
    """First and last line of a C++ function whose closing brace stands at the start of a line."""
    lines = file.read_text(encoding="utf-8").splitlines()
    defined = re.compile(rf"\b{re.escape(wanted)}\s*\(")
    for first, line in enumerate(lines):
        if defined.search(line) and not line.lstrip().startswith("//"):
            last = next((i for i in range(first, len(lines)) if lines[i].startswith("}")), first)
            while first and lines[first - 1].startswith(("template", "__global__", "__launch_bounds__")):
                first -= 1
            return first + 1, last + 1
    return None
