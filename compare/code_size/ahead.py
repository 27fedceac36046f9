"""The process that counts ahead: ``python -m compare.code_size.ahead OP LABEL...``.

It puts the code sizes of implementations into the cache, and ends when its standard input closes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from compare import registry
from compare.code_size.count import kept_code_size, known_code_size
from compare.sandbox.limits import end_with
from compare.spec import Implementation

_FEW = 4
"""As many are counted in the time in which a process imports PyTorch."""
_LESS_URGENT = 10
"""Added to the nice value."""


class CountingAhead:
    """Counts what the cache does not hold in another process, which ends with this one.

    Counting compiles every CUDA kernel, which takes ten seconds for an op with many.
    """

    def __init__(self, impls: Sequence[Implementation]) -> None:
        found = {impl.label: known_code_size(impl) for impl in impls}
        self.known = {label: size for label, size in found.items() if size is not None}
        """By label, what the cache held at the beginning."""
        new = [label for label in found if label not in self.known]
        self._process: subprocess.Popen[bytes] | None = None
        if len(new) > _FEW:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, impls[0].op, *new],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=registry.ROOT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it has counted; what it could not, it leaves out."""
        if self._process is not None:
            self._process.wait()
            self.stop()

    def stop(self) -> None:
        """End it, done or not."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def main(op: str, labels: Sequence[str]) -> None:
    """Count these implementations of an op."""
    end_with(sys.stdin.fileno())
    os.nice(_LESS_URGENT)
    for impl in registry.implementations(op, labels):
        with suppress(Exception):  # whoever counts it again reports it
            kept_code_size(impl)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
