"""``python -m compare new-op``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare import registry
from compare.command_line import comparison, options
from compare.commands.running.new_op import run
from compare.spec import UsageError

_EPILOG = """\
examples:
  python -m compare new-op squared
  python -m compare new-op squared --into drafts/

exit status:
  0  the files are written
  2  a mistake in the command, or a file of that name exists: nothing was written
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "new-op",
        "Write the files of a new op: y = x * x, element by element, in PyTorch, Triton and CUDA. "
        "It works as it is; change it into yours.",
        _EPILOG,
    )
    found.add_argument("name", nargs="?", metavar="NAME", help="of the op: lower-case letters, digits and _")
    found.add_argument(
        "--into",
        type=Path,
        default=registry.ROOT,
        metavar="DIR",
        help="the folder that gets the files, each in its subfolder (default: this project)",
    )
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``new-op``.

    Raises:
        UsageError: the name is none for an op, or taken; or a file exists or cannot be written.
    """
    arguments = comparison.without("new-op", parser(), argv)
    if arguments.name is None:
        raise UsageError("new-op takes a name: python -m compare new-op NAME")
    return run(arguments.name, arguments.into)
