"""What runs on a cluster's nodes, in a Dask worker: it says what it is, compares an op, marks a hand-in.

That is ``python -m compare`` in a process of its own, so a worker holds no GPU memory, and whatever
ends that process leaves the worker as it was.
"""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distributed import get_worker

from compare.command_line import installed
from compare.device import driver_version
from compare.places import IS_CHECKOUT, ROOT
from compare.records import archive, result_cache
from compare.sandbox.kernel import end_with_parent
from compare.sandbox.words import how_it_ended

Facts = dict[str, str]
"""Of a worker: its ``host``, its GPU's UUID (``gpu``, empty without one) and name (``device``), ``driver``,
``versions`` of what compiles, ``sources`` of this project, and what is wrong with it (``problem``)."""

NO_GPU = "no GPU"
RESOURCE = {"GPU": 1}
"""Of each worker, and of each task: a worker's one GPU is its task's alone."""
_DESCRIBE_S = 120.0
_SHOWN = 1000
"""Characters of an error, from its end."""


class WorkFailed(Exception):
    """A task did not deliver its answer: why, the worker's address, and whether its GPU was lost."""

    def __init__(self, why: str, worker: str, gpu_lost: bool = False) -> None:
        super().__init__(why, worker, gpu_lost)
        self.why, self.worker, self.gpu_lost = why, worker, gpu_lost


def here() -> Facts:
    """The `Facts` of this process, as CUDA_VISIBLE_DEVICES has it see the GPUs."""
    gpus = installed.gpus()
    gpu = gpus[0] if len(gpus) == 1 else None
    many = f"it sees {len(gpus)} GPUs: start one worker a GPU, each with its own CUDA_VISIBLE_DEVICES"
    return {
        "host": socket.gethostname(),
        "gpu": gpu.uuid if gpu else "",
        "device": gpu.name if gpu else NO_GPU,
        "driver": driver_version() or "",
        "versions": f"Python {platform.python_version()}, {_packages()}",
        "sources": result_cache.of_sources()[:12],
        "problem": many if len(gpus) > 1 else "",
    }


def _packages() -> str:
    return ", ".join(result_cache.versions("torch", "triton", "cupy-cuda13x").splitlines()[1:])


def describe(dask_worker: Any = None) -> Facts:
    """`here`, of a new process: CUDA in this one would not notice that a GPU is lost.

    Args:
        dask_worker: the worker, which Dask passes; without one its resources are known.
    """
    if dask_worker and dask_worker.state.total_resources != RESOURCE:
        return {"host": socket.gethostname(), "problem": "start it with --nthreads 1 --resources GPU=1"}
    code = "import json; from compare.cluster.workers import here; print(json.dumps(here()))"
    try:
        done = _python("-c", code, timeout=_DESCRIBE_S)
    except (OSError, subprocess.SubprocessError) as error:
        return {"host": socket.gethostname(), "problem": f"it cannot say what it has: {error}"}
    if done.returncode:
        problem = _end_of(done.stderr) or how_it_ended(done.returncode)
        return {"host": socket.gethostname(), "problem": problem}
    facts: Facts = json.loads(done.stdout)
    return facts


def attempt(work: Callable[[], Any]) -> Any:
    """``work()``; whatever it raises becomes a `WorkFailed` with this worker's address."""
    try:
        return work()
    except Exception as error:
        if isinstance(error, WorkFailed):
            raise
        raise WorkFailed(f"{type(error).__name__}: {error}", get_worker().address) from None


def compare_op(words: Sequence[str], op: str) -> str:
    """The text of ``--json`` of one comparison; ``words`` are those of the command line beside the op.

    Raises:
        WorkFailed: it was not finished, or the GPU was lost.
    """

    def ended(text: str) -> tuple[bool, bool]:
        (run,) = archive.loads(text)
        return not run.interrupted, any(row.status == "failed" for case in run.cases for row in case.rows)

    return answer([op, *words], ended)


def answer(words: Sequence[str], ended: Callable[[str], tuple[bool, bool]]) -> str:
    """The text of ``--json`` of a command.

    Args:
        words: of its command line.
        ended: whether a text is of finished work, and whether a lost GPU may have spoiled that.

    Raises:
        WorkFailed: it was not finished, or the GPU was lost.
    """
    gpu = describe().get("gpu")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.json")
        results = ["--results", folder] if "--record" in words else []
        done = _python("-m", "compare", *words, *results, "--json", str(file))
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    whole, spoiled = ended(text) if text else (False, True)
    if gpu and (spoiled or not whole) and describe().get("gpu") != gpu:
        raise WorkFailed(f"its GPU, {gpu}, no longer answers", get_worker().address, gpu_lost=True)
    if not whole:
        message = _end_of(done.stderr) if done.returncode >= 0 else ""  # of a killed process: its progress
        raise WorkFailed(message or how_it_ended(done.returncode), get_worker().address)
    return text


def _python(*words: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run this Python; it is killed where this worker is."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT if IS_CHECKOUT else None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        preexec_fn=end_with_parent,
    )


def _end_of(stderr: str) -> str:
    lines = [line for line in stderr.strip().splitlines() if line]
    return "\n".join(lines)[-_SHOWN:].rpartition("python -m compare: ")[2]
