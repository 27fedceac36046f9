"""The source files of an implementation."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from compare import registry
from compare.code_size.pieces import CodePiece, bare
from compare.model.op import LIBRARY, ROUTES, Implementation
from compare.places import PACKAGES
from compare.records.reading import read_bytes, read_text

KERNELS = registry.ROOT / "cuda_impl" / "kernels"
PYBIND = registry.ROOT / "cuda_impl" / "pybind"
FLAGS = registry.ROOT / "cuda_impl" / "flags.py"

USER_FILE_BYTES = 1 << 18
"""The largest file that is read outside of the project."""

_TOOLS = (
    "compare",
    *(
        f"cuda_impl.{name}"
        for name in ("buffers", "build", "flags", "host_flags", "launch", "loader", "pybind", "tensor_maps")
    ),
)
"""Modules that serve every op: not part of an implementation."""

_ALIGNMENT = re.compile(r"(?<=\S)[ \t]+")
"""Spaces between words, not those that indent a line."""


def text_of(path: Path) -> str:
    """A Python file's text, decoded as the file declares, without a byte-order mark.

    Raises:
        UsageError: a user's file is none that can be read, or too large to parse.
        SyntaxError: it is not in the encoding that it declares.
    """
    content = io.BytesIO(_content(path))
    encoding, _ = tokenize.detect_encoding(content.readline)
    content.seek(0)
    return io.TextIOWrapper(content, encoding).read()


def _content(path: Path) -> bytes:
    inside = path.is_relative_to(registry.ROOT)
    return read_bytes(path) if inside else read_bytes(path, USER_FILE_BYTES)


def lines_of_code(path: Path) -> Iterator[str]:
    """A file's code, without comments and docstrings, and without spaces that align words."""
    if path.suffix == ".py":
        module = module_of(path)
        lines = (line for n, line in enumerate(module.lines, 1) if n not in module.docstrings)
        piece = CodePiece("\n".join(lines), "python")
    else:
        piece = CodePiece(read_text(path), "cuda")
    return lines_of_piece(piece)


def lines_of_piece(piece: CodePiece) -> Iterator[str]:
    """The same of a part of a file."""
    return (_ALIGNMENT.sub(" ", line).rstrip() for line in bare(piece).split("\n") if line.strip())


def sources(impl: Implementation) -> list[Path]:
    """The files of an implementation and of its op's description, in a fixed order."""
    # With imports from another op's description: cases, tolerance, inputs.
    described = _with_imports(Path(code_of(registry.get_op(impl.op).make_inputs).co_filename))
    return sorted(path for path in {*described, *own_sources(impl)} if path.is_file())


def own_sources(impl: Implementation) -> list[Path]:
    """The files of an implementation, in a fixed order."""
    if by_hand := cpp_file(impl):
        files = with_includes(by_hand)
    else:
        file = Path(code_of(impl.run).co_filename)
        files = with_includes(file) if file.suffix == ".cu" else _with_imports(file)
        if impl.route in ROUTES:
            # Its kernels are in the files of the ops that it names.
            named = {text for path in files for text in module_of(path).strings}
            for path in KERNELS.glob("*.cuh"):
                files |= with_includes(path) if path.stem in named else set()
    if impl.way in ("cuda", LIBRARY):
        files.add(FLAGS)
    return sorted(path for path in files if path.is_file())


def cpp_file(impl: Implementation) -> Path | None:
    """The C++ host code of an implementation, where it is written by hand; None: its host code is Python."""
    folders = {"pybind": PYBIND, LIBRARY: PYBIND / LIBRARY}
    file = folders[impl.route] / f"{impl.op}.cu" if impl.route in folders else None
    return file if file is not None and file.is_file() else None


