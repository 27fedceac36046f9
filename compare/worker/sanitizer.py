"""compute-sanitizer's four tools on a row's smallest cases: what ``--sanitize`` adds to a check.

Each tool watches a new process, `compare.worker.sanitized`, which is isolated as all that run users' files.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from cuda import pathfinder

from compare.checking.hard_inputs import is_small
from compare.model.op import Case, Implementation, Op, UsageError
from compare.model.result import NOT_SANITIZED, SANITIZER, Finding
from compare.sandbox.isolation import Isolation, found
from compare.sandbox.launch import IsolatedProcess
from compare.sandbox.words import how_it_ended, printable
from compare.worker import sanitized
from compare.worker.sanitized import SanitizedCalls, SanitizedStep
from compare.worker.sanitizer_reports import places_of, reports_in, trouble_in
from compare.worker.user_files import to_load

TOOLS = {
    # Libraries ask the driver for functions that it may not have: no error of a kernel.
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "analysis"),
    "synccheck": (),
    "initcheck": ("--check-api-memory-access", "no"),
}
"""By tool the options that it takes beside those of all."""
_OPTIONS = ("--show-backtrace", "device", "--target-processes", "application-only", "--print-limit", "100")
_VARIABLES = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # every tensor is an allocation, whose end the tools know
    "PYTHONDONTWRITEBYTECODE": "1",
}
_MOST_REPORTS = 3
_MOST_BYTES = 4 << 20
"""Of a tool's output."""


class NotSanitized(Exception):
    """A tool came to no result; the text is a sentence that says why."""


@functools.cache
def compute_sanitizer() -> str | None:
    """The program: from PATH, the CUDA toolkit, or PyPI; None: not installed."""
    toolkits = ["/opt/cuda", *sorted(map(str, Path("/usr/local").glob("cuda*")), reverse=True)]
    folders = [f"{home}/bin" for home in (os.environ.get("CUDA_HOME"), *toolkits) if home]
    name = "compute-sanitizer"
    program = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    program = program or pathfinder.find_nvidia_binary_utility(name)
    return program and str(Path(program).absolute())


def check_installed(device: torch.device) -> None:
    """A `UsageError` where ``--sanitize`` cannot be carried out."""
    if device.type != "cuda":
        raise UsageError(
            "--sanitize needs a GPU. Without one, each check of a --load file looks for wrong addresses, "
            "and for races in its CUDA kernels: leave --sanitize out"
        )
    if compute_sanitizer() is None:
        raise UsageError(
            "--sanitize needs compute-sanitizer, which is not on PATH or in CUDA_HOME. It is part of the "
            "CUDA Toolkit; pip install nvidia-cuda-sanitizer-api has it too"
        )


def cases_of(op: Op) -> list[list[Case]]:
    """What is run: of each list the first case that the implementation takes.

    The smallest contiguous case, the largest that takes milliseconds, and the smallest of another layout.
    """
    cases = [
        case
        for case in dict.fromkeys((*op.cases.smoke, *op.cases.edge))
        if not op.is_empty(case) and case.fill == "normal" and is_small(op, case)
    ]
    cases.sort(key=lambda case: op.cost(case).bytes)
    contiguous = [case for case in cases if case.layout == "contiguous"]
    others = [case for case in cases if case.layout != "contiguous"]
    return [each for each in (contiguous, contiguous[::-1], others) if each]


def sanitize(op: Op, impl: Implementation, device: torch.device, timeout_s: float) -> Finding:
    """What the four tools report of an implementation's own kernels.

    Args:
        op: its small cases are run.
        impl: a user's, or one of the project's.
        device: a GPU.
        timeout_s: of one tool.

    Raises:
        NotSanitized: a tool came to no result, and none of them reports anything.
    """
    run = functools.partial(_ToolRun, op, impl, device, timeout_s)
    isolation, first = _first(run)
    first.check_started()
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        others = [pool.submit(run, tool, isolation) for tool in [*TOOLS][1:]]
    runs = [first, *(other.result() for other in others)]
    reports = list(dict.fromkeys(f"{one.tool}: {report}" for one in runs for report in one.reports))
    if reports:
        more = f"; and {len(reports) - _MOST_REPORTS} more" if len(reports) > _MOST_REPORTS else ""
        return Finding(SANITIZER, False, "; ".join(reports[:_MOST_REPORTS]) + more)
    for one in runs:
        one.check_done()
    return Finding(SANITIZER, True, f"{', '.join(TOOLS)}: clean on {' and '.join(first.ran)}")


