"""The code that a Python function reaches by name, in its file and the project files that it imports."""

from __future__ import annotations

import ast
import symtable
import textwrap
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.code_size.cpp import is_source
from compare.code_size.pieces import CodePiece
from compare.code_size.sources import Module, code_of, module_of

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
    """and all that these use."""


def reached(run: Callable[..., Any], launched: Collection[str] | None = None) -> Reached:
    """The code that ``run`` reaches.

    CUDA text in a string constant is left out: it counts as CUDA, where it is launched.

    Args:
        run: the function.
        launched: names of the Triton kernels to count; None: all that it names.

    Raises:
        OSError: the file of ``run`` was deleted, or its line holds no statement.
    """
    code = code_of(run)
    path, line = Path(code.co_filename), code.co_firstlineno
    if path.suffix == ".cu":  # a comment launches its kernel
        return Reached([], [], [])
    statements = module_of(path).statements if path.is_file() else ()
    around = [node for node in statements if _first_line(node) <= line <= _last_line(node)]
    if not around:
        raise OSError(f"its function is not found in {path}: exec made it, or the file has changed since")
    found = Reached([], [], [])
    seen = {(path, name) for name, node in module_of(path).defined.items() if node is around[-1]}
    waiting: list[tuple[Path, str, bool]] = []

    def take(path: Path, node: ast.stmt, pieces: list[CodePiece], in_kernel: bool) -> None:
        module = module_of(path)
        if not _is_cuda_text(node):
            pieces.append(_piece(path, module, node))
        waiting.extend((*used, in_kernel) for used in _used(path, module, node))

    take(path, around[-1], found.launch, False)
    while waiting:
        path, name, in_kernel = waiting.pop(0)
        module = module_of(path)
        if (path, name) in seen:
            continue
        node = module.defined.get(name)
        is_launched = not in_kernel and node is not None and _is_kernel(node)
        if is_launched and launched is not None and name not in launched:
            continue  # for other cases; a kernel that is launched may still use it
        seen.add((path, name))
        if name in module.imported:
            file, original = module.imported[name]
            if original is not None:
                waiting.append((file, original, in_kernel))
        elif node is not None:
            take(path, node, found.kernels if is_launched else found.others, in_kernel or is_launched)
    return found


def _used(path: Path, module: Module, node: ast.stmt) -> list[tuple[Path, str]]:
    """Names that a definition takes from outside, each with the file to look it up in."""
    names = []
    outer = set(_global_names(symtable.symtable(ast.unparse(node), str(path), "exec")))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id in outer:
            names.append((path, inner.id))
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            file, original = module.imported.get(inner.value.id, (None, None))
            if file is not None and original is None and inner.value.id in outer:
                names.append((file, inner.attr))
    return names


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """Names of a piece of code, without parameters and variables of functions."""
    for symbol in table.get_symbols():
        if table.get_type() == "module" or symbol.is_global():
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _global_names(inner)


def _piece(path: Path, module: Module, node: ast.stmt) -> CodePiece:
    """The code of a definition, without docstrings and registration."""
    dropped: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, _Function):
            out = [d for d in inner.decorator_list if _decorator_name(d) in _REGISTRATIONS]
            if ast.get_docstring(inner, clean=False) is not None and len(inner.body) > 1:
                out.append(inner.body[0])  # type: ignore[arg-type]
            for part in out:
                dropped |= set(range(part.lineno, _last_line(part) + 1))
    kept = range(_first_line(node), _last_line(node) + 1)
    text = textwrap.dedent("\n".join(module.lines[i - 1] for i in kept if i not in dropped))
    return CodePiece(text, "python", str(path))


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _last_line(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _is_kernel(node: ast.stmt) -> bool:
    return any(_decorator_name(d) == "jit" for d in getattr(node, "decorator_list", ()))


def _decorator_name(node: ast.expr) -> str:
    """``jit`` for ``@triton.jit``, ``implementation`` for ``@implementation(...)``."""
    if isinstance(node, ast.Call):
        return _decorator_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_cuda_text(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and is_source(value.value)
