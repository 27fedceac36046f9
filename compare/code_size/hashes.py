"""The hash of what the figures of an implementation depend on."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import registry
from compare.code_size.cpp import unit_of
from compare.code_size.pieces import CodePiece
from compare.code_size.python import reached
from compare.code_size.sources import FLAGS, code_of, cpp_file, lines_of_code, lines_of_piece, own_sources
from compare.model.op import Implementation, Op, no_options
from compare.records import result_cache
from compare.records.reading import read_bytes

_READERS = ("compare/code_size/*.py",)
"""The code that finds what is hashed."""
_CONDITION = re.compile(r"(?m)^[ \t]*#[ \t]*(?:el)?if.*$")


def source_hash(impl: Implementation) -> str:
    """A hash of what a row's times depend on: its code, the op's inputs and cost, the compilers' flags.

    Of the project's code it covers what the implementation reaches by name, of C++ every overload: another
    level in the same file changes nothing, and neither does a function that moves.  Of users' files and of
    C++ host code it covers whole files.  Comments, docstrings, blank lines and spaces that align words do not
    count, nor does how outputs are checked.
    """
    described = _described(registry.get_op(impl.op))
    files = own_sources(impl)
    texts = (f"{_named(path)} {_text_hash(path, path.stat().st_mtime_ns)}" for path in files)
    version = result_cache.versions("Pygments", "tree-sitter-cuda"), result_cache.code(*_READERS)
    name = result_cache.key(impl.op, impl.label, described, *texts, *version)
    known = result_cache.read("source_hash", name)
    if isinstance(known, str):
        return known
    pieces = _reached(impl)
    if pieces is None:
        lines = [(_named(path), _code_hash(path)) for path in files]
    else:
        lines = [(_named(FLAGS), _code_hash(FLAGS) if FLAGS in files else ""), *pieces]
    digest = hashlib.sha256("".join(f"{first} {text}\n" for first, text in lines).encode())
    digest.update(described.encode())
    result_cache.write("source_hash", name, digest.hexdigest()[:16])
    return digest.hexdigest()[:16]


def _named(path: Path) -> str:
    return path.relative_to(registry.ROOT).as_posix() if path.is_relative_to(registry.ROOT) else path.name


def _reached(impl: Implementation) -> list[tuple[str, str]] | None:
    """The language and text of each piece of the project's code that it reaches; None: it has other code."""
    kernels = kernels_of(impl)
    ours = Path(code_of(impl.run).co_filename).is_relative_to(registry.ROOT)
    if not ours or cpp_file(impl) or (impl.way == "cuda" and not kernels):
        return None
    code = reached(impl.run)
    in_strings = [CodePiece(text, "cuda") for text in code.texts]
    pieces, conditions = [*code.launch, *code.kernels, *code.others, *in_strings], []
    for source, names in kernels.items():
        in_cuda = unit_of(source).reachable(names)
        pieces += in_cuda
        for file in dict.fromkeys(piece.file for piece in in_cuda):
            conditions += _CONDITION.findall("\n".join(lines_of_code(Path(file))))
    texts = {(piece.language, "\n".join(lines_of_piece(piece))) for piece in pieces}
    return sorted(texts | {("condition", text) for text in conditions if "HOST_BUILD" not in text})


def kernels_of(impl: Implementation) -> dict[str, list[str]]:
    """The names of its launch table's CUDA kernels, by the op whose file has them; empty: it has no table."""
    if impl.way != "cuda":
        return {}
    sibling = impl if impl.route == "cupy" else registry.through_cupy(impl, registry.implementations(impl.op))
    table = getattr(sibling.run, "table", None) if sibling else None
    names: dict[str, list[str]] = {}
    for kernel in table.kernels if table else ():
        names.setdefault(kernel.source or impl.op, []).append(kernel.template.partition("<")[0])
    return names


@functools.lru_cache
def _described(op: Op) -> str:
    """The code that makes an op's inputs, options and cost."""
    pieces = set()
    functions: list[Callable[..., Any]] = [op.make_inputs, op.options, op.cost]
    for function in functions:
        if function is no_options:
            continue
        found = reached(function)
        pieces |= {*found.launch, *found.others}
    texts = ("\n".join(lines_of_piece(piece)) for piece in pieces)
    return "\n".join(sorted(texts))


@functools.lru_cache
def _text_hash(path: Path, changed_ns: int) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def _code_hash(path: Path) -> str:
    return hashlib.sha256("\n".join(lines_of_code(path)).encode()).hexdigest()


def rests_on(impl: Implementation) -> str:
    """`source_hash`, for pybind with that of the cupy implementation whose launches are captured."""
    if impl.route != "pybind":
        return source_hash(impl)
    sibling = registry.through_cupy(impl, registry.implementations(impl.op))
    return "+".join(source_hash(i) for i in (impl, sibling) if i)