def _first(run: functools.partial[_ToolRun]) -> tuple[Isolation, _ToolRun]:
    """A run of the first tool in the strongest isolation in which it starts, and that isolation."""
    for isolation in _isolations(found()):
        first = run(next(iter(TOOLS)), isolation)
        if first.started:
            break
    return isolation, first


def _isolations(here: Isolation) -> Iterator[Isolation]:
    """All mechanisms that work here; then fewer, of those that still hold."""
    yield here
    for fewer in (replace(here, namespaces=False), replace(here, landlock=0)):
        if fewer.holds and fewer != here:
            yield fewer


class _ToolRun:
    """One tool run on an implementation, and what came of it."""

    def __init__(
        self,
        op: Op,
        impl: Implementation,
        device: torch.device,
        timeout_s: float,
        tool: str,
        isolation: Isolation,
    ) -> None:
        self.tool, self._timeout_s = tool, timeout_s
        cases = [[str(case) for case in each] for each in cases_of(op)]
        files = tuple(str(Path(file).resolve()) for file in to_load(impl))
        label, parameters = impl.base or impl.label, dict(impl.parameters)
        calls = SanitizedCalls(op.name, label, parameters, files, str(device), cases, isolation.seccomp)
        said, noise, self._code = self._watched(command(tool, calls), isolation)
        steps = list(_steps(noise))
        self._last = noise.strip().rpartition("\n")[2]
        self.started = bool(steps)
        self.ran = [step.ran for step in steps if step.ran]
        self._raised = next((step.raised for step in steps if step.raised), "")
        self._refused = next((step.refused for step in steps if step.refused), "")
        self._trouble = trouble_in(said)
        self._complete = "SUMMARY: " in said
        self.reports = reports_in(said, places_of(steps))

    def _watched(self, words: Sequence[str], isolation: Isolation) -> tuple[str, str, int | None]:
        """What the tool printed and what the process wrote, and the exit code; None: its time was over."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as steps:
            launched = IsolatedProcess(
                words[0], words[1:], _VARIABLES, steps, out=out, mechanisms=replace(isolation, seccomp=False)
            )
            try:
                code = _waited(launched.process, self._timeout_s)
            finally:
                launched.close()
            said, noise = (
                printable(os.pread(file.fileno(), _MOST_BYTES, 0).decode(errors="replace"))
                for file in (out, steps)
            )
        return said, noise, code

    def check_started(self) -> None:
        """`NotSanitized` unless the tool and CUDA have started."""
        if not self.started:
            why = self._trouble or self._last or self._end
            raise NotSanitized(f"{NOT_SANITIZED}: {why.rstrip('.')}. Leave out --sanitize")

    def check_done(self) -> None:
        """`NotSanitized` unless the tool watched a case to its end."""
        self.check_started()
        if self._code is None:
            why = self._end
        elif self._raised or self._trouble:
            why = self._raised or self._trouble
        elif not self.ran:
            why = f"no small case: {self._refused or 'the op has none'}"
        elif not self._complete:
            why = self._end
        else:
            return
        raise NotSanitized(f"compute-sanitizer's {self.tool} came to no result: {why}")

    @property
    def _end(self) -> str:
        """How it ended."""
        if self._code is None:
            return f"it took longer than {self._timeout_s:g} s, the limit (--timeout)"
        return how_it_ended(self._code)


def command(tool: str, calls: SanitizedCalls) -> list[str]:
    """The words that run a tool of compute-sanitizer on a process that makes the calls."""
    program = compute_sanitizer() or "compute-sanitizer"
    options = ("--tool", tool, *TOOLS[tool], *_OPTIONS)
    return [program, *options, sys.executable, "-m", sanitized.__name__, msgspec.json.encode(calls).decode()]


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code; None: it still ran after these seconds.  No process of its group is left."""
    with process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _steps(text: str) -> Iterator[SanitizedStep]:
    """The steps among what was written to stderr, which others may have written to as well."""
    for line in text.splitlines():
        if line.startswith("{"):
            with suppress(ValueError):
                yield msgspec.json.decode(line, type=SanitizedStep)
