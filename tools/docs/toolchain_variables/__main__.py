"""``python -m tools.docs.toolchain_variables OP ARCH``.

The command compiles what the op's Triton implementations launch on its default case, for any architecture and
with or without a GPU, and says of each kernel whether it was compiled or found in the cache.  Whatever else
appears, the variables that are set have made Triton print.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from compare import registry
from compare.model.architecture import limits
from compare.model.op import UsageError
from tools.docs.toolchain_variables.runs import RUNS, compile_once


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tools.docs.toolchain_variables",
        description="Compile an op's Triton kernels once, for any architecture, with or without a GPU: what "
        "environment variables do then, docs/toolchain-environment.md shows.",
    )
    add = found.add_argument
    add("op", choices=registry.op_names())
    add("arch", metavar="SM", help="for which architecture, e.g. sm_90")
    add("--run", choices=RUNS, help="do this in place of compiling")
    return found


def main(words: Sequence[str]) -> int:
    """Run the command and return the exit status: 0, or 2 for a mistake in it."""
    arguments = parser().parse_args(words)
    try:
        limits(arguments.arch)
    except UsageError as error:
        print(f"python -m tools.docs.toolchain_variables: {error}", file=sys.stderr)
        return 2
    RUNS.get(arguments.run, compile_once)(arguments.op, arguments.arch)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
