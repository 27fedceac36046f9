"""What a command writes and prints: files are checked before the work, and written whole after it."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from compare.model.op import UsageError
from compare.records.encoding import encode, write_whole
from compare.sandbox.words import printable

if TYPE_CHECKING:
    from compare.report.tables import Table

T = TypeVar("T")


def check_tables(arguments: argparse.Namespace) -> None:
    """`check` the files of ``--json``, ``--csv``, ``--markdown``, and where a command has them ``--html``
    and ``--plot``."""
    names = ("plot", "json", "csv", "markdown", "html")
    check({f"--{name}": getattr(arguments, name, None) for name in names})


def writes(
    arguments: argparse.Namespace,
    found: T,
    json: Callable[[T], str],
    csv: Callable[[T], str],
    markdown: Callable[[T], str],
    html: Callable[[T], str] | None = None,
) -> list[Callable[[], None]]:
    """Functions that write ``found``, one for each file of `check_tables` that was given.

    Args:
        html: renders the page of ``--html``; None where it was not given.
    """
    made = ((arguments.json, json), (arguments.csv, csv), (arguments.markdown, markdown))
    writers: list[Callable[[], None]] = [partial(write, path, make(found)) for path, make in made if path]
    if html:  # rendered when it is written: an error costs this file alone
        writers.append(lambda: write(arguments.html, html(found)))
    return writers


def check(files: Mapping[str, Path | None]) -> None:
    """Find out before minutes of work whether files can be written.

    Args:
        files: by option, as ``--json``; None: not asked for.

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


def made(folder: Path) -> Path:
    """The absolute path of the folder of ``--out``, created if missing.

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
        if _is_special(file):
            file.write_text(text, encoding="utf-8")
        else:
            write_whole(file.resolve(), text)  # the target of a link, not the link
    except OSError as error:
        raise UsageError(
            f"{file} could not be written: {error.strerror}. The results are on the screen; to get the file, "
            "free space or name another, and run this again"
        ) from None


def failures(writes: Iterable[Callable[[], None]]) -> list[str]:
    """Write every file that can be written; the errors of the others."""
    failed = []
    for write in writes:
        try:
            write()
        except UsageError as error:
            failed.append(str(error))
    return failed


def beside(show: Callable[[], None], writes: Iterable[Callable[[], None]]) -> None:
    """Write every file that can be written, then show the results.

    Raises:
        UsageError: a file could not be written; the message has every such error.
    """
    failed = failures(writes)
    show()
    if failed:
        raise UsageError("; ".join(failed))


def write_json(file: Path | None, found: object) -> None:
    """`write` dataclasses as JSON, encoded by `compare.records.encoding.encode`."""
    write(file, json.dumps(encode(found), indent=1) + "\n")


def say(step: str) -> None:
    """Print a step on a line of stderr."""
    sys.stderr.write(printable(f"{step}\n"))  # at once: tasks are tested side by side
    sys.stderr.flush()


def put_explained(table: Table, explained: Collection[str] | None = None) -> None:
    """Print a table whose last column is prose: that stands below the lines.

    Args:
        explained: the lines whose prose is shown; None: all.
    """
    # Start-up: --help and mistakes in a command need nothing that renders a screen.
    from compare.report import terminal

    narrow = replace(table, headers=table.headers[:-1], rows=tuple(row[:-1] for row in table.rows))

    def render(width: int) -> str:
        lines = [terminal.laid_out(narrow, width), ""]
        for row in table.rows:
            if row[-1] and (explained is None or row[0] in explained):
                lines.append(terminal.paragraph(f"{row[0]}: {row[-1]}", min(width, 80), hanging="  "))
        return "\n".join([*lines, *table.legend]).rstrip()

    terminal.put(render)
