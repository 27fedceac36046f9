"""The rows that changed between two runs or more: faster, slower, lost, or no longer correct.
Of three files or more a trend shows each row's median in every file, and the verdict is that of
the last file against the first. Needs no GPU.

examples:
  python -m compare diff old.json new.json
  python -m compare diff monday.json tuesday.json wednesday.json
  python -m compare diff old.json new.json --only 'triton.*' --csv diff.csv

exit status:
  0  no row is slower
  1  a row is slower, lost, or no longer correct
  2  a mistake in the command or its files, or a file was not written
  3  inconclusive: no row is slower, but one is ambiguous, or none was timed in both
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compare.command_line import options, outputs, status
from compare.model.op import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="two files or more, the oldest run first: from --json or from results/",
    )
    add("--all", action="store_true", help="every row, also those that are the same")
    options.add_only(add, ", e.g. 'triton.*'")
    options.add_tables(add, "every row", "row")


def run(arguments: argparse.Namespace) -> int:
    """Compare the files of ``arguments``; the exit status."""
    if len(arguments.files) < 2:
        raise UsageError("diff takes two files or more: python -m compare diff OLD.json NEW.json")
    from compare.history.diff import diff
    from compare.history.trend import trend
    from compare.records import archive
    from compare.report import differences, terminal

    files = [(path, archive.read(path)) for path in arguments.files]
    old, new = files[0][1], files[-1][1]
    changes = trend(files, arguments.only) if len(files) > 2 else diff(old, new, arguments.only)
    if not changes.changes:
        which = f"--only {' '.join(arguments.only)}: " if arguments.only else ""
        raise UsageError(f"{which}neither {arguments.files[0]} nor {arguments.files[-1]} holds such a row")
    labels = (row.label for run in (*old, *new) for case in run.cases for row in case.rows)
    options.check_only(arguments.only, labels, "implementation in these files")
    outputs.beside(
        lambda: terminal.put(lambda width: differences.render(changes, width, every=arguments.all)),
        outputs.writes(
            *(arguments, changes),
            json=differences.as_json,
            csv=differences.as_csv,
            markdown=differences.as_markdown,
        ),
    )
    return status.FAILURE if changes.worse else status.INCONCLUSIVE if changes.undecided else status.SUCCESS
