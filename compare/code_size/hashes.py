"""The hash of what the figures of an implementation depend on."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import registry
from compare.code_size.python import reached
from compare.code_size.sources import lines_of_code, lines_of_piece, own_sources
from compare.model.op import Implementation, Op, no_options
from compare.records import result_cache
from compare.records.reading import read_bytes

_LEXING = ("compare/code_size/pieces.py", "compare/code_size/sources.py")
"""The code that takes comments and docstrings away."""


def source_hash(impl: Implementation) -> str:
    """A hash of what a row's times depend on: its sources, the op's inputs and cost, the compilers' flags.

    It covers the files' code and paths within the project, so equal checkouts have equal hashes.  Comments,
    docstrings, blank lines and spaces that align words do not count, nor does how outputs are checked.
    """
    digest = hashlib.sha256()
    for path in own_sources(impl):
        inside = path.is_relative_to(registry.ROOT)
        name = path.relative_to(registry.ROOT).as_posix() if inside else path.name
        digest.update(f"{name} {_hashed(path, path.stat().st_mtime_ns)}\n".encode())
    digest.update(_described(registry.get_op(impl.op)).encode())
    return digest.hexdigest()[:16]


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
def _hashed(path: Path, changed_ns: int) -> str:
    """The hash of a file's code, from the cache where its text and the lexer are unchanged."""
    text = hashlib.sha256(read_bytes(path)).hexdigest()
    name = result_cache.key(path.suffix, text, result_cache.versions("Pygments"), result_cache.code(*_LEXING))
    known = result_cache.read("hash_of_code", name)
    if isinstance(known, str):
        return known
    found = hashlib.sha256("\n".join(lines_of_code(path)).encode()).hexdigest()
    result_cache.write("hash_of_code", name, found)
    return found


def rests_on(impl: Implementation) -> str:
    """`source_hash`, for pybind with that of the cupy implementation whose launches are captured."""
    if impl.route != "pybind":
        return source_hash(impl)
    sibling = registry.through_cupy(impl, registry.implementations(impl.op))
    return "+".join(source_hash(i) for i in (impl, sibling) if i)
