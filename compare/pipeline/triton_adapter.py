"""Hooks into Triton's compiler; the only module that depends on its internals here.

From Triton 3.6 on, ``knobs.runtime.add_stages_inspection_hook`` is called with the compiler's stages before
they run, and ``MLIR_ENABLE_DUMP`` makes every pass print the module it is given to the process's stderr.  The
line that such a print begins with has changed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import triton
from triton import knobs

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
    """Stage, what it made - text or bytes - and the seconds; ``frontend`` is what reads Python."""
    began: str = "frontend"
    """The stage that began last."""
    noise: str = ""
    """stderr of the compiler and its passes."""


@contextlib.contextmanager
def watched(dump: bool) -> Iterator[Watched]:
    """Record what Triton compiles in the context; with ``dump`` every pass prints the module.

    Triton's cache is an empty temporary folder.  The record is filled where the compilation fails, too.
    """
    seen = Watched()

    def hook(backend: Any = None, stages: Any = None, *_: Any, **__: Any) -> tuple[str, str] | None:
        if stages is None:  # asked for what to add to the key of Triton's cache
            return "", ""
        if dump:  # from now on: the key of Triton's cache, which is known by now, has it
            os.environ["MLIR_ENABLE_DUMP"] = "1"
        frontend = _Frontend(seen)
        for name in stages.keys() - {_AS_IT_WAS}:
            stages[name] = _timed(seen, name, stages[name], frontend, dump)
        return None

    with (
        tempfile.TemporaryDirectory() as cache,
        _environment(MLIR_ENABLE_DUMP=None, TRITON_ALWAYS_COMPILE="1", TRITON_CACHE_DIR=cache),
        tempfile.TemporaryFile() as noise,
    ):
        before, knobs.runtime.add_stages_inspection_hook = knobs.runtime.add_stages_inspection_hook, hook
        try:
            with _stderr_into(noise):
                yield seen
        finally:
            knobs.runtime.add_stages_inspection_hook = before
            noise.seek(0)
            seen.noise = noise.read().decode(errors="replace")


class _Frontend:
    """The step from Python to the module that the first stage gets; it begins when the hook is called."""

    def __init__(self, seen: Watched) -> None:
        self._seen, self._begin, self._ended = seen, time.perf_counter(), False
        seen.began = "frontend"
        _print(f"{MARK}frontend")

    def end(self, module: Any) -> None:
        """Record it, once."""
        if not self._ended:
            self._ended = True
            self._seen.made.append(("frontend", str(module), time.perf_counter() - self._begin))


def _timed(
    seen: Watched, name: str, step: Callable[..., Any], frontend: _Frontend, dump: bool
) -> Callable[..., Any]:
    def run(module: Any, *args: Any) -> Any:
        frontend.end(module)
        seen.began = name
        _print(f"{MARK}{name}")
        begin = time.perf_counter()
        result = step(module, *args)
        seconds = time.perf_counter() - begin
        seen.made.append((name, result if isinstance(result, bytes) else str(result), seconds))
        if (
            dump and name == "llir"
        ):  # passes change the module in place, and none prints the last one's output
            _print(f"{MARK}end\n{module}")
        return result

    return run


_OPTIONS = (
    *("num_warps", "num_stages", "num_ctas", "maxnreg"),
    *("enable_fp_fusion", "default_dot_input_precision"),
)


def key_of(compiled: Any) -> tuple[str, dict[str, str]]:
    """The folder of Triton's cache that a compiled kernel is kept in, and what that name is a hash of."""
    source, metadata = compiled.src, compiled.metadata._asdict()
    names = source.fn.arg_names
    constants = {names[index]: value for (index, *_), value in source.constants.items()}
    aligned = [names[index] for (index, *_), attributes in source.attrs.items() if attributes]
    options = {name: metadata[name] for name in _OPTIONS if name in metadata}
    variables = {name: value for name, value in metadata.items() if name.isupper() and value}
    parts = {
        "triton": f"{triton.__version__}, with a hash of its compiler's own files",
        "source": "the kernel's text, the functions and globals it uses, and their line numbers",
        "signature": ", ".join(f"{name}: {kind}" for name, kind in source.signature.items()),
        "constants": _listed(constants) or "none",
        "multiples of 16": ", ".join(aligned) or "none",
        "target": f"{metadata['target'].backend}:{metadata['target'].arch}, with ptxas's version",
        "options": f"{_listed(options)}, and all others",
        "environment": _listed(variables) or "none of the variables that count is set",
    }
    return base64.b32encode(bytes.fromhex(compiled.hash)).decode().rstrip("="), parts


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


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
