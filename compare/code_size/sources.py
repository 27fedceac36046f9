"""The source files of an implementation, and their hash."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from compare import registry
from compare.code_size.pieces import Piece, bare
from compare.records import result_cache
from compare.spec import LIBRARY, Implementation

KERNELS = registry.ROOT / "cuda_impl" / "kernels"
PYBIND = registry.ROOT / "cuda_impl" / "pybind"
_FLAGS = registry.ROOT / "cuda_impl" / "flags.py"

_TOOLS = ("compare", "cuda_impl.build", "cuda_impl.flags", "cuda_impl.loader", "cuda_impl.pybind")
"""Modules that serve every op: not part of an implementation."""

_OPS = "compare.ops."
"""Modules of `_TOOLS` that describe single ops: part of an implementation."""

_LEXING = ("compare/code_size/pieces.py", "compare/code_size/sources.py")
"""The code that takes comments and docstrings away."""

_ALIGNMENT = re.compile(r"(?<=\S)[ \t]+")
"""Spaces between words, not those that indent a line."""


def source_hash(impl: Implementation) -> str:
    """A hash of what a row's figures depend on: its sources, the op's description, the compilers' flags.

    It covers the files' code and paths within the project, so equal checkouts have equal hashes.  Comments,
    docstrings, blank lines and spaces that align words do not count.
    """
    if impl.source_hash:
        return impl.source_hash
    digest = hashlib.sha256()
    for path in sources(impl):
        inside = path.is_relative_to(registry.ROOT)
        name = path.relative_to(registry.ROOT).as_posix() if inside else path.name
        digest.update(f"{name} {_hashed(path, path.stat().st_mtime_ns)}\n".encode())
    return digest.hexdigest()[:16]


@functools.lru_cache
def _hashed(path: Path, changed_ns: int) -> str:
    """The hash of a file's code, from the cache where its text and the lexer are unchanged."""
    text = hashlib.sha256(path.read_bytes()).hexdigest()
    name = result_cache.key(path.suffix, text, result_cache.versions("Pygments"), result_cache.code(*_LEXING))
    known = result_cache.read("hash_of_code", name)
    if isinstance(known, str):
        return known
    found = hashlib.sha256("\n".join(_lines_of_code(path)).encode()).hexdigest()
    result_cache.write("hash_of_code", name, found)
    return found


def text_of(path: Path) -> str:
    """A Python file's text, decoded as the file declares, without a byte-order mark."""
    with tokenize.open(path) as file:
        return file.read()


def _lines_of_code(path: Path) -> Iterator[str]:
    if path.suffix == ".py":
        module = _parsed(path)
        lines = (line for n, line in enumerate(module.text.split("\n"), 1) if n not in module.docstrings)
        piece = Piece("\n".join(lines), "python")
    else:
        piece = Piece(path.read_text(encoding="utf-8"), "cuda")
    return (_ALIGNMENT.sub(" ", line).rstrip() for line in bare(piece).split("\n") if line.strip())


def rests_on(impl: Implementation) -> str:
    """`source_hash`, for pybind with that of the cupy implementation whose launches are captured."""
    if impl.route != "pybind":
        return source_hash(impl)
    sibling = registry.through_cupy(impl, registry.implementations(impl.op))
    return "+".join(source_hash(i) for i in (impl, sibling) if i)


def sources(impl: Implementation) -> list[Path]:
    """The files that `source_hash` covers, in a fixed order."""
    # With imports from another op's description: cases, tolerance, inputs.
    found = _with_imports(Path(code_of(registry.get_op(impl.op).make_inputs).co_filename))
    if impl.route in ("pybind", LIBRARY):
        found |= with_includes(cpp_file(impl))
    else:
        own = _with_imports(Path(code_of(impl.run).co_filename))
        found |= own
        if impl.route == "cupy":
            # Its kernels are in the files of the ops that it names.
            named = {text for path in own for text in _parsed(path).strings}
            for path in KERNELS.glob("*.cuh"):
                found |= with_includes(path) if path.stem in named else set()
    if impl.way in ("cuda", LIBRARY):
        found.add(_FLAGS)
    return sorted(path for path in found if path.is_file())


def cpp_file(impl: Implementation) -> Path:
    """The C++ host code of a pybind or library implementation."""
    return (PYBIND / LIBRARY if impl.route == LIBRARY else PYBIND) / f"{impl.op}.cu"


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
    return _with_all(path, _includes)


def _includes(path: Path) -> Iterator[Path]:
    for name in re.findall(r'(?m)^\s*#\s*include\s*"([^"]+)"', path.read_text(encoding="utf-8")):
        beside = path.parent / name, PYBIND / name, KERNELS / name, KERNELS / Path(name).name
        yield from (file.resolve() for file in beside)


def imports_of(nodes: Iterable[ast.AST], path: Path) -> dict[str, tuple[Path, str | None]]:
    """Names that a module imports from an implementation's files.

    Args:
        nodes: of the module's tree.
        path: the module's file; imports are looked up in the project and beside it.

    Returns:
        For each name the file, and the name there; None where the name is the module.
    """
    found: dict[str, tuple[Path, str | None]] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                file = _project_file(alias.name, path)
                if file is not None:
                    found[alias.asname or alias.name] = file, None
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = alias.asname or alias.name
                module = _project_file(f"{node.module}.{alias.name}", path)
                package = _project_file(node.module, path)
                if module is not None:
                    found[name] = module, None
                elif package is not None:
                    found[name] = package, alias.name
    return found


def _project_file(module: str, importer: Path) -> Path | None:
    """The file of a module; None for libraries and tools."""
    is_tool = any(module == tool or module.startswith(f"{tool}.") for tool in _TOOLS)
    if is_tool and not module.startswith(_OPS):
        return None
    files = (
        root.joinpath(*module.split(".")).with_suffix(".py") for root in (registry.ROOT, importer.parent)
    )
    return next((file for file in files if file.is_file()), None)


def _with_imports(path: Path) -> set[Path]:
    return _with_all(
        path, lambda file: [other for other, _ in imports_of(_parsed(file).imports, file).values()]
    )


def _with_all(path: Path, uses: Callable[[Path], Iterable[Path]]) -> set[Path]:
    """A file and every file that it uses, transitively."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        path = waiting.pop()
        if path not in found and path.is_file():  # code made by exec has no file
            found.add(path)
            waiting += uses(path)
    return found


@dataclass(frozen=True)
class _Parsed:
    """The parts of a module that hashes and imports need."""

    text: str
    imports: tuple[ast.AST, ...]
    strings: frozenset[str]
    docstrings: frozenset[int]
    """Numbers of the lines that hold only a string statement."""


def _parsed(path: Path) -> _Parsed:
    return _parsed_at(path, path.stat().st_mtime_ns)


@functools.lru_cache
def _parsed_at(path: Path, changed_ns: int) -> _Parsed:
    try:
        text = text_of(path)
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # a user's file: its importer may expect the failure
        return _Parsed(path.read_text(errors="replace"), (), frozenset(), frozenset())
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    return _Parsed(
        text,
        tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)),
        frozenset(value for value in constants if isinstance(value, str)),
        frozenset(_of_docstrings(nodes, text.split("\n"))),
    )


def _of_docstrings(nodes: Iterable[ast.AST], lines: Sequence[str]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            end = node.end_lineno or node.lineno
            # Columns are counted in bytes.
            before = lines[node.lineno - 1].encode()[: node.col_offset]
            behind = lines[end - 1].encode()[node.end_col_offset :]
            if not before.strip() and not behind.strip():
                yield from range(node.lineno, end + 1)
