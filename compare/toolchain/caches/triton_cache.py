"""Triton's cache: a folder for each key, and what Triton makes its key of.

From 3.6 to 3.9 the key is the SHA-256 of a text, in base 32: Triton's version with a hash of its own files, a
hash of the kernel as it is specialised, ptxas's version with the architecture, a hash of all options, and
those environment variables that change what is compiled.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import triton
from triton.compiler import compiler

from compare.resources.compiler_process import compile_triton
from compare.spec import TritonLaunch
from compare.toolchain.caches.records import Entry, File, Part

VARIABLE = "TRITON_CACHE_DIR"
_SHOWN_OPTIONS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "enable_fp_fusion",
    "default_dot_input_precision",
)


def folder() -> Path:
    """As Triton's own ``knobs`` have it."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(os.environ.get(VARIABLE) or home / ".triton" / "cache")


def kernels_of(module: Any) -> set[str]:
    """Names of the Triton kernels that a module defines, autotuned ones as well."""
    names = set()
    for value in vars(module).values():
        while type(value).__name__ in ("Autotuner", "Heuristics"):
            value = value.fn
        if type(value).__name__ == "JITFunction":
            names.add(value.fn.__name__)
    return names


@dataclass(frozen=True)
class Key:
    """The key of one launch."""

    name: str
    """Of the folder."""
    parts: tuple[Part, ...]


class _Stop(BaseException):
    """Ends a compilation as soon as its key is known."""


def key_of(launch: TritonLaunch, arch: str) -> Key:
    """Under which key Triton keeps what it compiles for a launch on a GPU of ``arch``; nothing is compiled.

    Raises:
        Exception: whatever Triton raises where it cannot specialise the kernel.
    """
    seen: list[Key] = []
    make_key = compiler.get_cache_key

    def stop(source: Any, backend: Any, options: Any, env_vars: dict[str, str], **more: Any) -> str:
        text = make_key(source, backend, options, env_vars=env_vars, **more)
        digest = hashlib.sha256(text.encode("utf-8")).digest()
        name = base64.b32encode(digest).decode().rstrip("=")
        seen.append(Key(name, _parts(text, source, backend, options, env_vars)))
        raise _Stop

    with mock.patch.object(compiler, "get_cache_key", stop):
        try:
            compile_triton(launch, arch)
        except _Stop:
            return seen[0]
    raise RuntimeError("the keys of this Triton's cache cannot be computed here; please report it")


def _parts(text: str, source: Any, backend: Any, options: Any, env_vars: dict[str, str]) -> tuple[Part, ...]:
    whole = vars(options)
    shown = ", ".join(f"{name}={whole[name]}" for name in _SHOWN_OPTIONS if name in whole)
    signature = ", ".join(f"{name}: {kind}" for name, kind in source.signature.items())
    names = source.fn.arg_names
    constants = ", ".join(f"{names[index]}={value}" for (index, *_), value in source.constants.items())
    aligned = ", ".join(names[index] for (index, *_), attrs in source.attrs.items() if attrs)
    variables = ", ".join(f"{name}={value}" for name, value in sorted(env_vars.items()) if value)
    return (
        Part("triton", f"{triton.__version__}, with a hash of its compiler's own files"),
        Part("source", f"{source.hash()[:16]}, a hash of what follows and of {source.fn.cache_key[:16]}:"),
        Part("", "the kernel's text, the functions and globals it uses, and their line numbers"),
        Part("signature", signature),
        Part("constants", constants or "none"),
        Part("multiples of 16", aligned or "none"),
        Part("target", f"{backend.target.backend}:{backend.target.arch}"),
        Part("ptxas", " ".join(backend.hash().split())),
        Part("options", f"{options.hash()[:16]}, a hash of all {len(whole)}: {shown} ..."),
        Part("environment", variables or "none of the variables that count is set"),
        Part("together", f"{len(text)} characters, SHA-256, in base 32"),
    )


def entry_of(implementation: str, launch: TritonLaunch, arch: str) -> Entry:
    """What is kept of a launch, or where it would be looked for."""
    key = key_of(launch, arch)
    place = folder() / key.name
    name, what = launch.kernel.fn.__name__, f"{implementation} for {arch}"
    return Entry("Triton", name, what, key.name, place, _files(place), key.parts)


def others(names: Iterable[str], known: set[str]) -> list[Entry]:
    """Entries of kernels of these names under keys that are not known: other cases, older sources.

    Of what made its key, a folder keeps only the options.
    """
    found = []
    for name in sorted(names):
        for file in sorted(folder().glob(f"*/{name}.json")):
            if file.parent.name in known:
                continue
            try:
                facts = json.loads(file.read_text(encoding="utf-8"))
                target = facts["target"]
                parts: tuple[Part, ...] = (
                    Part("triton", str(facts.get("triton_version", "unknown"))),
                    Part("target", f"{target['backend']}:{target['arch']}"),
                    Part("options", ", ".join(f"{n}={facts[n]}" for n in _SHOWN_OPTIONS if n in facts)),
                )
            except (OSError, ValueError, KeyError, TypeError):
                parts = (Part("unreadable", "its metadata is damaged"),)
            place = file.parent
            what = "other sizes, options or sources"
            found.append(Entry("Triton", name, what, place.name, place, _files(place), parts))
    return found


def _files(place: Path) -> tuple[File, ...]:
    if not place.is_dir():
        return ()
    return tuple(File(file.name, file.stat().st_size) for file in sorted(place.iterdir()) if file.is_file())
