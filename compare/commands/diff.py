"""``python -m compare diff OLD.json NEW.json``: the changes, shown and written."""

from __future__ import annotations

import argparse
from pathlib import Path

from compare.command_line import options, outputs, status
from compare.model.op import UsageError

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The rows that changed between two runs: faster, slower, lost, or no longer correct. Needs no GPU."
    )
    parser.epilog = _EPILOG
    add = parser.add_argument
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


def run(arguments: argparse.Namespace) -> int:
    """Compare the two files of ``arguments``; the exit status.

    Raises:
        UsageError: there are not two files, neither holds such a row, or one cannot be read or written.
    """
    if len(arguments.files) != 2:
        raise UsageError("diff takes two files: python -m compare diff OLD.json NEW.json")
    outputs.check_tables(arguments)
    from compare.history.diff import diff
    from compare.records import archive
    from compare.report import differences, terminal

    old, new = map(archive.read, arguments.files)
    found = diff(old, new, arguments.only)
    if not found.changes:
        which = f"--only {' '.join(arguments.only)}: " if arguments.only else ""
        raise UsageError(f"{which}neither {arguments.files[0]} nor {arguments.files[1]} holds such a row")
    writes = outputs.writes(
        arguments, found, differences.as_json, differences.as_csv, differences.as_markdown
    )
    every = bool(arguments.all)
    outputs.beside(lambda: terminal.put(lambda width: differences.render(found, width, every=every)), writes)
    return status.FAILURE if found.worse else status.INCONCLUSIVE if found.undecided else status.SUCCESS
