"""Hooks into Triton's compiler; the only module that depends on its internals here.

Triton 3.6 to 3.9 have the same three hooks: ``knobs.runtime.add_stages_inspection_hook``, called
with the compiler's stages before they run, ``make_ir`` of ``ASTSource`` and of Gluon's, the step from
Python to TTIR, or to TTGIR, and ``MLIR_ENABLE_DUMP``, which makes every pass print the module it is given to
the process's stderr.  The line that such a print begins with has changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any
from unittest import mock

from triton import knobs
from triton._C.libtriton import llvm
from triton.compiler.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import cache as triton_cache

MARK = "// ===== compare: "
"""Begins a line that names the stage of the passes printed after it."""

_AS_IT_WAS = "glir"
"""A stage of Gluon's from Triton 3.8 on, which returns the frontend's module unchanged."""

_BEGINS = re.compile(r"^// -----// IR Dump Before (?P<title>\S+?):? \(?(?P<name>[\w.-]*)")


def pass_begins(line: str) -> tuple[str, str] | None:
    """A pass's class and its name, where ``line`` begins what it printed.

    >>> pass_begins("// -----// IR Dump Before CSE (cse) ('builtin.module' operation)")  # to 3.7
    ('CSE', 'cse')
    >>> pass_begins("// -----// IR Dump Before CSEPass: cse{a=b} ('builtin.module' operation)")  # 3.9
    ('CSEPass', 'cse')
    """
    found = _BEGINS.match(line)
    return (found["title"], found["name"] or found["title"]) if found else None


@dataclass
class Watched:
    """The stages of one compilation."""

    made: list[tuple[str, Any, float]] = field(default_factory=list)
    """Stage, what it made - text or bytes - and the seconds it took; ``frontend`` is what reads Python."""
    began: str = "frontend"
    """The stage that began last."""
    noise: str = ""
    """stderr of the compiler and its passes."""


@contextlib.contextmanager
def watched(dump: bool) -> Iterator[Watched]:
    """Record what Triton compiles in the context; with ``dump`` every pass prints the module.

    Without ``dump`` only the TTGIR passes of a module with ``tt.dot`` do.  Triton's cache is an empty
    temporary folder.  The record is filled where the compilation fails, too.
    """
    seen = Watched()

    def hook(backend: Any = None, stages: Any = None, *_: Any, **__: Any) -> tuple[str, str] | None:
        if stages is None:  # asked for what to add to the key of Triton's cache
            return "", ""
        for name in stages.keys() - {_AS_IT_WAS}:
            step = _dumping_dots(stages[name]) if name == "ttgir" else stages[name]
            stages[name] = _timed(seen, name, step)
        return None

    dumping = "1" if dump else None
    with (
        tempfile.TemporaryDirectory() as cache,
        _environment(MLIR_ENABLE_DUMP=dumping, TRITON_ALWAYS_COMPILE="1", TRITON_CACHE_DIR=cache),
        # Its key of a lasting cache: a hash of all of Triton's files, which takes time.
        mock.patch.object(triton_cache, "triton_key", return_value="watched"),
        mock.patch.object(knobs.runtime, "add_stages_inspection_hook", hook),
        mock.patch.object(ASTSource, "make_ir", _timed(seen, "frontend", ASTSource.make_ir)),
        mock.patch.object(GluonASTSource, "make_ir", _timed(seen, "frontend", GluonASTSource.make_ir)),
        _last_module(dump),
        tempfile.TemporaryFile() as noise,
    ):
        try:
            with _stderr_into(noise):
                yield seen
        finally:
            noise.seek(0)
            seen.noise = noise.read().decode(errors="replace")


def _dumping_dots(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step with its passes printed if the module has a ``tt.dot``."""

    def run(module: Any, *args: Any) -> Any:
        with _environment(MLIR_ENABLE_DUMP="1") if "tt.dot" in str(module) else contextlib.nullcontext():
            return step(module, *args)

    return run


def _timed(seen: Watched, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        seen.began = name
        _print(f"{MARK}{name}")
        begin = time.perf_counter()
        result = step(*args, **kwargs)
        seconds = time.perf_counter() - begin
        seen.made.append((name, result if isinstance(result, bytes) else str(result), seconds))
        return result

    return run


def _last_module(dump: bool) -> contextlib.AbstractContextManager[Any]:
    """Print the module after the last pass, which no pass prints, as it becomes LLVM IR."""
    to_module = getattr(llvm, "to_module", None)
    if not dump or to_module is None:
        return contextlib.nullcontext()

    def shown(module: Any, *args: Any) -> Any:
        _print(f"{MARK}end\n{module}")
        return to_module(module, *args)

    return mock.patch.object(llvm, "to_module", shown)


def _print(text: str) -> None:
    """To stderr as the compiler sees it: the file descriptor."""
    os.write(2, f"{text}\n".encode())


@contextlib.contextmanager
def _stderr_into(file: IO[bytes]) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Set these variables in the context; None: unset.  Others stay, because other threads read them."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
