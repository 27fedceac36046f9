"""The files and folders that a command writes: looked at before the work, and written whole after it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from compare import records
from compare.spec import UsageError


def check(files: Mapping[str, Path | None]) -> None:
    """Find out now, not after minutes of work, whether they can be written.

    Args:
        files: by option, ``--json``; None: not asked for.

    Raises:
        UsageError: one of them cannot, or two are the same.
    """
    paths = [path for path in files.values() if path]
    for path in paths:
        if path.is_dir():
            raise UsageError(f"{path} is a directory; name a file in it")
        if not path.parent.is_dir():
            raise UsageError(
                f"{path} cannot be written: there is no directory {path.parent}; "
                "name a file in a folder that exists"
            )
        try:
            tempfile.TemporaryFile(dir=path.parent).close()
            if path.exists():
                path.open("a").close()
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}. Name another file") from None
    if len({path.resolve() for path in paths}) < len(paths):
        *first, last = files
        raise UsageError(f"{', '.join(first)} and {last} name one and the same file; give each its own")


def made(folder: Path) -> Path:
    """The folder of ``--out``, made if need be, by its whole path.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written: {error.strerror}. Name another folder") from None
    return folder.resolve()


def write(file: Path | None, text: str) -> None:
    """Write a file whole; None: it was not asked for.

    Raises:
        UsageError: it can no longer be written.
    """
    if file is None:
        return
    try:
        records.write_whole(file, text)
    except OSError as error:
        raise UsageError(f"{file} could not be written: {error}") from None


def write_json(file: Path | None, found: object) -> None:
    """`write` dataclasses, and what JSON can hold, as `records.encoded` has them."""
    write(file, json.dumps(records.encoded(found), indent=1) + "\n")
