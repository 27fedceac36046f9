"""An op's kernels as C programs that run without Python: built for any architecture, with or
without a GPU; where there is one, run, checked and timed.

examples:
  python -m compare aot vector_add --out programs/
  python -m compare aot vector_add --arch sm_90 --out programs/
  python -m compare aot softmax --only '*.onepass' --case M=64,N=781,fp16 --out programs/

exit status:
  0  every possible program was built; on a GPU, all that it can run are correct
  1  a program's output is wrong, or it failed to compile or to run
  2  a mistake in the command, its files or the machine's setup
  3  inconclusive: no program is possible
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compare import registry
from compare.command_line import options, outputs
from compare.command_line.status import FAILURE, INCONCLUSIVE, SUCCESS
from compare.model.op import Case, UsageError

if TYPE_CHECKING:
    from compare.aot.running import ProgramReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("op", metavar="OP", help="the op")
    options.add_only(add)
    options.add_arch(add, "build")
    add(
        "--case",
        metavar="CASE",
        help="sizes and dtype that the programs are for, e.g. M=4096,N=781,fp16 (default: a small one)",
    )
    add("--out", type=Path, metavar="DIR", required=True, help="where the programs go: DIR/OP/LABEL/ARCH/")
    options.add_file(add, "json", "everything, samples included")


def run(arguments: argparse.Namespace) -> int:
    """Check the arguments, and do it; the exit status."""
    options.check_op(arguments.op)
    archs = options.archs(arguments.arch)
    out = outputs.create_folder(arguments.out)
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is decorated; here all are compiled
    return build_and_show(arguments, archs, out)


def build_and_show(arguments: argparse.Namespace, archs: Sequence[str], out: Path) -> int:
    """Build the programs, run those that this GPU can, write and show the results; the exit status.

    No ``archs``: what is compiled for here by default.
    """
    # Start-up: --help and mistakes need neither PyTorch nor Triton.
    from compare.aot import plan, running, screen
    from compare.report import terminal

    op = registry.get_op(arguments.op)
    case = Case.parse(arguments.case, op) if arguments.case else op.cases.smoke[0]
    impls = plan.candidates(op, arguments.only)
    options.check_only(arguments.only, [impl.label for impl in registry.implementations(op.name)])
    if not impls:
        raise UsageError(
            f"--only {' '.join(arguments.only)}: PyTorch's own kernels cannot be compiled here; "
            "name a Triton or a CUDA implementation"
        )
    report = running.build_and_run(op, case, impls, archs, out)
    outputs.beside(
        lambda: terminal.put(lambda width: screen.render(report, width)),
        outputs.writes(arguments, report, json=outputs.as_json),
    )
    return _exit_status(report)


def _exit_status(report: ProgramReport) -> int:
    if any(one.failed or (one.ran and not one.ran.agreement.passed) for one in report.outcomes):
        return FAILURE
    return SUCCESS if any(one.program for one in report.outcomes) else INCONCLUSIVE
