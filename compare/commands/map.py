"""``python -m compare map``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import options, outputs
from compare.history.map import reading

_EPILOG = """\
examples:
  python -m compare map
  python -m compare map --all
  python -m compare map softmax --plot softmax.svg
  python -m compare map --only 'triton.*' --only 'cupy.*' --csv map.csv
  python -m compare map --records run.json

exit status:
  0  shown
  2  a mistake in the command or its files, or nothing is recorded
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "map",
        "Which way to choose, from all records: the fastest way of each op and case, its speedup over the "
        "next way, its share of the ceiling, and its code size. Needs no GPU.",
        _EPILOG,
    )
    add = found.add_argument
    add("ops", nargs="*", metavar="OP", help="only these ops, case by case")
    add("--all", action="store_true", help="every column, case and Pareto front, not only a line per op")
    options.add_only(add, ", e.g. 'triton.*'")
    options.add_records(add)
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="effort against share of the ceiling, as .png or .svg",
    )
    options.add_tables(add, "all results", "op and case")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``map``.

    Raises:
        UsageError: nothing of this is recorded, or a file cannot be read or written.
    """
    arguments = parser().parse_args(argv)
    outputs.check_tables(arguments)
    files = reading.files_of(arguments.records)
    # Start-up: --help and mistakes in the command need no PyTorch, and nothing that renders a screen.
    from compare.commands.running.map import run

    return run(arguments, files)
