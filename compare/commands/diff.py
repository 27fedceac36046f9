"""``python -m compare diff``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import comparison, options, outputs
from compare.spec import UsageError

_EPILOG = """\
examples:
  python -m compare diff old.json new.json
  python -m compare diff old.json new.json --only 'triton.*' --csv diff.csv

exit status:
  0  no row is slower
  1  a row is slower, lost, or no longer correct
  2  a mistake in the command or its files, or a file was not written
  3  inconclusive: no row is slower, but one is ambiguous, or none was timed in both
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "diff",
        "The rows that changed between two runs: faster, slower, lost, or no longer correct. Needs no GPU.",
        _EPILOG,
    )
    add = found.add_argument
    add(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="two files, the older run first: from --json or from results/",
    )
    add("--all", action="store_true", help="every row, also those that are the same")
    options.add_only(add, ", e.g. 'triton.*'")
    options.add_tables(add, "every row", "row")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``diff``.

    Raises:
        UsageError: there are not two files, neither holds such a row, or one cannot be read or written.
    """
    arguments = comparison.without("diff", parser(), argv)
    if len(arguments.files) != 2:
        raise UsageError("diff takes two files: python -m compare diff OLD.json NEW.json")
    outputs.check_tables(arguments)
    # Start-up: --help and mistakes in the command need nothing that renders a screen.
    from compare.commands.running.diff import run

    return run(arguments)
