"""An op's programs: each built, and run where this GPU can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from compare.aot import running
from compare.aot.building import Program, make
from compare.aot.plan import plan
from compare.device import arch as arch_of
from compare.device import capability, default_archs, environment, pick, versions
from compare.model.op import Case, Implementation, Op, UsageError
from compare.report.progress import of_run
from cuda_impl import build


@dataclass(frozen=True)
class ProgramOutcome:
    """One implementation for one architecture: built or not, run or not."""

    label: str
    arch: str
    program: Program | None = None
    ran: running.ProgramRun | None = None
    cannot: str = ""
    """Why there can be no such program."""
    failed: str = ""
    """Why it did not compile or run."""


@dataclass(frozen=True)
class ProgramReport:
    """All of one command."""

    op: str
    signature: str
    case: str
    outcomes: tuple[ProgramOutcome, ...]
    device: str = ""
    """The GPU that the programs ran on; empty on a machine without one."""
    why_not_run: str = ""
    versions: dict[str, str] = field(default_factory=dict)


def build_and_run(
    op: Op, case: Case, impls: Sequence[Implementation], archs: Sequence[str], out: Path
) -> ProgramReport:
    """Build the programs in ``out``, and run those that this GPU can.

    Args:
        op: what they implement.
        case: what each program is for.
        impls: with kernels of their own.
        archs: ``sm_90``; none: what is compiled for here by default.
        out: the folder of all of them.

    Raises:
        UsageError: a tool that every program needs is missing, or ``out`` cannot be written.
    """
    try:  # every program needs these; what only some lack is in their rows
        build.gcc(), build.make_tool(), build.driver_include()
    except build.BuildError as error:
        raise UsageError(str(error)) from None
    device = pick()
    here = arch_of(device)
    pairs = [(impl, arch) for impl in impls for arch in archs or default_archs(device)]
    outcomes = []
    with of_run(op.name, None) as progress:
        for count, (impl, arch) in enumerate(pairs):
            progress(f"{impl.label} for {arch}", count / len(pairs))
            outcomes.append(_outcome(op, case, impl, arch, out / op.name / impl.label / arch))
    why = ""
    if here is None:
        why = "There is no GPU here: copy a folder to a machine with one, or run this command there."
    elif not any(one.ran for one in outcomes):
        why = f"None of them was run: this GPU is {here}."
    name = environment(device).device if here else ""
    return ProgramReport(op.name, op.signature, str(case), tuple(outcomes), name, why, versions())


def _outcome(op: Op, case: Case, impl: Implementation, arch: str, folder: Path) -> ProgramOutcome:
    outcome, device = ProgramOutcome(impl.label, arch), pick()
    try:
        planned = plan(op, impl, case, arch)
        outcome = replace(outcome, program=make(planned, folder))
        if outcome.program and (here := arch_of(device)) and capability(here) == capability(arch):
            outcome = replace(outcome, ran=running.run(outcome.program, planned, impl, device))
    except NotImplementedError as error:
        return replace(outcome, cannot=str(error))
    except (build.BuildError, running.RunError) as error:
        return replace(outcome, failed=str(error))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"--out {folder}: could not be written: {error.strerror}") from None
    except Exception as error:  # of a kernel's own compiler: anything
        return replace(outcome, failed=f"{type(error).__name__}: {error}")
    return outcome
