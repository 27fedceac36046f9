"""Watches Triton's compiler; the only module that depends on its internals here.

From Triton 3.6 on, the compiler gives what each stage made to a ``knobs.cache.manager_class``, whose instance
is made once the kernel's key in the cache is known.  ``MLIR_ENABLE_DUMP``, which makes every pass print the
module it is given to the process's stderr, would change that key: it is set then.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import triton
from triton import knobs
from triton.runtime.cache import FileCacheManager

from compare.pipeline.records import CacheEntry

MARK = "// ===== compare: "
"""Begins a line that names the stage of the passes printed after it."""

STAGES = ("frontend", "ttir", "ttgir", "llir", "ptx", "cubin")
"""``frontend`` is what reads Python."""


@dataclass
class Watched:
    """The stages of one compilation, or of several one after the other."""

    dump: bool
    """With every pass."""
    results: list[tuple[str, str | bytes, float]] = field(default_factory=list)
    """Stage, what it made, and the seconds."""
    began: str = "frontend"
    """The stage that began last."""
    noise: str = ""
    """stderr of the compiler and its passes."""
    _module: Any = None
    """What the stage before made, which a stage may change in place."""
    _since: float = 0.0

    def manager(self) -> type[FileCacheManager]:
        """For ``knobs.cache.manager_class``."""
        seen = self

        class Manager(FileCacheManager):  # type: ignore[misc]
            def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
                super().__init__(key, override=override, dump=dump)
                self._watches = not (override or dump)
                if seen.dump:
                    os.environ["MLIR_ENABLE_DUMP"] = "1"
                seen._since = time.perf_counter()

            def put(self, data: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
                stage = filename.rpartition(".")[2].replace("source", "frontend")
                if self._watches and stage in STAGES:
                    seen._end(stage, data)
                path = super().put(data, filename, *args, **kwargs)
                seen._since = time.perf_counter()
                return path

        return Manager

    def _end(self, stage: str, result: Any) -> None:
        seconds = time.perf_counter() - self._since
        content = result if isinstance(result, bytes) else str(result)
        self.results.append((stage, content, seconds))
        if stage == "frontend":
            _print(f"{MARK}{stage}")
        if self.dump and stage == "llir":  # no pass prints what the last one made of the module
            _print(f"{MARK}end\n{self._module}")
        self._module = result
        in_gluon = stage == "frontend" and "ttg.num-warps" in str(content)
        self.began = "ttgir" if in_gluon else STAGES[min(STAGES.index(stage) + 1, len(STAGES) - 1)]
        _print(f"{MARK}{self.began}")


def _print(text: str) -> None:
    """To stderr as the compiler sees it: the file descriptor."""
    os.write(2, f"\n{text}\n".encode())  # whatever stands before it may lack its line break


@contextlib.contextmanager
def watched(dump: bool) -> Iterator[Watched]:
    """Record what Triton compiles in the context; with ``dump`` every pass prints the module.

    Triton's cache is an empty temporary folder.  The record is filled where the compilation fails, too.
    """
    seen, manager = Watched(dump), knobs.cache.manager_class
    variables = ("MLIR_ENABLE_DUMP", "TRITON_ALWAYS_COMPILE", "TRITON_CACHE_DIR", "TRITON_STORE_BINARY_ONLY")
    before = {name: os.environ.pop(name, None) for name in variables}
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile() as noise:
        os.environ |= {"TRITON_ALWAYS_COMPILE": "1", "TRITON_CACHE_DIR": cache}
        knobs.cache.manager_class = seen.manager()
        os.dup2(noise.fileno(), 2)
        try:
            yield seen
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            knobs.cache.manager_class = manager
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {name: value} if value is not None else {}
            noise.seek(0)
            seen.noise = noise.read().decode(errors="replace")


_OPTIONS = (
    *("num_warps", "num_stages", "num_ctas", "maxnreg"),
    *("enable_fp_fusion", "default_dot_input_precision"),
)


def cache_entry(compiled: Any) -> CacheEntry:
    """The key under which Triton's cache keeps a compiled kernel, and what it is a hash of."""
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
    key = base64.b32encode(bytes.fromhex(compiled.hash)).decode().rstrip("=")
    return CacheEntry("Triton", "kernel", key, made_of=parts)


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
