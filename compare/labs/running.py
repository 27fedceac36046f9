"""A comparison in a process of its own: one student's file cannot disturb another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from compare.device import pick
from compare.labs.lab import SOLUTIONS
from compare.model.op import UsageError
from compare.model.result import Comparison, Row
from compare.records import archive
from compare.registry import ROOT
from compare.sandbox.environment import kept

_ARCH = "sm_90a"
"""Without a GPU kernels are compiled for this architecture, and figures are of it."""
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


@dataclass(frozen=True)
class HandedIn:
    """A student's file."""

    file: Path
    others: Path | None = None
    """The class's folder, of which it sees its own folder only."""

    @property
    def own_code(self) -> list[str]:
        """The option that keeps the project's kernels from it; none for the project's solutions."""
        file = self.file.resolve()
        return [] if file.is_relative_to(SOLUTIONS) else ["--own-code", str(self.others or file.parent)]


def run(
    op: str,
    cases: Sequence[str],
    only: Sequence[str],
    device: str,
    timeout_s: float,
    load: HandedIn | None = None,
    budget_s: float | None = None,
) -> Run:
    """Compare implementations of ``op``.

    Args:
        op: its name.
        cases: none: the op's default case.
        only: labels; the baseline is added.
        device: as on the command line.
        timeout_s: the most that one step of an implementation may take.
        load: a student's file.
        budget_s: of the timing, in all.
    """
    # Each case has several steps, of each row; then the process hangs in a way of its own.
    limit_s = 120 + timeout_s * 4 * (len(cases) + 1) * (len(only) + 1)
    loaded = str(load.file.resolve()) if load else ""
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
        words += ["--load", loaded, *load.own_code] if load else []
        if pick(device).type == "cpu":
            words += ["--arch", _ARCH]
        words += ["--budget", f"{budget_s:g}"] if budget_s else []
        status = _command(words, stderr, limit_s)
        if status is None:
            return Run(None, f"the comparison took longer than {limit_s:.0f} s")
        if out.is_file():
            try:
                return Run(archive.read(out)[0])
            except UsageError as error:
                return Run(None, str(error))
        last = stderr.read_text(errors="replace").strip().rpartition("\n")[2]
    why = last.removeprefix("python -m compare: ") or "the comparison printed nothing"
    return Run(None, why.removeprefix(f"--load {loaded}: "), status == _USAGE and "--load" in why)


def _command(words: Sequence[str], stderr: Path, limit_s: float) -> int | None:
    """The exit status of ``python -m compare``; None: it took too long.  No process of it is left."""
    with stderr.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "compare", *words],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if kept(name)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=written,
            start_new_session=True,
        )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):  # at the first the judge ends its workers
            if process.poll() is None:
                os.killpg(process.pid, sent)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
