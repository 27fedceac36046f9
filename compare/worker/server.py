"""The server that workers are forked from: it has imported everything and never used a GPU.

`multiprocessing` starts it as a fresh Python, which takes two seconds to import PyTorch.  The command forks
it from itself instead, right after its own import of PyTorch.
"""

from __future__ import annotations

import atexit
import importlib.util
import multiprocessing.forkserver
import multiprocessing.process
import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import Any

from compare import registry
from compare.sandbox import isolation
from compare.sandbox.limits import close_all_but

_MODULES = ("torch", "numpy", "triton", "cuda_impl.early", "compare.worker.main")
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")

_spawn = util.spawnv_passfds

_mode: list[str] = []
"""TRITON_INTERPRET when the server was started: the same in all workers."""


def likely_cpu(device: str) -> bool:
    """Whether ``--device`` will mean a CPU, without initialising CUDA; False where that is not known."""
    if device == "auto":
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        return hidden or not any(Path(file).exists() for file in _GPU_FILES)
    return device == "cpu"


def start(ops: Sequence[str] = (), *, from_here: bool = False, commands: bool = False) -> None:
    """Start the server unless it is running.

    Args:
        ops: it imports their modules, if it is not running yet.
        from_here: fork it from this process, which has imported PyTorch and not used it.
        commands: it imports what `run_command` needs, as well.
    """
    interpreted = os.environ.get("TRITON_INTERPRET", "")
    server = multiprocessing.forkserver
    from_here = from_here and not _mode  # later this process may have initialised CUDA
    if _mode and _mode[0] != interpreted:
        server._forkserver._stop()  # type: ignore[attr-defined]
        _mode.clear()
    if not _mode:
        more = registry.modules() if commands else []
        server.set_forkserver_preload([*_MODULES, *more, *(m for op in ops for m in modules_of(op))])
        _mode.append(interpreted)
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" not in config:  # of the server's socket: of multiprocessing's own a killed run leaves it
        config["tempdir"] = str(folder := isolation.private_folder(of_socket=True))
        atexit.register(_remove, os.getpid(), folder)
    with _forking() if from_here else nullcontext():
        server.ensure_running()


def _remove(of_process: int, folder: Path) -> None:
    if os.getpid() == of_process:
        isolation.remove(folder)


@contextmanager
def _forking() -> Iterator[None]:
    """Let `multiprocessing` start the server as a fork of this process."""
    here = Path.cwd()
    os.chdir(registry.ROOT)  # a new Python imports its own modules from the current folder first
    try:
        resource_tracker.ensure_running()  # as a process of its own, not a fork
    finally:
        os.chdir(here)
    util.spawnv_passfds = _fork  # type: ignore[assignment]
    try:
        yield
    finally:
        util.spawnv_passfds = _spawn


def _fork(_: object, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """In place of ``spawnv_passfds``: run the new process's code in a fork."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the fork prints it too
    pid = os.fork()
    if pid:
        return pid
    util.spawnv_passfds = _spawn  # a worker's own child processes, as torch.compile's, are not forks
    try:
        close_all_but(0, 1, 2, *descriptors)
        exec(arguments[-1], {})
    finally:
        os._exit(0)


def run_command(device: str, words: Sequence[str], environment: Mapping[str, str], said: Path) -> None:
    """In a process forked from the server: run ``python -m compare`` without importing PyTorch again.

    Args:
        device: as on the command line.
        words: the rest of the command.
        environment: its variables.
        said: its stderr is written there; its stdout is not kept.
    """
    words = [*words, "--device", device]
    decorated = os.environ.get("TRITON_INTERPRET", "")
    os.setsid()
    os.chdir(registry.ROOT)
    os.environ.clear()
    os.environ.update(environment)
    for path, descriptor in ((os.devnull, 1), (said, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    if decorated != ("1" if likely_cpu(device) else environment.get("TRITON_INTERPRET", "")):
        # The server's Triton is not the one that this device needs.
        os.execv(sys.executable, [sys.executable, "-m", "compare", *words])
    ours: Any = multiprocessing.forkserver._forkserver
    ours.__init__()  # as in a new process: it starts a server of its own
    _mode.clear()
    sys.argv = [sys.argv[0], *words]
    runpy.run_module("compare", run_name="__main__", alter_sys=True)


def modules_of(op: str) -> list[str]:
    """Names of the modules with implementations of an op."""
    names = [f"{package}.{op}" for package in registry.IMPLEMENTATION_PACKAGES]
    return [name for name in names if importlib.util.find_spec(name) is not None]
