"""A comparison in a process of its own: one student's file cannot disturb another's."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from compare.records import archive
from compare.sandbox.environment import kept
from compare.spec import Comparison, Row, UsageError
from compare.worker import server

_USAGE = 2
"""Exit status of a file that cannot be loaded."""


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


def run(
    op: str,
    cases: Sequence[str],
    only: Sequence[str],
    device: str,
    timeout_s: float,
    load: Path | None = None,
    budget_s: float | None = None,
) -> Run:
    """Compare implementations of ``op`` on ``cases``.

    Args:
        cases: none: the op's default case.
        only: labels; the baseline is added.
        timeout_s: the most that one step of an implementation may take.
        load: a student's file.
        budget_s: of the timing, in all.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, said = Path(folder) / "run.json", Path(folder) / "said"
        words = [op, "--timeout", f"{timeout_s:g}"]
        words += [word for case in cases for word in ("--case", case)]
        words += [word for label in only for word in ("--only", label)]
        words += ["--json", str(out)]
        words += ["--load", str(load.resolve())] if load else []
        words += ["--budget", f"{budget_s:g}"] if budget_s else []
        # Each case has several steps, of each row; then the process hangs in a way of its own.
        limit_s = 120 + timeout_s * 4 * (len(cases) + 1) * (len(only) + 1)
        environment = {name: value for name, value in os.environ.items() if kept(name)}
        server.start([op])
        process = server.run_command(device, words, environment, said)
        try:
            if process.wait(limit_s) is None:
                return Run(None, f"the comparison took longer than {limit_s:.0f} s")
        finally:
            code = _end(process)
        if out.is_file():
            try:
                return Run(archive.read(out)[0])
            except UsageError as error:
                return Run(None, str(error))
        lines = said.read_text(errors="replace").splitlines() if said.is_file() else []
        lines = [line.removeprefix("python -m compare: ") for line in lines if line.strip()]
        told = lines[-1] if lines else "the comparison printed nothing"
        refused = code == _USAGE and "--load" in told
        return Run(None, told.removeprefix(f"--load {load and load.resolve()}: "), refused)


def _end(process: server.Forked) -> int | None:
    """The process's exit code.  After a limit or Ctrl-C, its process group is killed first."""
    for sent in (signal.SIGTERM, signal.SIGKILL):  # at the first the judge ends its workers
        if process.wait(0.0) is None:
            try:
                os.killpg(process.pid, sent)
            except ProcessLookupError:  # it has no group yet
                process.kill()
            process.wait(10.0)
    return process.wait(0.0)
