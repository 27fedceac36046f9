"""The code that a Python function reaches by name, in its file and the project files that it imports."""

from __future__ import annotations

import ast
import symtable
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare.code_size.cpp import is_source
from compare.code_size.pieces import CodePiece
from compare.code_size.sources import Module, code_of, first_line, module_of

_REGISTRATIONS = ("implementation", "variant")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Reached:
    """The code that a function reaches, by what it is."""

    launch: list[CodePiece]
    """The function itself,"""
    kernels: list[CodePiece]
    """the Triton kernels that it launches,"""
    others: list[CodePiece]
    """and all that these use,"""
    texts: list[str] = field(default_factory=list)
    """CUDA text in strings left out: it counts as CUDA."""


def reached(
    run: Callable[..., Any],
    launched: Collection[str] | None = None,
    passed: Collection[str] = (),
    sources: Collection[str] = (),
) -> Reached:
    """The code that ``run`` reaches.

    Args:
        run: the function.
        launched: names of the Triton kernels to count; None: all that it names.
        passed: names of the Triton functions that a kernel gets as an argument.
        sources: the CUDA texts that are launched.

    Raises:
        OSError: the file of ``run`` was deleted, or its line holds no statement.
    """
    code = code_of(run)
    path, line = Path(code.co_filename), code.co_firstlineno
    if path.suffix == ".cu":  # a comment launches its kernel
        return Reached([], [], [])
    statements = module_of(path).statements if path.is_file() else ()
    around = [node for node in statements if first_line(node) <= line <= _last_line(node)]
    if not around:
        raise OSError(f"its function is not found in {path}: exec made it, or the file has changed since")
    found = Reached([], [], [])
    seen = {(path, name) for name, nodes in module_of(path).defined.items() if around[-1] in nodes}
    waiting: list[tuple[Path, str, bool]] = []

    def take(path: Path, node: ast.stmt, pieces: list[CodePiece], in_kernel: bool) -> None:
        module = module_of(path)
        texts = _cuda_texts(node, sources)
        found.texts.extend(texts.values())
        if getattr(node, "value", None) not in texts:
            pieces.append(_piece(path, module, node, texts))
        waiting.extend((*used, in_kernel) for used in _used(path, module, node))

    take(path, around[-1], found.launch, False)
    while waiting:
        path, name, in_kernel = waiting.pop(0)
        module = module_of(path)
        if (path, name) in seen:
            continue
        nodes = module.defined.get(name, ())
        is_launched = not in_kernel and any(map(_is_kernel, nodes)) and name not in passed
        if is_launched and launched is not None and name not in launched:
            continue  # for other cases; a kernel that is launched may still use it
        seen.add((path, name))
        if name in module.imported:
            file, original = module.imported[name]
            if original is not None:
                waiting.append((file, original, in_kernel))
            continue
        for node in nodes:
            take(path, node, found.kernels if is_launched else found.others, in_kernel or is_launched)
        waiting += ((file, name, in_kernel) for file in module.stars if not nodes)
    return found


def _used(path: Path, module: Module, node: ast.stmt) -> list[tuple[Path, str]]:
    """Names that a definition takes from outside, each with the file to look it up in."""
    names = []
    outer = set(_global_names(symtable.symtable(ast.unparse(node), str(path), "exec")))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id in outer:
            names.append((path, inner.id))
        elif isinstance(inner, ast.Attribute):
            of = ast.unparse(inner.value)
            file, original = module.imported.get(of, (None, None))
            if file is not None and original is None and of.partition(".")[0] in outer:
                names.append((file, inner.attr))
    return names


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """Names of a piece of code, without parameters and variables of functions, but with what these import."""
    for symbol in table.get_symbols():
        if table.get_type() == "module" or symbol.is_global() or symbol.is_imported():
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _global_names(inner)


def _piece(path: Path, module: Module, node: ast.stmt, texts: Iterable[ast.expr] = ()) -> CodePiece:
    """The code of a definition, without docstrings, registration and these texts."""
    dropped = set(module.docstrings)
    for inner in ast.walk(node):
        if isinstance(inner, _Function):
            out = [d for d in inner.decorator_list if _decorator_name(d) in _REGISTRATIONS]
            dropped.update(line for part in out for line in range(part.lineno, _last_line(part) + 1))
    lines = dict(enumerate(module.lines[first_line(node) - 1 : _last_line(node)], first_line(node)))
    for text in sorted(texts, key=lambda text: (text.lineno, text.col_offset), reverse=True):
        last = _last_line(text)  # columns are counted in bytes
        before = lines[text.lineno].encode()[: text.col_offset]
        behind = lines[last].encode()[text.end_col_offset :]
        lines |= dict.fromkeys(range(text.lineno, last + 1), "")
        lines[text.lineno] = (before + b'""' + behind).decode()
    kept = "\n".join(line for number, line in lines.items() if number not in dropped)
    return CodePiece(textwrap.dedent(kept), "python", str(path))


def _last_line(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _is_kernel(node: ast.stmt) -> bool:
    return any(_decorator_name(d) == "jit" for d in getattr(node, "decorator_list", ()))


def _decorator_name(node: ast.expr) -> str:
    """``jit`` for ``@triton.jit``, ``implementation`` for ``@implementation(...)``."""
    if isinstance(node, ast.Call):
        return _decorator_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _cuda_texts(node: ast.stmt, sources: Collection[str]) -> dict[ast.expr, str]:
    """The strings with a kernel, or with several words of these sources, each with its text."""
    inner = list(ast.walk(node))
    skipped = {part for string in inner if isinstance(string, ast.JoinedStr) for part in string.values}
    skipped |= {statement.value for statement in inner if isinstance(statement, ast.Expr)}
    found: dict[ast.expr, str] = {}
    for string in inner:
        if isinstance(string, ast.JoinedStr | ast.Constant) and string not in skipped:
            parts: Sequence[ast.expr] = string.values if isinstance(string, ast.JoinedStr) else [string]
            words = [str(part.value) if isinstance(part, ast.Constant) else "_" for part in parts]
            several = [word for word in words if len(word.split()) > 1]
            if is_source("".join(words)) or any(word in text for word in several for text in sources):
                found[string] = "".join(words)
    return found
