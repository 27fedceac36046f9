"""The server that workers are forked from: it has imported everything, and has never touched a GPU.

`multiprocessing` starts it as a fresh Python, which imports PyTorch for two seconds.  The command forks it
from itself instead, right after its own import and before it does anything else: that is an import saved.
"""

from __future__ import annotations

import importlib.util
import multiprocessing.forkserver
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker, util
from pathlib import Path

from compare import registry

_MODULES = ("torch", "numpy", "triton", "cuda_impl.early", "compare.worker.main")
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")

_spawn = util.spawnv_passfds

_mode: list[str] = []
"""What TRITON_INTERPRET was when the server was started: it decides what Triton is in all workers."""


def likely_cpu(device: str) -> bool:
    """Whether ``--device`` will mean a CPU, found out without asking CUDA; False where one cannot tell."""
    if device == "auto":
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        return hidden or not any(Path(file).exists() for file in _GPU_FILES)
    return device == "cpu"


def start(ops: Sequence[str] = (), *, from_here: bool = False) -> None:
    """Have the server running.

    Args:
        ops: whose modules it imports, if it is not running yet.
        from_here: it may be forked from this process, which has imported PyTorch and done nothing with it.
    """
    interpreted = os.environ.get("TRITON_INTERPRET", "")
    server = multiprocessing.forkserver
    from_here = from_here and not _mode  # afterwards this process may have asked CUDA something
    if _mode and _mode[0] != interpreted:
        server._forkserver._stop()  # type: ignore[attr-defined]
        _mode.clear()
    if not _mode:
        server.set_forkserver_preload([*_MODULES, *(m for op in ops for m in modules_of(op))])
        _mode.append(interpreted)
    with _forking() if from_here else nullcontext():
        server.ensure_running()


@contextmanager
def _forking() -> Iterator[None]:
    """`multiprocessing` starts the server as a copy of this process meanwhile."""
    resource_tracker.ensure_running()  # which is no copy
    util.spawnv_passfds = _fork  # type: ignore[assignment]
    try:
        yield
    finally:
        util.spawnv_passfds = _spawn


def _fork(_: object, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """In place of ``spawnv_passfds``: run the code that a fresh Python was to run, in a fork."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or whoever is forked next prints it as well
    pid = os.fork()
    if pid:
        return pid
    util.spawnv_passfds = _spawn  # what workers start, as torch.compile does, is to be no copy of them
    try:
        for descriptor in map(int, (path.name for path in Path("/proc/self/fd").iterdir())):
            if descriptor > 2 and descriptor not in descriptors:
                with suppress(OSError):  # the one that this list was read by
                    os.close(descriptor)
        exec(arguments[-1], {})
    finally:
        os._exit(0)


def modules_of(op: str) -> list[str]:
    """Modules with implementations of an op."""
    names = [f"{package}.{op}" for package in registry.IMPLEMENTATION_PACKAGES]
    return [name for name in names if importlib.util.find_spec(name) is not None]
