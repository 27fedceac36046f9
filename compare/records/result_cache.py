"""Results kept on disk under a hash of all they rest on, so that asking again takes milliseconds."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from compare.registry import ROOT
from cuda_impl.build import BuildError, cache_dir


def key(*parts: str) -> str:
    """A name made of ``parts``, which together are everything that the result follows from."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def versions(*packages: str) -> str:
    """Python's version and that of each package; what is not installed is left out."""
    found = [sys.version]
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return "\n".join(found)


@functools.cache
def code(*patterns: str) -> str:
    """A hash of this project's own files of these names, as ``compare/resources/*.py``."""
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    return key(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths))


def read(kind: str, name: str) -> Any:
    """What `write` was given; None where there is nothing, or nothing whole."""
    with suppress(OSError, ValueError):
        return json.loads(_path(kind, name).read_text(encoding="utf-8"))
    return None


def write(kind: str, name: str, value: Any) -> None:
    """Write a result down; where the cache cannot be written, it is only slower next time.

    Args:
        kind: the folder.
        name: a `key`.
        value: anything that JSON holds.
    """
    with suppress(OSError):
        path = _path(kind, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(value, file)
        Path(file.name).replace(path)


def _path(kind: str, name: str) -> Path:
    try:
        return Path(cache_dir()) / kind / f"{name}.json"
    except BuildError as error:
        raise OSError(str(error)) from error
