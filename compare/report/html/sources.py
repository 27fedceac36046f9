"""The source files behind each row, highlighted, and where in them the row's own code begins and ends."""

from __future__ import annotations

import ast
import functools
import re
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markupsafe import Markup
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType

from compare import registry
from compare.code_size.hashes import source_hash
from compare.code_size.sources import code_of, first_line, sources, text_of
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


def implementations(op: str) -> dict[str, Implementation]:
    """By label; none of an op that only a user's file knew."""
    with suppress(UsageError):
        return {impl.label: impl for impl in registry.implementations(op)}
    return {}


def code(impl: Implementation, row: Row) -> Code | None:
    """The source of ``row``; None where its file is gone or can no longer be read."""
    try:
        files = [impl.user_file] if impl.user_file else _shown(impl)
        kernels = [figures.short_kernel(kernel.kernel) for kernel in row.resources]
        names = kernels if impl.has_own_kernels else [], [] if impl.user_file else [code_of(impl.run).co_name]
        functions = ((file, _function(file, name)) for each in names for file in files for name in each)
        file, start = next(((file, start) for file, start in functions if start), (files[0], (1, 1)))
        changed = changed_since(row) or (
            bool(row.source_hash) and not row.recorded and row.source_hash != source_hash(impl)
        )
    except (OSError, SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
        return None
    return Code((file, *(other for other in files if other != file)), start, changed)


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
    lines = coloured(text.rstrip("\n"), lexer)
    return Markup("".join(f"<b>{''.join(map(_run, line))}</b>" for line in lines))


def _run(part: tuple[str, str]) -> str:
    colour, text = part
    return f"<i class={colour}>{escape(text)}</i>" if colour else escape(text)


def coloured(text: str, lexer: Lexer) -> list[list[tuple[str, str]]]:
    """Each line of ``text`` as runs of one colour: the style sheets' class, empty for none, and the run."""
    lines: list[list[tuple[str, str]]] = [[]]
    for kind, value in lexer.get_tokens(text):
        for count, part in enumerate(value.split("\n")):
            if count:
                lines.append([])
            if part and lines[-1] and lines[-1][-1][0] == _class_of(kind):
                part = lines[-1].pop()[1] + part
            if part:
                lines[-1].append((_class_of(kind), part))
    return lines


@functools.cache
def _class_of(kind: _TokenType) -> str:
    return next((letter for of, letter in _CLASSES if kind in of), "")


def _shown(impl: Implementation) -> list[Path]:
    """The op's own files before shared headers, kernels before the code that launches them."""
    return sorted(
        (path for path in sources(impl) if not any(path.is_relative_to(no) for no in _NOT_SHOWN)),
        key=lambda path: (impl.op not in (path.stem, path.parent.name), path.suffix != ".cuh", path.name),
    )


def _function(file: Path, name: str) -> tuple[int, int] | None:
    """First and last line of a function."""
    return _functions(file).get(name) if file.suffix == ".py" else _block(file, name)


@functools.cache
def _functions(file: Path) -> dict[str, tuple[int, int]]:
    """First and last line of every function in a module, decorators included."""
    return {
        node.name: (first_line(node), node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text_of(file)))
        if isinstance(node, ast.FunctionDef)
    }


def _block(file: Path, name: str) -> tuple[int, int] | None:
    """First and last line of a C++ function whose closing brace stands at the start of a line."""
    lines = file.read_text(encoding="utf-8").splitlines()
    defined = re.compile(rf"\b{re.escape(name)}\s*\(")
    for first, line in enumerate(lines):
        if defined.search(line) and not line.lstrip().startswith("//"):
            last = next((i for i in range(first, len(lines)) if lines[i].startswith("}")), first)
            while first and lines[first - 1].startswith(("template", "__global__", "__launch_bounds__")):
                first -= 1
            return first + 1, last + 1
    return None
