"""Builds an op's programs, and checks and times those that this GPU can run.

The oracle and the check are those of every implementation; inputs and output are files.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from compare.aot.building import Program, make
from compare.aot.plan import ProgramPlan, plan
from compare.checking.check import CheckOptions, check
from compare.checking.guarded_memory import POISON, memory_of
from compare.checking.reference import Outputs
from compare.checking.stage import CallResult, wrong_kind
from compare.device import arch as arch_of
from compare.device import capability, default_archs, environment, pick, versions
from compare.model.op import Case, Implementation, Op, UsageError
from compare.model.result import Agreement, Estimate, Options
from compare.report.progress import of_run
from compare.timing.statistics import estimate
from cuda_impl import build

SEEDS = (0, 1, 2)
STARTS = 5
"""How often a program is started."""


class RunError(RuntimeError):
    """A program gave no result.  The text is its last message."""


@dataclass(frozen=True)
class ProgramRun:
    """Whether a program is correct on a GPU, and its times."""

    agreement: Agreement
    cold_ms: Estimate
    """From the start of the process until the first result is in the host's memory."""
    launch_us: Estimate
    """Host time of one launch, of many in a row."""
    graph_us: Estimate
    """Host time of launching it as a CUDA graph of one kernel."""


@dataclass(frozen=True)
class ProgramOutcome:
    """One implementation for one architecture: built or not, run or not."""

    label: str
    arch: str
    program: Program | None = None
    ran: ProgramRun | None = None
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
        program = make(planned, folder)
        outcome = replace(outcome, program=program)
        if (here := arch_of(device)) and capability(here) == capability(arch):
            outcome = replace(outcome, ran=run(program, planned, impl, device))
    except NotImplementedError as error:
        return replace(outcome, cannot=str(error))
    except (build.BuildError, RunError) as error:
        return replace(outcome, failed=str(error))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"--out {folder}: could not be written: {error.strerror}") from None
    except Exception as error:  # of a kernel's own compiler: anything
        return replace(outcome, failed=f"{type(error).__name__}: {error}")
    return outcome


def run(program: Program, plan: ProgramPlan, impl: Implementation, device: torch.device) -> ProgramRun:
    """Check a program, and time it.

    Inputs are made and outputs compared on ``device``; the program uses the first GPU that it sees.

    Raises:
        RunError: it gave no result.
    """
    with tempfile.TemporaryDirectory() as scratch:
        stage = OnFiles(program, plan, Path(scratch), device)
        agreement = check(plan.op, impl, plan.case, device, SEEDS, CheckOptions(stage, repeated=False))
        cold_ms = [stage.start_ms() for _ in range(STARTS)]
        times = output_of(program, ["--time", *map(str, stage.files)])
    return ProgramRun(agreement, estimate(cold_ms), estimate(times["launch_us"]), estimate(times["graph_us"]))


class OnFiles:
    """Calls the program where `compare.checking.check` would call an implementation."""

    def __init__(self, program: Program, plan: ProgramPlan, folder: Path, device: torch.device) -> None:
        self._program, self._plan, self._device = program, plan, device
        self.files = [folder / name for name in program.files]
        """The inputs' bytes, then the output's."""

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        for file, x in zip(self.files, inputs, strict=False):
            memory_of(x).cpu().numpy().tofile(file)
        return inputs

    def start_ms(self) -> float:
        """Run it once: from its start to its result, by the clock that both processes read."""
        begin_ns = time.monotonic_ns()
        return (output_of(self._program, self.files)["first_result_ns"][0] - begin_ns) / 1e6

    def call(self, expected: Outputs, poison: int = POISON) -> CallResult:
        assert poison == POISON  # `plan` refuses outputs of one byte, which alone need another one
        report = output_of(self._program, self.files)
        at = self._plan.expected
        data = bytearray(self.files[-1].read_bytes())
        storage = torch.frombuffer(data, dtype=torch.uint8).to(self._device).untyped_storage()
        output = torch.empty(0, dtype=at.dtype, device=self._device)
        output.set_(storage, at.storage_offset(), at.shape, at.stride())
        violations = []
        for offset in report["out_of_bounds"]:
            side, off = ("before", -offset) if offset < 0 else ("past", offset - len(data))
            violations.append(f"it wrote {side} the output, {off:.0f} bytes off")
        for number in report["input_changed"]:
            violations.append(f"it wrote to its input {self._plan.memory[int(number)].name}")
        problem = wrong_kind(output, expected, self._device)
        outputs = None if problem else dict.fromkeys(expected, output)
        return CallResult(outputs, problem, tuple(violations), guarded=True)


def output_of(program: Program, words: Sequence[str | Path]) -> dict[str, list[float]]:
    """What the program printed, ``launch_us 2.5`` and the like, by the first word of a line.

    Raises:
        RunError: it did not start, did not end in time, or its exit status is not 0.
    """
    limit_s = Options.timeout_s
    try:
        done = subprocess.run(
            [program.executable, *words], capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{program.label} did not end within {limit_s:.0f} s") from None
    except OSError as error:
        raise RunError(f"{program.label} could not be started: {error.strerror}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise RunError(f"{program.label} ended with status {done.returncode} and said: {last}")
    values: dict[str, list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        values[name].append(float(value))
    return values
