"""The work of ``python -m compare aot``: build, run, show."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from compare import registry
from compare.capture import captured_route
from compare.command_line import outputs
from compare.device import arch as arch_of
from compare.device import capability, default_archs, environment, pick, versions
from compare.report import terminal
from compare.report.progress import of_run
from compare.spec import Case, Implementation, Op, UsageError
from compare.toolchain.aot import report as programs
from compare.toolchain.aot import running
from compare.toolchain.aot.building import make
from compare.toolchain.aot.plan import candidates, plan
from compare.toolchain.aot.records import Outcome, Report
from cuda_impl import build

BUILT, DISAGREES, INCONCLUSIVE = 0, 1, 3


def run(arguments: argparse.Namespace, archs: Sequence[str], out: Path) -> int:
    """Build the programs, run those that this GPU can, write and show the results; the exit status.

    No ``archs``: what is compiled for here by default.
    """
    op = registry.get_op(arguments.op)
    case = Case.parse(arguments.case, op) if arguments.case else op.cases.smoke[0]
    impls = candidates(op, arguments.only)
    if not impls:
        raise UsageError(
            f"--only {' '.join(arguments.only)}: PyTorch's own kernels cannot be compiled here; "
            "name a Triton or a CUDA implementation"
        )
    _check_compilers()
    report = _report(op, case, impls, archs, out)
    outputs.beside(
        lambda: terminal.put(lambda width: programs.render(report, width)),
        [lambda: outputs.write_json(arguments.json, report)],
    )
    return exit_status(report)


def exit_status(report: Report) -> int:
    """0 built (and correct), 1 wrong, 3 inconclusive."""
    if any(one.ran and not one.ran.agreement.passed for one in report.outcomes):
        return DISAGREES
    built = any(one.program for one in report.outcomes)
    return INCONCLUSIVE if any(one.failed for one in report.outcomes) or not built else BUILT


def _report(op: Op, case: Case, impls: Sequence[Implementation], archs: Sequence[str], out: Path) -> Report:
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
        why = "There is no GPU here: copy a folder to a machine with one, or run this command there."
    elif not any(one.ran for one in outcomes):
        why = f"None of them was run: this GPU is {here}."
    name = environment(device).device if here else ""
    return Report(op.name, op.signature, str(case), tuple(outcomes), name, why, versions())


def _outcome(
    op: Op, case: Case, impl: Implementation, arch: str, folder: Path, device: torch.device
) -> Outcome:
    found = Outcome(impl.label, arch)
    try:
        planned = plan(op, impl, case, arch)
        # What is compiled here must not shorten what is timed.
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, TRITON_CACHE_DIR=cache):
            found = replace(found, program=make(planned, folder))
    except NotImplementedError as error:
        return replace(found, cannot=str(error))
    except build.BuildError as error:
        return replace(found, failed=str(error))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"--out {folder}: could not be written: {error.strerror}") from None
    except Exception as error:  # of a kernel's own compiler: anything
        return replace(found, failed=f"{type(error).__name__}: {error}")
    try:
        if found.program and (here := arch_of(device)) and capability(here) == capability(arch):
            found = replace(found, ran=running.run(found.program, planned, captured_route(impl), device))
    except running.RunError as error:
        return replace(found, failed=str(error))
    return found


def _check_compilers() -> None:
    """Every program needs these; what only one way lacks is in its row."""
    try:
        build.gcc(), build.make_tool(), build.driver_include()
    except build.BuildError as error:
        raise UsageError(str(error)) from None
