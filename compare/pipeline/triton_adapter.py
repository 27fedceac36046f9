"""Hooks into Triton's compiler; the only module that depends on its internals here.

From Triton 3.6 on, ``knobs.runtime.add_stages_inspection_hook`` is called with the compiler's stages before
they run, and ``MLIR_ENABLE_DUMP`` makes every pass print the module it is given to the process's stderr.  The
line that such a print begins with has changed.  Both would change the key of Triton's cache, so they are set
when that is known.
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
from functools import partial
from typing import IO, Any

import triton
from triton import knobs
from triton.runtime.cache import FileCacheManager

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
    """The stages of one compilation, or of several one after the other."""

    dump: bool
    """With every pass."""
    made: list[tuple[str, Any, float]] = field(default_factory=list)
    """Stage, what it made - text or bytes - and the seconds; ``frontend`` is what reads Python."""
    began: str = "frontend"
    """The stage that began last."""
    noise: str = ""
    """stderr of the compiler and its passes."""
    _since: float = 0.0

    def manager(self) -> type[FileCacheManager]:
        """For ``knobs.cache.manager_class``: made when the key is known, and before the stages are."""
        seen = self

        class Manager(FileCacheManager):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                knobs.runtime.add_stages_inspection_hook = seen.hook

        return Manager

    def hook(self, backend: Any = None, stages: Any = None, *_: Any, **__: Any) -> tuple[str, str] | None:
        """For ``knobs.runtime.add_stages_inspection_hook``."""
        if stages is None:  # asked for what to add to the key of Triton's cache
            return "", ""
        knobs.runtime.add_stages_inspection_hook = None
        if self.dump:
            os.environ["MLIR_ENABLE_DUMP"] = "1"
        for name in stages.keys() - {_AS_IT_WAS}:
            stages[name] = partial(self._run, name, stages[name])
        self._begin("frontend")
        return None

    def _run(self, name: str, step: Callable[..., Any], module: Any, *args: Any) -> Any:
        if self.began == "frontend":  # which made the module that the first stage gets
            self._end(module)
        self._begin(name)
        result = step(module, *args)
        self._end(result)
        if self.dump and name == "llir":  # changed in place; no pass prints what the last one made of it
            _print(f"{MARK}end\n{module}")
        return result

    def _begin(self, name: str) -> None:
        _print(f"{MARK}{name}")
        self.began, self._since = name, time.perf_counter()

    def _end(self, result: Any) -> None:
        seconds = time.perf_counter() - self._since
        self.made.append((self.began, result if isinstance(result, bytes) else str(result), seconds))


def _print(text: str) -> None:
    """To stderr as the compiler sees it: the file descriptor."""
    os.write(2, f"{text}\n".encode())


@contextlib.contextmanager
def watched(dump: bool) -> Iterator[Watched]:
    """Record what Triton compiles in the context; with ``dump`` every pass prints the module.

    Triton's cache is an empty temporary folder.  The record is filled where the compilation fails, too.
    """
    seen = Watched(dump)
    variables = ("MLIR_ENABLE_DUMP", "TRITON_ALWAYS_COMPILE", "TRITON_CACHE_DIR")
    before = {name: os.environ.pop(name, None) for name in variables}
    hook, manager = knobs.runtime.add_stages_inspection_hook, knobs.cache.manager_class
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile() as noise:
        os.environ |= {"TRITON_ALWAYS_COMPILE": "1", "TRITON_CACHE_DIR": cache}
        knobs.runtime.add_stages_inspection_hook, knobs.cache.manager_class = None, seen.manager()
        try:
            with _stderr_into(noise):
                yield seen
        finally:
            knobs.runtime.add_stages_inspection_hook, knobs.cache.manager_class = hook, manager
            for name in variables:
                os.environ.pop(name, None)
            os.environ |= {name: value for name, value in before.items() if value is not None}
            noise.seek(0)
            seen.noise = noise.read().decode(errors="replace")


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
