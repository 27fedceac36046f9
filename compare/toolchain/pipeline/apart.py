"""The command in a process of its own, for the user's files (``--load``).

Such a file may end its process or never return; the command then says so in one sentence.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from compare.registry import ROOT
from compare.sandbox.limits import end_with
from compare.sandbox.words import how_it_ended
from compare.spec import UsageError


class Begin(Protocol):
    """Called before each step."""

    def __call__(self, step: str, limited: bool = True) -> None:
        """``compiling triton.online for sm_90``, and whether the time limit holds for it."""


def unwatched(step: str, limited: bool = True) -> None:
    """Without notes and without a limit."""


_STEPS = "COMPARE_PIPELINE_STEPS"
"""Set in that process: the file that gets the name of each step, a pipe that closes with the parent process,
and the time limit of a step."""
_OVER = "ending"


def is_here() -> bool:
    """Whether this is that process."""
    return _STEPS in os.environ


def run(words: Sequence[str], timeout_s: float) -> int:
    """Run the command on ``words`` there; what it prints is printed here.

    Returns:
        Its exit status.

    Raises:
        UsageError: it did not finish; the text names the step and the reason.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    theirs, lifeline = os.pipe()
    with tempfile.TemporaryFile() as steps:
        process = subprocess.Popen(
            [sys.executable, "-m", "compare", "pipeline", *words],
            env=os.environ | {_STEPS: f"{steps.fileno()} {theirs} {timeout_s}", "PYTHONPATH": path},
            pass_fds=[steps.fileno(), theirs],
            start_new_session=True,
        )
        os.close(theirs)
        try:
            status = process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its child processes
            process.wait()
            os.close(lifeline)
        steps.seek(0)
        step = os.fsdecode(steps.read()).rpartition("\n")[2]
    if step == _OVER and status >= 0:
        return status
    if status == -signal.SIGALRM:
        how = f"it took longer than {timeout_s:g} s, the limit (--timeout)"
    else:
        how = how_it_ended(status)
    raise UsageError(f"{step or 'starting'}: {how}. Fix the file given with --load")


@contextmanager
def limited() -> Iterator[Begin]:
    """In that process: notes each step, and ends the process when a step exceeds the limit."""
    if not is_here():
        yield unwatched
        return
    steps, lifeline, timeout_s = os.environ.pop(_STEPS).split()
    for descriptor in (int(steps), int(lifeline)):
        os.set_inheritable(descriptor, False)
    end_with(int(lifeline))

    def begin(step: str, limited: bool = True) -> None:
        os.write(int(steps), os.fsencode(f"\n{step}"))
        # SIGALRM has no handler here, so it ends the process.
        signal.setitimer(signal.ITIMER_REAL, float(timeout_s) if limited else 0.0)

    try:
        yield begin
    finally:
        begin(_OVER)  # a file's atexit functions, limited too
