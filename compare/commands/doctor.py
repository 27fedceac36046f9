"""``python -m compare doctor``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from compare import doctor
from compare.command_line import comparison, options, status
from compare.report.steps import steps

_EPILOG = """\
examples:
  python -m compare doctor
  python -m compare doctor --calibrate

exit status:
  0  a comparison has everything it needs; with --calibrate: the result is stored
  2  something is missing; or a mistake in the command, or no GPU to calibrate
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "doctor",
        "What this machine can run and, for what is missing, the command that fixes it.",
        _EPILOG,
    )
    found.add_argument(
        "--calibrate", action="store_true", help="measure the least difference that counts on this GPU"
    )
    options.add_verbose(found.add_argument)
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``doctor``.

    Raises:
        UsageError: there is no GPU to calibrate, or the result cannot be kept.
    """
    arguments = comparison.without("doctor", parser(), argv)
    if not arguments.calibrate:
        return status.USAGE if doctor.report() else status.SUCCESS
    with steps(arguments.verbose) as told:
        # Start-up: --help and the doctor's own table need no PyTorch, and work without any package.
        from compare.commands.running.calibrate import run

        return run(told)
