"""A module or program run in isolation: ``python -m compare.sandbox.launch MODULE ORDER WORDS``.

Isolated before anything large is imported, and while the process has one thread.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from compare.registry import ROOT
from compare.sandbox import isolation, scratch
from compare.sandbox.environment import kept_variables
from compare.sandbox.limits import HOST_BYTES, end_with, restrict


class IsolatedProcess:
    """A process that runs a module or a program in isolation, in a process group of its own.

    Args:
        module: ``compare.pipeline.isolated``, or the path of a program, whose child processes may use CUDA.
        words: its arguments.
        variables: environment variables beside those that building needs.
        noise: where what it prints to stderr goes.
        out: where what it prints to stdout goes; None: a pipe.
        mechanisms: of the isolation; None: all that work here.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        variables: Mapping[str, str],
        noise: IO[bytes] | None = None,
        *,
        out: IO[bytes] | None = None,
        mechanisms: isolation.Isolation | None = None,
    ) -> None:
        self.private = scratch.private_folder()
        theirs, self._lifeline = os.pipe()
        used = vars(mechanisms or isolation.found())
        order = {"lifeline": theirs, "private": str(self.private), "isolation": used}
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, module, json.dumps(order), *words],
            stdin=subprocess.PIPE,
            stdout=out or subprocess.PIPE,
            stderr=noise,
            cwd=ROOT,
            env={**kept_variables(), **variables},
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)

    def close(self) -> None:
        """Free what it used, when it has ended."""
        os.close(self._lifeline)
        scratch.remove(self.private)


def main(module: str, order: str, *words: str) -> None:
    """Isolate this process, and run the module or program."""
    told = json.loads(order)
    lifeline = int(told["lifeline"])
    end_with(lifeline)
    restrict(None if isolation.has_gpu() else HOST_BYTES)
    found = isolation.Isolation(**told["isolation"])
    is_program = Path(module).is_absolute()
    isolation.enter(found, Path(told["private"]), lifeline, gpu=False, children=is_program)
    if is_program:
        os.execv(module, [module, *words])
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
