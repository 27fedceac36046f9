"""The ops and users' files that a command names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compare import registry
from compare.command_line.options import COMMANDS
from compare.model.op import Op, UsageError
from compare.model.result import Comparison
from compare.sandbox import isolation
from compare.sandbox.words import printable


def load(files: Sequence[str], op: str | None = None) -> list[str]:
    """Load users' files after the project's own, so that their rows come after them.

    Args:
        files: of ``--load``.
        op: the one that the command names; None: all of them.

    Returns:
        The names of these ops, those of the files included.
    """
    from compare.worker import user_files  # start-up: mistakes in a command need no PyTorch

    for name in registry.op_names():
        if op in (None, name):
            registry.implementations(name)
    if files:
        isolation.protect_judge()
        for name, file in user_files.load(files, op).items():
            text = f"{file} defines the op {name}, so it says what is right, and runs with all your rights"
            print(f"python -m compare: {printable(text)}", file=sys.stderr)
        check_names(registry.op_names())
    return [op] if op else registry.op_names()


def check_names(names: Iterable[str]) -> None:
    """A `UsageError` if an op has the name of a command."""
    for name in {"all", *COMMANDS}.intersection(names):
        raise UsageError(f"--load: {name} is a command, so no op can have this name: rename the op")


def select(names: Iterable[str], only: Sequence[str]) -> list[Op]:
    """The ops that have an implementation of ``--only``; a `UsageError` if none has."""
    errors = []
    selected = []
    for op in map(registry.get_op, names):
        try:
            registry.implementations(op.name, only)
            selected.append(op)
        except UsageError as error:
            errors.append(error)
    if not selected:
        raise errors[0]
    return selected


def html_page(file: Path | None) -> Callable[[Sequence[Comparison]], str] | None:
    """What renders the page of ``--html``; None where it was not given.

    Raises:
        UsageError: the library of its figures is missing.
    """
    if file is None:
        return None
    # Start-up: only --html needs Jinja2 and the library of its figures.
    from compare.report.html import page

    page.check()
    return page.dumps
