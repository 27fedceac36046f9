"""What a command writes and prints: files are checked before the work, and written whole after it."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from compare.model.op import UsageError
from compare.model.result import Comparison
from compare.records.encoding import encode, write_whole
from compare.sandbox.words import printable

T = TypeVar("T")


def check(files: Mapping[str, Path | None]) -> None:
    """Find out before minutes of work whether files can be written.

    Args:
        files: by option, as ``--json``; None: not given.

    Raises:
        UsageError: one cannot be written, or two are the same.
    """
    paths = [path for path in files.values() if path]
    for path in paths:
        try:
            _check_one(path)
        except (OSError, RuntimeError) as error:  # pathlib's loop of symbolic links is no OSError
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path} cannot be written: {why}. Name another file") from None
    resolved = [path.resolve() for path in paths if not _is_special(path)]
    alike = [o for o, path in files.items() if path and resolved.count(path.resolve()) > 1]
    if alike:
        *first, last = alike
        raise UsageError(f"{', '.join(first)} and {last} name the same file; give each its own")


def _check_one(path: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()  # raises where Python 3.12 answers False: a loop of links, a name that is too long
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(
            f"{path} cannot be written: there is no directory {path.parent}; "
            "name a file in a folder that exists"
        )
    if not _is_special(path):
        tempfile.TemporaryFile(dir=path.resolve().parent).close()
        if path.exists():
            path.open("a").close()


def _is_special(path: Path) -> bool:
    """Whether it is a device or a pipe, as /dev/stdout: written into, never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def create_folder(folder: Path) -> Path:
    """The absolute path of a folder to write into, created if missing.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}. Name another folder") from None
    return folder.resolve()


def renderers(arguments: argparse.Namespace) -> dict[str, Callable[[Sequence[Comparison]], str]]:
    """What renders comparisons, by the option's name.

    Raises:
        UsageError: the library of the figures of ``--html`` is missing.
    """
    # Start-up: --help and mistakes need nothing that renders, and only --html needs Jinja2.
    from compare.records import archive
    from compare.report import csv_file, junit, markdown  # start-up

    by_option = {
        "json": archive.dumps,
        "csv": csv_file.dumps,
        "markdown": markdown.dumps,
        "junit": junit.dumps,
    }
    if arguments.html:
        from compare.report.html import figures, page  # start-up

        figures.library()
        by_option["html"] = page.dumps
    return by_option


def writes(
    arguments: argparse.Namespace, results: T, **renderers: Callable[[T], str]
) -> list[Callable[[], None]]:
    """Functions that render and write ``results``, one for each file that was given.

    Args:
        renderers: by the option's name, as ``json``.
    """
    files = ((getattr(arguments, option), render) for option, render in renderers.items())
    return [partial(_render, path, render, results) for path, render in files if path]


def _render(file: Path, render: Callable[[T], str], results: T) -> None:
    write(file, render(results))


def as_json(results: object) -> str:
    """Dataclasses as JSON, encoded by `compare.records.encoding.encode`."""
    return json.dumps(encode(results), indent=1) + "\n"


def write(file: Path, text: str) -> None:
    """Write a file whole.

    Raises:
        UsageError: it can no longer be written.
    """
    try:
        if _is_special(file):
            file.write_text(text, encoding="utf-8")
        else:
            write_whole(file.resolve(), text)  # the target of a link, not the link
    except OSError as error:
        raise UsageError(
            f"{file} could not be written: {error.strerror}. The results are on the screen; to get the file, "
            "free space or name another, and run this again"
        ) from None


def failures(writes: Iterable[Callable[[], object]]) -> list[str]:
    """Write every file that can be written; the errors of the others."""
    errors = []
    for write_one in writes:
        try:
            write_one()
        except UsageError as error:
            errors.append(str(error))
    return errors


def beside(show: Callable[[], None], writes: Iterable[Callable[[], object]]) -> None:
    """Write every file that can be written, then show the results.

    Raises:
        UsageError: a file could not be written; the message has every such error.
    """
    errors = failures(writes)
    show()
    if errors:
        raise UsageError("; ".join(errors))


def say_slow(reads: str) -> None:
    """Say what takes some seconds, once, to who waits in front of a terminal.

    Elsewhere an error stays the only line of stderr.
    """
    if sys.stderr.isatty():
        say(f"reading every {reads}, which takes some seconds; it is kept until one changes")


def say(step: str) -> None:
    """Print a step on a line of stderr."""
    sys.stderr.write(printable(f"{step}\n"))  # at once: tasks are tested side by side
    sys.stderr.flush()
