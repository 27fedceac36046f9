"""``python -m compare aot OP``: arguments in, exit code out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import options, outputs

_EPILOG = """\
examples:
  python -m compare aot vector_add --out programs/
  python -m compare aot vector_add --arch sm_90 --out programs/
  python -m compare aot softmax --only '*.onepass' --case M=64,N=781,fp16 --out programs/

exit status:
  0  every possible program was built; on a GPU, all that it can run are correct
  1  a program's output is wrong
  2  a mistake in the command, its files or the machine's setup
  3  inconclusive: something failed to compile or to run, or no program is possible
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "aot",
        "An op's kernels as C programs that run without Python: built for any architecture, with or without "
        "a GPU; where there is one, run, checked, and timed beside the call from Python.",
        _EPILOG,
    )
    add = found.add_argument
    add("op", metavar="OP", help="the op")
    options.add_only(add)
    options.add_arch(add, "build")
    add(
        "--case",
        metavar="CASE",
        help="sizes and dtype that the programs are for, e.g. M=4096,N=781,fp16 (default: a small one)",
    )
    add("--out", type=Path, metavar="DIR", required=True, help="where the programs go: DIR/OP/LABEL/ARCH/")
    add("--json", type=Path, metavar="FILE", help="everything that was found, samples included")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``aot``.

    Raises:
        UsageError: the command asks for what does not exist, or a tool that every program needs is missing.
    """
    arguments = parser().parse_args(argv)
    options.check_op(arguments.op)
    archs = options.archs(arguments.arch)
    out = outputs.made(arguments.out)
    outputs.check({"--json": arguments.json})
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is decorated; here all are compiled
    # Start-up: --help and mistakes need neither PyTorch nor Triton.
    from compare.toolchain.aot import show

    return show.run(arguments, archs, out)
