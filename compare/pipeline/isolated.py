"""Users' files (``--load``) opened up in an isolated process, which writes what it found to its stdout.

Such a file may end its process, never return, or print whatever it likes.  The process writes a line before
each step, ends itself if a step takes too long, and writes the result as JSON on the last line.  The judge
process shows only what has the form of `OpenedOp`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from compare.model.op import UsageError
from compare.pipeline.records import CompilerStage, Opened, OpenedOp, OpenRequest
from compare.records.encoding import decode, encode
from compare.sandbox.isolation import protect_judge
from compare.sandbox.launch import IsolatedProcess
from compare.sandbox.words import how_it_ended, printable, read_json

_MOST_BYTES = 256 << 20
_COMPILERS_SHARE = 10
"""Time limit of a step in which several compilers run, as a multiple of ``--timeout``."""
_STARTING_S = 120.0


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
        launched = IsolatedProcess(__name__, [json.dumps(encode(request)), str(timeout_s)], {}, noise)
        try:
            yield lambda: _result(launched.process, timeout_s)
        finally:
            _close(launched)


def _result(process: subprocess.Popen[bytes], timeout_s: float) -> OpenedOp:
    stdout = process.stdout
    assert stdout is not None
    # The process ends itself; this is for one that keeps itself from doing so.
    late = threading.Timer(_STARTING_S + 2 * _COMPILERS_SHARE * timeout_s, _kill, [process])
    late.start()
    *steps, last = stdout.read(_MOST_BYTES).split(b"\n")
    ended_by_us = not late.is_alive()
    late.cancel()
    with suppress(subprocess.TimeoutExpired):
        process.wait(2.0)
    limit, _, step = (printable(steps[-1][:300].decode(errors="replace")) if steps else "").partition(" ")
    if process.returncode == 0 and last:
        try:
            result = read_json(last, values=1 << 22, text=_MOST_BYTES)
            if "refused" in result:
                raise UsageError(" ".join(str(result["refused"]).split())[:2000])
            return _shown(decode(OpenedOp, result["opened"]))
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            how = f"it wrote into the pipe to this process ({str(error)[:300]})"
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


def _close(launched: IsolatedProcess) -> None:
    _kill(launched.process)
    for stream in (launched.process.stdin, launched.process.stdout):
        if stream is not None:
            stream.close()
    launched.close()


def _shown(result: OpenedOp) -> OpenedOp:
    """Without control characters in its texts."""

    def stage(one: CompilerStage) -> CompilerStage:
        return one if one.binary else replace(one, content=printable(one.text).encode())

    def opened(one: Opened) -> Opened:
        return replace(one, stages=tuple(map(stage, one.stages)))

    return replace(result, opened=tuple(map(opened, result.opened)))


# --------------------------------------------------------------------------- the isolated process


def main(request: str, timeout_s: str) -> None:
    """Write each step and the result to stdout, a line each; what a file prints goes to stderr."""
    from compare.pipeline.opening import open_op  # takes seconds, and the judge imports this module first

    stdout = os.dup(1)
    os.dup2(2, 1)

    def begin(step: str, many: bool) -> None:
        limit_s = float(timeout_s) * (_COMPILERS_SHARE if many else 1)
        os.write(stdout, f"{limit_s:g} {step}\n".encode())
        signal.setitimer(signal.ITIMER_REAL, limit_s)

    try:
        result = {"opened": encode(open_op(decode(OpenRequest, json.loads(request)), begin))}
    except UsageError as error:
        result = {"refused": str(error)}
    signal.setitimer(signal.ITIMER_REAL, 0)
    with os.fdopen(stdout, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
