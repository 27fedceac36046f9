"""Users' files (``--load``) opened up in an isolated process, which writes what it found to its stdout.

Such a file may end its process, never return, or print whatever it likes.  The process writes a line before
each step, ends itself if a step takes too long, and writes an `OpenAnswer` as JSON on the last line.  The
judge process shows only what has that form.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from compare.model.op import UsageError
from compare.pipeline.records import OpenedOp, OpenRequest
from compare.sandbox.isolation import protect_judge
from compare.sandbox.launch import IsolatedProcess
from compare.sandbox.words import how_it_ended, printable

_MOST_BYTES = 256 << 20
_COMPILERS_SHARE = 10
"""Time limit of a step in which several compilers run, as a multiple of ``--timeout``."""
_STARTING_S = 120.0


@dataclass(frozen=True)
class OpenAnswer:
    """What the compilers made, or why the command is refused."""

    result: OpenedOp | None = None
    refused: str = ""


# --------------------------------------------------------------------------- the judge process


@contextmanager
def started(request: OpenRequest, timeout_s: float) -> Iterator[Callable[[], OpenedOp]]:
    """Start the process at once; what is yielded waits for its result.

    Args:
        request: what to open up.
        timeout_s: the limit of a step that runs the user's code.

    Raises:
        UsageError: it did not finish, and the text names the step and the reason; or what it raised.
    """
    protect_judge()
    with tempfile.TemporaryFile() as noise:
        words = [msgspec.json.encode(request).decode(), str(timeout_s)]
        launched = IsolatedProcess(__name__, words, {}, noise)
        try:
            with launched.process as process:
                try:
                    yield lambda: _result(process, timeout_s)
                finally:
                    _kill(process)
        finally:
            launched.close()


def _result(process: subprocess.Popen[bytes], timeout_s: float) -> OpenedOp:
    assert process.stdout is not None
    # The process ends itself; this is for one that keeps itself from doing so.
    late = threading.Timer(_STARTING_S + 2 * _COMPILERS_SHARE * timeout_s, _kill, [process])
    late.start()
    *steps, last = process.stdout.read(_MOST_BYTES).split(b"\n")
    ended_by_us = not late.is_alive()
    late.cancel()
    with suppress(subprocess.TimeoutExpired):
        process.wait(2.0)
    limit, _, step = (printable(steps[-1][:300].decode(errors="replace")) if steps else "").partition(" ")
    if process.returncode == 0 and last:
        answer = OpenAnswer()
        with suppress(RecursionError, ValueError):
            answer = msgspec.json.decode(last, type=OpenAnswer)
        if answer.refused:
            raise UsageError(" ".join(printable(answer.refused).split())[:2000])
        if answer.result and answer.result.opened:
            return answer.result
        how = "it wrote into the pipe to this process"
    elif ended_by_us or process.returncode == -signal.SIGALRM:
        how = f"it took longer than {limit} s, the limit (--timeout)"
    elif process.returncode is None:
        how = "it closed the pipe to this process"
    else:
        how = how_it_ended(process.returncode)
    raise UsageError(f"{step or 'starting'}: {how}. Fix the file given with --load")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --------------------------------------------------------------------------- the isolated process


def main(request: str, timeout_s: str) -> None:
    """Write each step and the answer to stdout, a line each; what a file prints goes to stderr."""
    from compare.pipeline.opening import open_op  # takes seconds, and the judge imports this module first

    stdout = os.dup(1)
    os.dup2(2, 1)

    def begin(step: str, many: bool) -> None:
        limit_s = float(timeout_s) * (_COMPILERS_SHARE if many else 1)
        os.write(stdout, f"{limit_s:g} {step}\n".encode())
        signal.setitimer(signal.ITIMER_REAL, limit_s)

    try:
        answer = OpenAnswer(open_op(msgspec.json.decode(request, type=OpenRequest), begin))
    except UsageError as error:
        answer = OpenAnswer(refused=str(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
    with os.fdopen(stdout, "wb") as file:
        file.write(msgspec.json.encode(answer))
    os._exit(0)  # at once: PyTorch and Triton may take longer to end than the judge process waits


if __name__ == "__main__":
    main(*sys.argv[1:])
