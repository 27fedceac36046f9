"""A comparison in a process of its own: one student's file cannot disturb another's."""

from __future__ import annotations

import math
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from compare.device import pick
from compare.labs.lab import SOLUTIONS
from compare.model.op import UsageError
from compare.model.result import Comparison, Row
from compare.records import archive
from compare.sandbox.environment import kept_variables
from compare.worker import server

_LOOK_S = 0.05
COMMAND_MODULES = (
    *("compare.commands.compare", "compare.run", "compare.report.terminal", "compare.report.markdown"),
    *("torch._dynamo", "triton.experimental.gluon.nvidia.hopper"),
)
"""What a comparison imports before it runs, but for implementations."""
_ARCH = "sm_90a"
"""Without a GPU kernels are compiled for this architecture, and figures are of it."""
_USAGE = 2
"""Exit status of a file that cannot be loaded."""


_ONCE_S, _STEPS = 300.0, 10
"""Of `limit_s`: a machine's own work, and steps of an implementation that take all of their time."""
_LAST_BYTES = 1 << 14
LATE = "took longer than"
"""In the reason of a row one of whose steps reached the limit."""


def limit_s(timeout_s: float) -> float:
    """The time that all calls of one submission may take together, in s."""
    return _ONCE_S + _STEPS * timeout_s


@dataclass
class Stop:
    """Whether Ctrl-C or a signal has come."""

    is_set: bool = False
    """No lock guards it: a signal handler may run while this very thread reads it."""


def stop_on_signals() -> Stop:
    """What Ctrl-C, SIGTERM and SIGHUP set, unless they are ignored, and then raise `KeyboardInterrupt`."""
    stop = Stop()

    def handle(*_: object) -> None:
        stop.is_set = True
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handle)
    return stop


@dataclass
class Allowance:
    """Time that several comparisons may take together, from `start` on."""

    seconds: float = math.inf
    timing_s: float | None = None
    """Of the timing in each of them; None: as the command has it."""
    stop: Stop = field(default_factory=Stop)
    """Once set, those that run are ended, and no other begins."""
    hung: dict[Path, str] = field(default_factory=dict)
    """Why a file took too long: it is not run again."""
    _until: float = math.inf

    def start(self) -> None:
        """Begin to count, or begin anew."""
        self._until = time.monotonic() + self.seconds
        self.hung.clear()

    @property
    def left_s(self) -> float:
        """What is left, in s; 0 where it was stopped."""
        return 0.0 if self.stop.is_set else max(0.0, self._until - time.monotonic())

    def used_up(self) -> str:
        """Why nothing runs any more."""
        if self.stop.is_set:
            return "it was interrupted"
        return f"its comparisons together took longer than {self.seconds:.0f} s, the limit for one submission"


@dataclass(frozen=True)
class Run:
    """What ``python -m compare OP`` found, or why it found nothing."""

    comparison: Comparison | None
    error: str = ""
    refused: bool = False
    """The file could not be loaded: its own mistake, not the machine's."""

    def row(self, case: str, label: str) -> Row | None:
        """The row of a label, or the first of a pattern, as ``*.mine``."""
        cases = self.comparison.cases if self.comparison else ()
        rows = (row for each in cases if each.case == case for row in each.rows)
        return next((row for row in rows if fnmatchcase(row.label, label)), None)


@dataclass(frozen=True)
class HandedIn:
    """A student's file."""

    file: Path
    others: Path | None = None
    """The class's folder, of which it sees its own folder only."""
    sanitized: bool = False
    """Whether it is run under compute-sanitizer too: on a GPU."""
    inspected: bool = True
    """Whether its kernels are compiled for a GPU, and their registers read."""

    @property
    def hidden(self) -> str:
        """The folder of which it sees its own folder only; empty for the project's solutions."""
        file = self.file.resolve()
        # Absolute: it is read by processes in another folder.
        return "" if file.is_relative_to(SOLUTIONS) else str((self.others or file.parent).resolve())

    @property
    def own_code(self) -> list[str]:
        """The option that keeps the project's kernels from it; none for the project's solutions."""
        return ["--own-code", self.hidden] if self.hidden else []


