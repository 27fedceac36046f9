"""Runs a program without Python: whether it is correct, its time to the first result, its launch overhead.

The oracle and the check are those of every implementation; inputs and output are files.  The same call is
timed from Python, in a new process too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from compare.capture import meta_inputs
from compare.checking.check import CheckOptions, check
from compare.checking.guarded_memory import POISON, memory_of
from compare.checking.reference import Outputs
from compare.checking.stage import CallResult, wrong_kind
from compare.registry import ROOT
from compare.spec import Implementation, Options
from compare.timing.statistics import estimate
from compare.toolchain.aot.plan import Plan
from compare.toolchain.aot.records import Program, Ran, Started

SEEDS = (0, 1, 2)
STARTS = 5
"""How often a program is started."""
PYTHON_STARTS = 2
"""How often Python is started with empty caches, and with full ones; each start takes seconds."""


class RunError(RuntimeError):
    """A program, or the call from Python beside it, gave no result.  The text is its last message."""


def run(program: Program, plan: Plan, called: Implementation, device: torch.device) -> Ran:
    """Check a program, and time it beside the same call from Python, of ``called``.

    Inputs are made and outputs compared on ``device``; the program uses the first GPU that it sees.

    Raises:
        RunError: one of them gave no result.
    """
    with tempfile.TemporaryDirectory() as scratch:
        stage = OnFiles(program, plan, Path(scratch), device)
        agreement = check(plan.op, called, plan.case, device, SEEDS, CheckOptions(stage))
        ahead = started_ahead(program, stage.files)
        jit = started_jit(plan, called, stage.files, Path(scratch))
    return Ran(agreement, ahead, jit, called.label)


class OnFiles:
    """Calls the program where `compare.checking.check` would call an implementation."""

    def __init__(self, program: Program, plan: Plan, folder: Path, device: torch.device) -> None:
        self._program, self._plan, self._device = program, plan, device
        self.files = [folder / name for name in program.files]
        """The inputs' bytes, then the output's."""

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        for file, x in zip(self.files, inputs, strict=False):
            memory_of(x).cpu().numpy().tofile(file)
        return inputs

    def call(self, expected: Outputs, poison: int = POISON) -> CallResult:
        assert poison == POISON  # `plan` refuses outputs of one byte, which alone need another one
        said = _lines(_end_of([str(self._program.executable), *map(str, self.files)]))
        at = self._plan.expected
        data = bytearray(self.files[-1].read_bytes())
        storage = torch.frombuffer(data, dtype=torch.uint8).to(self._device).untyped_storage()
        output = torch.empty(0, dtype=at.dtype, device=self._device)
        output.set_(storage, at.storage_offset(), at.shape, at.stride())
        violations = [f"it wrote {_where(offset, len(data))}" for offset in said["out_of_bounds"]]
        inputs = self._plan.inputs
        violations += [f"it wrote to its input {inputs[int(which)].name}" for which in said["input_changed"]]
        problem = wrong_kind(output, expected, self._device)
        outputs = None if problem else dict.fromkeys(expected, output)
        return CallResult(outputs, problem, tuple(violations), guarded=True)


def _where(offset: float, size: int) -> str:
    side, off = ("before", -offset) if offset < 0 else ("past", offset - size)
    return f"{side} the output, {off:.0f} bytes off"


def started_ahead(program: Program, files: Sequence[Path]) -> Started:
    """The program's time to its first result, and its launch overhead after that."""
    command = [str(program.executable), *map(str, files)]
    cold = [_cold_ms(command) for _ in range(STARTS)]
    timed = _lines(_end_of([command[0], "--time", *command[1:]]))
    return Started(
        cold_ms=estimate(cold),
        launch_us=estimate(timed["launch_us"]),
        graph_us=estimate(timed["graph_us"]),
    )


def started_jit(plan: Plan, called: Implementation, files: Sequence[Path], scratch: Path) -> Started:
    """The same for the call from Python; with empty caches of compiled kernels, and with those it left."""
    inputs = [
        (str(file), str(x.dtype).removeprefix("torch."), list(x.shape), list(x.stride()), x.storage_offset())
        for file, x in zip(files, meta_inputs(plan.op, plan.case), strict=False)
    ]
    order = {"module": called.run.__module__, "function": called.run.__name__, "inputs": inputs}
    command = [sys.executable, "-m", "compare.toolchain.aot.jit"]

    def environment(cache: Path) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        return found | {"TRITON_CACHE_DIR": str(cache / "triton"), "CUPY_CACHE_DIR": str(cache / "cupy")}

    asked = json.dumps({**order, "timed": False})
    caches = [scratch / f"cache{number}" for number in range(PYTHON_STARTS)]
    compiling = [_cold_ms(command, asked, environment(cache)) for cache in caches]
    cold = [_cold_ms(command, asked, environment(caches[0])) for _ in range(PYTHON_STARTS)]
    timed = _lines(_end_of(command, json.dumps({**order, "timed": True}), environment(caches[0])))
    return Started(
        cold_ms=estimate(cold),
        compiling_ms=estimate(compiling),
        launch_us=estimate(timed["launch_us"]),
        graph_us=estimate(timed["graph_us"]),
    )


def _cold_ms(command: Sequence[str], given: str = "", environment: dict[str, str] | None = None) -> float:
    """From just before the process is started until its first result, on the clock that both read."""
    begin = time.monotonic_ns()
    said = _lines(_end_of(command, given, environment))
    return (said["first_result_ns"][0] - begin) / 1e6


def _end_of(command: Sequence[str], given: str = "", environment: dict[str, str] | None = None) -> str:
    """What a process printed, if its exit status is 0."""
    name = Path(command[0]).parent.parent.name if "-m" not in command else command[2]
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=Options.timeout_s,
            cwd=ROOT,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{name} did not end within {Options.timeout_s:.0f} s") from None
    except OSError as error:
        raise RunError(f"{name} could not be started: {error.strerror}") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise RunError(f"{name} ended with status {done.returncode} and said: {said[0]}")
    return done.stdout


def _lines(text: str) -> dict[str, list[float]]:
    """``launch_us 2.5`` and the like, by their first word."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        found[name].append(float(value))
    return found
