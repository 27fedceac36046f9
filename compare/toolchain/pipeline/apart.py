"""The command in a process of its own, where it runs files of the user's (``--load``).

Such a file may end the process that runs it, or keep it for ever; whoever asked is told so, in words.
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
    """Told what is done from now on."""

    def __call__(self, step: str, limited: bool = True) -> None:
        """``compiling triton.online for sm_90``, and whether it may take only so long."""


def unwatched(step: str, limited: bool = True) -> None:
    """Where there is nothing to note, and no limit."""


_STEPS = "COMPARE_PIPELINE_STEPS"
"""Set in that process: the file in which it notes what it is about to do, a pipe that closes when whoever
asked is gone, and the limit of a step."""
_OVER = "ending"


def is_here() -> bool:
    """Whether this is that process."""
    return _STEPS in os.environ


def run(words: Sequence[str], timeout_s: float) -> int:
    """Run the command on ``words`` there; what it prints is printed here.

    Returns:
        Its exit status.

    Raises:
        UsageError: it did not come to its end; the text says in which step, and why.
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
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
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
    raise UsageError(f"{step or 'starting'}: {how}. Mend the file given with --load")


@contextmanager
def limited() -> Iterator[Begin]:
    """In that process, each step that is begun is noted, and ends the process where it takes too long."""
    if not is_here():
        yield unwatched
        return
    steps, lifeline, timeout_s = os.environ.pop(_STEPS).split()
    for descriptor in (int(steps), int(lifeline)):
        os.set_inheritable(descriptor, False)
    end_with(int(lifeline))

    def begin(step: str, limited: bool = True) -> None:
        os.write(int(steps), os.fsencode(f"\n{step}"))
        # Its signal ends the process whatever it is busy with, as nobody has asked for anything else.
        signal.setitimer(signal.ITIMER_REAL, float(timeout_s) if limited else 0.0)

    try:
        yield begin
    finally:
        begin(_OVER)  # what a file has left for the end is its own affair, and limited
