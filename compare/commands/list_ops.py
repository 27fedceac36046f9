"""``python -m compare list``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from compare.command_line import comparison, options
from compare.worker.start import prepare

_EPILOG = """\
examples:
  python -m compare list
  python -m compare list --only 'triton.*'
  python -m compare list --load my_softmax.py

exit status:
  0  shown
  2  a mistake in the command or its files
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "list",
        "Every op with its implementations, and which of them this machine can run.",
        _EPILOG,
    )
    options.add_only(found.add_argument, ", e.g. 'triton.*'")
    options.add_load(found.add_argument)
    options.add_device(found.add_argument)
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``list``.

    Raises:
        UsageError: there is no such device or implementation, or a file cannot be loaded.
    """
    arguments = comparison.without("list", parser(), argv)
    device = prepare(arguments.device)
    # Start-up: --help and mistakes in the command need no PyTorch.
    from compare.commands.running.list_ops import run

    return run(arguments, device)
