"""``python -m compare show``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import comparison, options, outputs
from compare.history.map import reading
from compare.spec import UsageError

_EPILOG = """\
examples:
  python -m compare show softmax
  python -m compare show softmax --case M=4096,N=4096,fp32 --only 'triton.*'
  python -m compare show softmax --html softmax.html
  python -m compare show all --csv all.csv
  python -m compare show softmax --records run.json

exit status:
  0  shown
  2  a mistake in the command or its files, or nothing is recorded
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "show",
        "All that is on record of an op: every recorded case, registers, shared memory and occupancy of its "
        "kernels, and its code size. Needs no GPU.",
        _EPILOG,
    )
    add = found.add_argument
    add("op", metavar="OP|all", help="the op, or all that are on record")
    options.add_repeatable(add, "--case", "CASE", "only this case, e.g. M=4096,N=781,fp16")
    options.add_only(add, ", e.g. 'triton.*', and the baseline")
    options.add_records(add)
    options.add_tables(add, "all figures, raw samples included", "implementation and case")
    add("--html", type=Path, metavar="FILE", help="one self-contained page with figures and sources")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``show``.

    Raises:
        UsageError: nothing of this is recorded, or a file cannot be read or written.
    """
    arguments = comparison.without("show", parser(), argv)
    if arguments.case and arguments.op == "all":
        raise UsageError("--case goes with one op, as sizes differ by op; name it instead of 'all'")
    outputs.check_tables(arguments)
    files = reading.files_of(arguments.records)
    # Start-up: --help and mistakes in the command need no PyTorch, and nothing that renders a screen.
    from compare.commands.running.show import run

    return run(arguments, files)
