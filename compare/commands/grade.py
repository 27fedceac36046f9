"""``python -m compare grade``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import comparison, options, outputs
from compare.spec import UsageError

_EPILOG = """\
examples:
  python -m compare grade alice/
  python -m compare grade alice/ --rubric labs/09_odd_shapes/lab.toml --gradescope results.json
  python -m compare grade class/ --csv marks.csv --html class.html --similar --jobs 2

A class is a folder of submissions. Its marks are kept in class/_marks/: a stopped run goes on where it
was, unchanged work is not marked again, and marks never fall.

exit status:
  0  everything passed
  1  something is wrong or missing
  2  a mistake in the command or its files
  3  inconclusive: a speed is too close to its threshold to tell. It costs no points
  4  a submission raised an error or does not compile
  5  a submission took too long
  6  a fault of the machine: the reference failed too. It costs no points; run it again

Where several apply, the first of 6, 5, 4, 1 and 3 counts.
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser("grade", "Marks of a lab's submission, or of a class.", _EPILOG)
    add = found.add_argument
    add("folder", nargs="?", type=Path, metavar="DIR", help="a submission, or a folder of submissions")
    add("--rubric", type=Path, metavar="FILE", help="a lab.toml (default: as answers.toml says)")
    options.add_device(add)
    options.add_timeout(add)
    add("--jobs", type=int, default=1, metavar="N", help="check N submissions at a time (default: 1)")
    add("--keep", type=Path, metavar="DIR", help="keep marks there (default: of a class, its _marks/)")
    add("--similar", action="store_true", help="list submissions with similar code")
    add("--unsafe", action="store_true", help="mark also where nothing isolates submissions")
    add("--json", type=Path, metavar="FILE", help="all marks")
    add("--csv", type=Path, metavar="FILE", help="one line for each submission")
    add("--junit", type=Path, metavar="FILE", help="JUnit XML")
    add("--gradescope", type=Path, metavar="FILE", help="Gradescope's results.json, of one submission")
    add("--markdown", type=Path, metavar="FILE", help="the page of a class")
    add("--html", type=Path, metavar="FILE", help="the page of a class, as HTML")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``grade``.

    Raises:
        UsageError: there is no such folder or rubric, or a file cannot be written.
    """
    arguments = comparison.without("grade", parser(), argv)
    if arguments.folder is None:
        raise UsageError("grade takes a folder: python -m compare grade DIR")
    if not arguments.folder.is_dir():
        raise UsageError(f"{arguments.folder}: there is no such folder")
    if not 1 <= arguments.jobs <= _MOST_JOBS:
        raise UsageError(f"--jobs {arguments.jobs}: give a number from 1 to {_MOST_JOBS}")
    options.check_timeout(arguments.timeout)
    outputs.check_tables(arguments)
    outputs.check({"--junit": arguments.junit, "--gradescope": arguments.gradescope})
    # Start-up: --help and mistakes in the command need no PyTorch.
    from compare.commands.running import grade

    return grade.run(arguments)


_MOST_JOBS = 64
