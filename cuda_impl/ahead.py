"""Builds a pybind11 module in another process, while the one that will load it continues.

``python -m cuda_impl.ahead OP TARGET`` is that process.  It prints one line of JSON: the seconds that the
build took, null if another process has built the module meanwhile, or the error.  It ends, with its
compilers, when its stdin closes, and so with the process that started it, however that ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cuda_impl import build

ROOT = Path(__file__).resolve().parent.parent

_PATIENCE_S = 5.0
_LONGEST_S = build.BUILD_S + 60  # waiting for a lock has its own message


class Building:
    """A build in progress; its owner must call `stop`."""

    def __init__(self, op: str, target: str) -> None:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, op, target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,  # else modules of the current folder come before Python's
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._what = f"{op} for {target}"
        self._answer: dict[str, float | str | None] | None = None
        self._asking = threading.Lock()

    def wait(self) -> float:
        """Wait for the build: the seconds it took, 0 if another process built it.  Thread-safe.

        Also 0 if the process ended without an answer: loading the module then builds it.

        Raises:
            build.BuildError: the build failed.
        """
        with self._asking:
            if self._answer is None:
                assert self._process.stdout is not None
                if not select.select([self._process.stdout], [], [], _LONGEST_S)[0]:
                    self._end()
                    raise build.BuildError(f"{self._what} took longer than {_LONGEST_S} s to build")
                with suppress(ValueError):
                    self._answer = json.loads(self._process.stdout.readline())
                self._answer = self._answer or {}
        if "error" in self._answer:
            raise build.BuildError(self._answer["error"])
        return float(self._answer.get("seconds") or 0.0)

    def stop(self) -> None:
        """Terminate the build if it is still running."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._end()
        self._process.stdout.close()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


@contextmanager
def begun_early(op: str) -> Iterator[None]:
    """Build an op's module for the CPU during the block, unless it is built: PyTorch is imported meanwhile.

    If a compiler is missing, loading the module reports it.
    """
    build_of_op = None
    with suppress(build.BuildError, OSError):
        name = build.on_host(op)
        if not build.pybind_is_built(name, "host"):
            build_of_op = Building(name, "host")
    try:
        yield
    finally:
        if build_of_op:
            build_of_op.stop()


def main(op: str, target: str) -> None:
    """Build, and print the answer."""
    os.setpgrp()  # a process group with its compilers: Ctrl-C reaches only the run, which stops this process
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    answer: dict[str, float | str | None] = {"seconds": None}
    try:
        build.pybind_module(op, target, lambda seconds: answer.update(seconds=seconds))
    except build.BuildError as error:
        answer = {"error": str(error)}
    with suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


def _leave(number: int, frame: object) -> None:
    """Exit at the first signal, and do not let a further one interrupt the cleaning up."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # ignored, it would be for compilers too
    sys.exit(1)


def _end_with_stdin() -> None:
    """Wait until stdin closes, then end this process and its compilers, also those just started."""
    os.read(sys.stdin.fileno(), 1)
    while True:
        os.killpg(0, signal.SIGTERM)
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
