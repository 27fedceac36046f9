"""A comparison in a process of its own: one student's file cannot disturb another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from compare import registry
from compare.records import archive
from compare.spec import Comparison, Row, UsageError

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
        out = Path(folder) / "run.json"
        command = [sys.executable, "-m", "compare", op, "--device", device, "--timeout", f"{timeout_s:g}"]
        command += [word for case in cases for word in ("--case", case)]
        command += [word for label in only for word in ("--only", label)]
        command += ["--json", str(out)]
        command += ["--load", str(load.resolve())] if load else []
        command += ["--budget", f"{budget_s:g}"] if budget_s else []
        # Each case has several steps, of each row; then the process hangs in a way of its own.
        limit_s = 120 + timeout_s * 4 * (len(cases) + 1) * (len(only) + 1)
        process = subprocess.Popen(
            command,
            cwd=registry.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            _, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Run(None, f"the comparison took longer than {limit_s:.0f} s")
        finally:
            _end(process)
        if out.is_file():
            try:
                return Run(archive.read(out)[0])
            except UsageError as error:
                return Run(None, str(error))
        lines = [line.removeprefix("python -m compare: ") for line in said.splitlines() if line.strip()]
        told = lines[-1] if lines else "the comparison printed nothing"
        return Run(None, told, process.returncode == _USAGE and "--load" in told)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the process group, if the process is still there: after a limit, or Ctrl-C."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)  # the judge ends its workers
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
