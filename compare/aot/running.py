"""Runs a program without Python: whether it is correct, its time to the first result, its launch overhead.

The oracle and the check are those of every implementation; inputs and output are files.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from compare.aot.building import Program
from compare.aot.plan import ProgramPlan
from compare.checking.check import CheckOptions, check
from compare.checking.guarded_memory import POISON, memory_of
from compare.checking.reference import Outputs
from compare.checking.stage import CallResult, wrong_kind
from compare.model.op import Implementation
from compare.model.result import Agreement, Estimate, Options
from compare.timing.statistics import estimate

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


def run(program: Program, plan: ProgramPlan, impl: Implementation, device: torch.device) -> ProgramRun:
    """Check a program, and time it.

    Inputs are made and outputs compared on ``device``; the program uses the first GPU that it sees.

    Raises:
        RunError: it gave no result.
    """
    with tempfile.TemporaryDirectory() as scratch:
        stage = OnFiles(program, plan, Path(scratch), device)
        agreement = check(plan.op, impl, plan.case, device, SEEDS, CheckOptions(stage))
        begin_ns, first_ns = zip(*(stage.start() for _ in range(STARTS)), strict=True)
        cold_ms = [(first - begin) / 1e6 for begin, first in zip(begin_ns, first_ns, strict=True)]
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

    def start(self) -> tuple[int, float]:
        """Run it once: when it was started and when it had its result, in ns of the clock that both read."""
        begin = time.monotonic_ns()
        return begin, output_of(self._program, self.files)["first_result_ns"][0]

    def call(self, expected: Outputs, poison: int = POISON) -> CallResult:
        assert poison == POISON  # `plan` refuses outputs of one byte, which alone need another one
        said = output_of(self._program, self.files)
        at = self._plan.expected
        data = bytearray(self.files[-1].read_bytes())
        storage = torch.frombuffer(data, dtype=torch.uint8).to(self._device).untyped_storage()
        output = torch.empty(0, dtype=at.dtype, device=self._device)
        output.set_(storage, at.storage_offset(), at.shape, at.stride())
        violations = [f"it wrote {_where(offset, len(data))}" for offset in said["out_of_bounds"]]
        memory = self._plan.memory
        violations += [f"it wrote to its input {memory[int(which)].name}" for which in said["input_changed"]]
        problem = wrong_kind(output, expected, self._device)
        outputs = None if problem else dict.fromkeys(expected, output)
        return CallResult(outputs, problem, tuple(violations), guarded=True)


def _where(offset: float, size: int) -> str:
    side, off = ("before", -offset) if offset < 0 else ("past", offset - size)
    return f"{side} the output, {off:.0f} bytes off"


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
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise RunError(f"{program.label} ended with status {done.returncode} and said: {said[0]}")
    found: dict[str, list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        found[name].append(float(value))
    return found