def run(
    op: str,
    cases: Sequence[str],
    only: Sequence[str],
    device: str,
    timeout_s: float,
    load: HandedIn | None = None,
    allowance: Allowance | None = None,
) -> Run:
    """Compare implementations of ``op``.

    Args:
        op: its name.
        cases: none: the op's default case.
        only: labels; the baseline is added.
        device: as on the command line.
        timeout_s: the most that one step of an implementation may take.
        load: a student's file.
        allowance: of this and other comparisons; None: without a limit.
    """
    allowance = allowance or Allowance()
    if not allowance.left_s:
        return Run(None, allowance.used_up(), refused=True)
    if load and load.file in allowance.hung:
        return Run(None, f"not run again: {allowance.hung[load.file]}", refused=True)
    done = _compared(op, cases, only, device, timeout_s, load, allowance)
    if load and (why := _hung(done, only)):
        allowance.hung[load.file] = why
    return done


def _compared(
    op: str,
    cases: Sequence[str],
    only: Sequence[str],
    device: str,
    timeout_s: float,
    load: HandedIn | None,
    allowance: Allowance,
) -> Run:
    # Each case has several steps, of each row; then the process hangs in a way of its own.
    own_s = 120 + timeout_s * 4 * (len(cases) + 2) * (len(only) + 1)
    loaded = str(load.file.resolve()) if load else ""
    if not loaded.isprintable():
        return Run(None, "its folder's name has characters that cannot be printed: rename it", refused=True)
    with tempfile.TemporaryDirectory() as folder:
        out, stderr = Path(folder) / "run.json", Path(folder) / "stderr"
        words = [
            op,
            "--no-hard-inputs",
            "--device",
            device,
            "--timeout",
            f"{timeout_s:g}",
            "--json",
            str(out),
        ]
        words += [word for case in cases for word in ("--case", case)]
        words += [word for label in only for word in ("--only", label)]
        if load:
            words += ["--load", loaded, *load.own_code, *["--no-resources"][load.inspected :]]
        if pick(device).type == "cpu":
            words += ["--arch", _ARCH]
        elif load and load.sanitized:
            words.append("--sanitize")
        words += ["--budget", f"{allowance.timing_s:g}"] if allowance.timing_s else []
        status = _command(words, stderr, min(own_s, allowance.left_s), allowance.stop)
        if status is None and not allowance.left_s:
            return Run(None, allowance.used_up(), refused=True)
        if status is None:
            return Run(None, f"the comparison took longer than {own_s:.0f} s")
        if out.is_file():
            try:
                return Run(archive.read(out)[0])
            except UsageError as error:
                return Run(None, str(error))
        last = stderr.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip().rpartition("\n")[2]
    why = last.removeprefix("python -m compare: ") or "the comparison printed nothing"
    return Run(None, why.removeprefix(f"--load {loaded}: "), status == _USAGE and "--load" in why)


def _hung(done: Run, only: Sequence[str]) -> str:
    """Why an implementation took too long in all cases; empty: it did not."""
    cases = done.comparison.cases if done.comparison else ()
    rows = [row for case in cases for row in case.rows if any(fnmatchcase(row.label, one) for one in only)]
    late = [row.reason for row in rows if row.status == "failed" and LATE in row.reason]
    return late[0] if late and len(late) == len(rows) else ""


def _command(words: Sequence[str], stderr: Path, seconds: float, stop: Stop) -> int | None:
    """The exit status of ``python -m compare``; None: it took too long, or was stopped.

    No process of it is left.
    """
    with stderr.open("wb") as written:
        command = server.Command("compare.cli", tuple(words), kept_variables())
        process = server.fork_command(command, written.fileno())
    until = time.monotonic() + seconds
    try:
        while (status := process.wait(_LOOK_S)) is None and time.monotonic() < until and not stop.is_set:
            pass
        return status
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):  # at the first the judge ends its workers
            if process.wait(0.0) is None:
                process.signal_group(sent)
                process.wait(10.0)
