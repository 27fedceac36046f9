"""``python -m compare cache``: arguments in, exit code out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import options, outputs
from compare.spec import UsageError

_EPILOG = """\
examples:
  python -m compare cache
  python -m compare cache vector_add --arch sm_90
  python -m compare cache softmax --only triton.online --json cache.json
  python -m compare cache --clear

exit status:
  0  shown, or removed
  2  a mistake in the command, or something is in use or not ours: nothing was removed, or a file not written
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "cache",
        "What compilers keep on disk: where, how much, and of an op's kernels each entry with its files, its "
        "key and what the key is made of.",
        _EPILOG,
    )
    add = found.add_argument
    add("op", nargs="?", default="", metavar="OP", help="what is kept of this op")
    options.add_only(add)
    options.add_arch(add, "keys")
    add("--clear", action="store_true", help="remove what this project built, of OP or all, and nothing else")
    add("--json", type=Path, metavar="FILE", help="everything that was found")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``cache``.

    Raises:
        UsageError: the command asks for what does not exist, or for clearing what must stay.
    """
    arguments = parser().parse_args(argv)
    if arguments.op:
        options.check_op(arguments.op)
    if not arguments.op and (arguments.only or arguments.arch):
        raise UsageError("--only and --arch belong to an op; name it: python -m compare cache OP")
    if arguments.clear and (arguments.only or arguments.arch):
        raise UsageError("--clear removes all of an op's builds; leave out --only and --arch")
    archs = options.archs(arguments.arch)
    outputs.check({"--json": arguments.json})
    os.environ.pop("TRITON_INTERPRET", None)  # keys are those of compiled kernels
    # Start-up: --help and mistakes need neither PyTorch nor Triton.
    from compare.toolchain.caches import show

    show.run(arguments, archs)
    return 0
