"""Results cached on disk under a hash of everything they depend on."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from compare.places import PACKAGES
from compare.records.encoding import write_whole
from compare.records.reading import read_text
from compare.registry import ROOT
from cuda_impl.build import BuildError, cache_dir


def key(*parts: str) -> str:
    """The name of a result: a hash of ``parts``, everything it depends on."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def versions(*packages: str) -> str:
    """Versions of Python and of each installed package, a line each."""
    lines = [sys.version]
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            lines.append(f"{package} {importlib.metadata.version(package)}")
    return "\n".join(lines)


@functools.cache
def code(*patterns: str) -> str:
    """A hash of this project's files that match ``patterns``, as ``compare/resources/*.py``."""
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    return key(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths))


def of_sources(*packages: str) -> str:
    """The name of a result that depends on all of this project's sources and on these packages' versions."""
    endings = ("py", "cu", "cuh", "cpp", "h")
    patterns = (f"{folder}/**/*.{ending}" for folder in PACKAGES for ending in endings)
    return key(code(*patterns), versions(*packages))


def read(kind: str, name: str) -> Any:
    """The value of `write`; None where it is absent or damaged."""
    shared = os.environ.get("COMPARE_CACHE_SHARED")  # to read from only, where user code runs
    for folder in (shared, None):
        with suppress(OSError, ValueError, RecursionError):
            return json.loads(read_text(_path(kind, name, folder)))
    return None


def write(kind: str, name: str, value: Any) -> None:
    """Keep a result; nothing happens where the cache cannot be written.

    Args:
        kind: the folder.
        name: a `key`.
        value: a JSON value.
    """
    with suppress(OSError):
        write_whole(_path(kind, name), json.dumps(value))


def _path(kind: str, name: str, folder: str | None = None) -> Path:
    try:
        return Path(folder or cache_dir()) / kind / f"{name}.json"
    except BuildError as error:
        raise OSError(str(error)) from error
