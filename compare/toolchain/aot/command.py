"""``python -m compare aot OP``: arguments in, exit code out."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from compare import registry
from compare.command_line import options, outputs
from compare.spec import Case, Implementation, Op, UsageError

if TYPE_CHECKING:
    import torch

    from compare.toolchain.aot.plan import Plan
    from compare.toolchain.aot.records import Outcome, Report

BUILT, DISAGREES, INCONCLUSIVE = 0, 1, 3

_EPILOG = """\
examples:
  python -m compare aot vector_add --out programs/
  python -m compare aot vector_add --arch sm_90 --out programs/
  python -m compare aot softmax --only '*.onepass' --case M=64,N=781,fp16 --out programs/

exit status:
  0  every program that there can be was built; where there is a GPU, all for it ran and agree
  1  a program's output disagrees with the fp64 result
  2  a mistake in the command, its files or the machine's setup
  3  inconclusive: something failed to compile or to run, or there can be no program at all
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
        UsageError: the command asks for what does not exist, or the machine lacks what all programs need.
    """
    arguments = parser().parse_args(argv)
    options.check_op(arguments.op)
    archs = options.archs(arguments.arch)
    out = outputs.made(arguments.out)
    outputs.check({"--json": arguments.json})
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is decorated; here all are compiled

    from compare.toolchain.aot.plan import candidates

    op = registry.get_op(arguments.op)
    case = Case.parse(arguments.case, op) if arguments.case else op.cases.smoke[0]
    impls = candidates(op, arguments.only)
    if not impls:
        raise UsageError(
            f"--only {' '.join(arguments.only)}: PyTorch's own kernels are not ours to compile; "
            "name a Triton or a CUDA implementation"
        )
    _check_compilers()
    report = _report(op, case, impls, archs, out)

    from compare.report import terminal
    from compare.toolchain.aot import report as programs

    outputs.beside(
        lambda: terminal.put(lambda width: programs.render(report, width)),
        [lambda: outputs.write_json(arguments.json, report)],
    )
    return exit_status(report)


def exit_status(report: Report) -> int:
    """0 built (and agree), 1 disagree, 3 inconclusive."""
    if any(one.ran and not one.ran.agreement.passed for one in report.outcomes):
        return DISAGREES
    built = any(one.program for one in report.outcomes)
    return INCONCLUSIVE if any(one.failed for one in report.outcomes) or not built else BUILT


def _report(op: Op, case: Case, impls: Sequence[Implementation], archs: Sequence[str], out: Path) -> Report:
    from compare.device import arch as arch_of
    from compare.device import default_archs, environment, pick, versions
    from compare.report.progress import of_run
    from compare.toolchain.aot.records import Report

    device = pick()
    here = arch_of(device)
    asked = [(impl, arch) for impl in impls for arch in archs or default_archs(device)]
    outcomes = []
    with of_run(op.name, None) as progress:
        for count, (impl, arch) in enumerate(asked):
            progress(f"{impl.label} for {arch}", count / len(asked))
            folder = out / op.name / impl.label / arch
            outcomes.append(_outcome(op, case, impl, arch, folder, device))
    why = ""
    if here is None:
        why = (
            "Running them needs a GPU, and there is none here: copy a folder to a machine with one, or run "
            "this there."
        )
    elif not any(one.ran for one in outcomes):
        why = f"None of them was run: this GPU is {here}."
    name = environment(device).device if here else ""
    return Report(op.name, op.signature, str(case), tuple(outcomes), name, why, versions())


def _outcome(
    op: Op, case: Case, impl: Implementation, arch: str, folder: Path, device: torch.device
) -> Outcome:
    from compare.device import arch as arch_of
    from compare.device import capability
    from compare.toolchain.aot.building import make
    from compare.toolchain.aot.plan import plan
    from compare.toolchain.aot.records import Outcome
    from cuda_impl.build import BuildError

    found = Outcome(impl.label, arch)
    try:
        planned = plan(op, impl, case, arch)
        # What is compiled here must not shorten what is timed.
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, TRITON_CACHE_DIR=cache):
            found = replace(found, program=make(planned, folder))
    except NotImplementedError as error:
        return replace(found, cannot=str(error))
    except BuildError as error:
        return replace(found, failed=str(error))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"--out {folder}: could not be written: {error.strerror}") from None
    except Exception as error:  # of a kernel's own compiler: anything
        return replace(found, failed=f"{type(error).__name__}: {error}")
    if (here := arch_of(device)) and capability(here) == capability(arch):
        return _run(found, planned, impl, device)
    return found


def _run(found: Outcome, planned: Plan, impl: Implementation, device: torch.device) -> Outcome:
    from compare.capture import captured_route
    from compare.toolchain.aot import running

    assert found.program is not None
    try:
        return replace(found, ran=running.run(found.program, planned, captured_route(impl), device))
    except running.RunError as error:
        return replace(found, failed=str(error))


def _check_compilers() -> None:
    """Without these there is no program at all; what a single way lacks is said in its row."""
    from cuda_impl import build

    try:
        build.gcc(), build.make_tool(), build.driver_include()
    except build.BuildError as error:
        raise UsageError(str(error)) from None
