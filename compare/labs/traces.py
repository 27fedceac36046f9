"""What a student's kernel accesses first, on a CPU: asked of a worker by a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import torch

from compare import registry
from compare.labs.lab import Lab, Task, op_of
from compare.labs.running import HandedIn
from compare.model.op import UsageError
from compare.sandbox import isolation
from compare.sandbox.environment import kept_variables
from compare.worker import user_files
from compare.worker.messages import Trace, TracedAccess
from compare.worker.pool import WorkerPool
from compare.worker.start import prepare

_STARTING_S = 60.0


def case_of(task: Task) -> str:
    """The first of the second group, which tests masks; of the only one, the first."""
    return task.group[:2][-1].cases[0]


def of_task(lab: Lab, task: Task, file: HandedIn, timeout_s: float) -> tuple[TracedAccess, ...]:
    """The accesses; none where the file does not get as far."""
    return of_file(op_of(lab, task).name, case_of(task), task.label, file.file, timeout_s, file.hidden)


def of_file(
    op: str, case: str, label: str, file: Path, timeout_s: float, others: str = ""
) -> tuple[TracedAccess, ...]:
    """The accesses of a user's row; none where the file does not get as far.

    Args:
        others: the class's folder of a hand-in, whose other files and the project's kernels it does not see.
    """
    words = [op, case, label, str(file.resolve()), others, f"{timeout_s:g}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, *words],
            cwd=registry.ROOT,
            env=kept_variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * timeout_s + _STARTING_S,
            check=True,
        )
        return msgspec.json.decode(done.stdout.rpartition(b"\n")[2], type=tuple[TracedAccess, ...])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
        return ()


def main(op: str, case: str, label: str, file: str, others: str, timeout_s: str) -> int:
    """Print the accesses as JSON; the exit status."""
    prepare("cpu", [op])
    registry.implementations(op)
    isolation.protect_judge()
    try:
        user_files.load([file], op, others=Path(others) if others else None)
        impl = next(impl for impl in registry.implementations(op, [label]) if impl.user_file)
        with WorkerPool(registry.get_op(op), torch.device("cpu"), float(timeout_s)) as pool:
            accesses = pool.of(impl).ask(Trace(case))
    except (Exception, StopIteration) as error:
        print(error if isinstance(error, UsageError) else f"not traced: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(accesses))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
