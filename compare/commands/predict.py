"""``python -m compare predict``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import comparison, options
from compare.spec import UsageError

_EPILOG = """\
examples:
  python -m compare predict softmax
  python -m compare predict softmax --answers mine.toml

Answers in a file: fastest = "triton", binding = "memory", speedup = 1.5, registers = 40

exit status:
  0  measured and scored
  2  a mistake in the command or its files
  3  inconclusive: nothing could be measured
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "predict",
        "Predict the fastest way, what limits it, its speedup and its registers; then measure and score.",
        _EPILOG,
    )
    found.add_argument("op", nargs="?", metavar="OP", help="the op")
    found.add_argument("--answers", type=Path, metavar="FILE", help="read the predictions from a TOML file")
    options.add_device(found.add_argument)
    options.add_timeout(found.add_argument)
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``predict``.

    Raises:
        UsageError: there is no such op, or the file has no such predictions.
    """
    arguments = comparison.without("predict", parser(), argv)
    if arguments.op is None:
        raise UsageError("predict takes an op: python -m compare predict softmax")
    options.check_op(arguments.op)
    options.check_timeout(arguments.timeout)
    # Start-up: --help and mistakes in the command need no PyTorch.
    from compare.commands.running import predict

    return predict.run(arguments.op, arguments.answers, arguments.device, arguments.timeout)
