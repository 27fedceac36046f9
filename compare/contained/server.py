"""The server that workers are forked from: it has imported everything, and has never touched a GPU.

Nothing heavy is imported here, so that the server can be at its imports while this process is at its own.
"""

from __future__ import annotations

import importlib.util
import multiprocessing.forkserver
import os
from collections.abc import Sequence
from pathlib import Path

from compare import registry

_MODULES = ("torch", "numpy", "triton", "cupy", "compare.contained.inside", "compare.measure")
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")

_mode: list[str] = []
"""What TRITON_INTERPRET was when the server was started: it decides what Triton is in all workers."""


def likely_cpu(device: str) -> bool:
    """Whether ``--device`` will mean a CPU, found out without asking CUDA; False where one cannot tell."""
    if device == "auto":
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        return hidden or not any(Path(file).exists() for file in _GPU_FILES)
    return device == "cpu"


def start(ops: Sequence[str] = ()) -> None:
    """Have the server running, with the modules of these ops if it is not running yet."""
    interpreted = os.environ.get("TRITON_INTERPRET", "")
    server = multiprocessing.forkserver
    if _mode and _mode[0] != interpreted:
        server._forkserver._stop()  # type: ignore[attr-defined]
        _mode.clear()
    if not _mode:
        server.set_forkserver_preload([*_MODULES, *(m for op in ops for m in modules_of(op))])
        _mode.append(interpreted)
    server.ensure_running()


def modules_of(op: str) -> list[str]:
    """Modules with implementations of an op."""
    names = [f"{package}.{op}" for package in registry.IMPLEMENTATION_PACKAGES]
    return [name for name in names if importlib.util.find_spec(name) is not None]