def code_of(function: Callable[..., Any]) -> CodeType:
    """The code object of a function, without its wrappers."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or type(function).__call__.__code__
    assert isinstance(code, CodeType)
    return code


def with_includes(path: Path) -> set[Path]:
    """A C++ file and every project file that it includes in quotes, transitively."""
    return set(include_depths(path))


def include_depths(path: Path) -> dict[Path, int]:
    """For a C++ file and each that it includes: 0 for itself, 1 for those that it names, and so on."""
    return _with_all(path, _includes)


def _includes(path: Path) -> tuple[Path, ...]:
    return _includes_at(path, path.stat().st_mtime_ns)


@functools.cache
def _includes_at(path: Path, changed_ns: int) -> tuple[Path, ...]:
    names = re.findall(r'(?m)^\s*#\s*include\s*"([^"]+)"', read_text(path))
    folders = path.parent, PYBIND, KERNELS
    beside = (file for name in names for file in (*(f / name for f in folders), KERNELS / Path(name).name))
    return tuple(file.resolve() for file in beside)


def _with_all(path: Path, uses: Callable[[Path], Iterable[Path]]) -> dict[Path, int]:
    """A file and every file that it uses, transitively, each with its least distance."""
    found: dict[Path, int] = {}
    waiting = [(path, 0)]
    while waiting:
        path, depth = waiting.pop(0)
        if path not in found and path.is_file():  # code made by exec has no file
            found[path] = depth
            waiting += ((used, depth + 1) for used in uses(path))
    return found


def _with_imports(path: Path) -> set[Path]:
    def imports(file: Path) -> list[Path]:
        module = module_of(file)
        return [*(other for other, _ in module.imported.values()), *module.stars]

    return set(_with_all(path, imports))


@dataclass(frozen=True)
class Module:
    """A Python file, parsed."""

    lines: tuple[str, ...]
    statements: tuple[ast.stmt, ...] = ()
    """At top level and nested in them, but not in functions and classes."""
    defined: Mapping[str, tuple[ast.stmt, ...]] = field(default_factory=dict)
    """Functions, classes and assignments by name: the last one, and those that it adds to."""
    imported: Mapping[str, tuple[Path, str | None]] = field(default_factory=dict)
    """Names imported from an implementation's files, in the project and beside it: the file, and the name
    there; None where the name is the module.  ``import a.b`` has the name ``a.b``."""
    stars: tuple[Path, ...] = ()
    """The files of which every name is imported."""
    strings: frozenset[str] = frozenset()
    docstrings: frozenset[int] = frozenset()
    """Numbers of the lines that hold only a string statement."""


def module_of(path: Path) -> Module:
    """The parsed file; only its lines where it is no Python: a user's file may expect its import to fail."""
    return _module_at(path, path.stat().st_mtime_ns)


@functools.cache
def _module_at(path: Path, changed_ns: int) -> Module:
    try:
        text = text_of(path)
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return Module(tuple(_content(path).decode(errors="replace").split("\n")))
    nodes, lines = list(ast.walk(tree)), tuple(text.split("\n"))
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    statements = tuple(_statements(tree))
    defined: dict[str, tuple[ast.stmt, ...]] = {}
    for statement in statements:
        for name, adds in _names(statement):
            kept = defined.get(name, ()) if adds or statement not in tree.body else ()
            defined[name] = (*kept, statement)
    imports = list(_imports(nodes, path))
    return Module(
        lines,
        statements,
        defined,
        {name: place for name, place in imports if name != "*"},
        tuple(file for name, (file, _) in imports if name == "*"),
        frozenset(value for value in constants if isinstance(value, str)),
        frozenset(_of_docstrings(nodes, lines)),
    )


def first_line(node: ast.stmt) -> int:
    """A statement's first line, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements in preorder: a function may be registered in an ``if``, a ``try`` or a ``for``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _statements(child)


def _names(statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    """What a statement defines, and whether it adds to what the name was: ``N += 1``, ``TABLE["a"] = 1``."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name, False
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        used = [inner for inner in ast.walk(statement) if isinstance(inner, ast.Name)]
        before = {inner.id for inner in used if isinstance(inner.ctx, ast.Load)}
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            for inner in ast.walk(target):
                if isinstance(inner, ast.Name):
                    yield inner.id, inner.id in before or isinstance(statement, ast.AugAssign)


def _imports(nodes: Iterable[ast.AST], path: Path) -> Iterator[tuple[str, tuple[Path, str | None]]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if file := _project_file(alias.name, path):
                    yield alias.asname or alias.name, (file, None)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{module}.{alias.name}" if node.module else module + alias.name
                if file := _project_file(full, path):
                    yield alias.asname or alias.name, (file, None)
                elif not _is_tool(full) and (file := _project_file(module, path)):
                    yield alias.asname or alias.name, (file, alias.name)


def _of_docstrings(nodes: Iterable[ast.AST], lines: Sequence[str]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            end = node.end_lineno or node.lineno
            # Columns are counted in bytes.
            before = lines[node.lineno - 1].encode()[: node.col_offset]
            behind = lines[end - 1].encode()[node.end_col_offset :]
            if not before.strip() and not behind.strip():
                yield from range(node.lineno, end + 1)


def _is_tool(module: str) -> bool:
    return any(module == tool or module.startswith(f"{tool}.") for tool in _TOOLS)


def _project_file(module: str, importer: Path) -> Path | None:
    """The file of a module; None for libraries and tools."""
    if _is_tool(module):
        return None
    absolute = module.lstrip(".")
    first, *_ = parts = absolute.split(".")
    if level := len(module) - len(absolute):
        roots = [importer.parents[min(level, len(importer.parents)) - 1]]
    else:  # within a package beside a user's file its name is that of a folder above
        roots = [importer.parent, *(folder.parent for folder in importer.parents if folder.name == first)]
        roots = [registry.ROOT, *roots] if first in PACKAGES else roots
    places = (root.joinpath(*parts) for root in roots)
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next((file for file in files if file.is_file()), None)
