"""Where compilers keep what they made: the usual folders or, where those cannot be written to because HOME is
read-only or does not exist, some in the temporary folder."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_USUAL = {
    "COMPARE_CACHE_DIR": "~/.cache/gpu-three-ways",
    "CUPY_CACHE_DIR": "~/.cupy/kernel_cache",
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "CUDA_CACHE_PATH": "~/.nv/ComputeCache",
}
"""By the environment variable that sets another."""


def folder(variable: str) -> Path:
    """The folder that an environment variable sets, else the usual or the temporary one; it may not exist."""
    if given := os.environ.get(variable):
        return Path(given)
    usual = _usual(variable)
    own = None if _can_write(usual) else _own()
    return own / variable.partition("_")[0].lower() if own else usual


def begin() -> None:
    """Have the libraries of this process, and of those that it starts, use the same folders."""
    for variable in _USUAL:
        if (path := folder(variable)) != _usual(variable):
            os.environ[variable] = str(path)


def _usual(variable: str) -> Path:
    path = _USUAL[variable]
    if variable == "TRITON_CACHE_DIR":
        path = path.replace("~", os.environ.get("TRITON_HOME") or "~")
    return Path("/", os.path.expanduser(path))  # noqa: PTH111 - that of pathlib raises where there is no home


@functools.cache
def _can_write(path: Path) -> bool:
    """Whether a folder can be made there, and files in it; tried, as modes do not tell."""
    try:
        nearest = next(each for each in (path, *path.parents) if each.exists())
        with tempfile.TemporaryFile(dir=nearest):
            return True
    except OSError:
        return False


def _own() -> Path | None:
    """This user's folder in the temporary one, where others may write; None: it is not this user's alone."""
    with suppress(OSError):
        shared = os.environ.get("COMPARE_TMPDIR") or tempfile.gettempdir()  # of all runs, and not this one's
        path = Path(shared, f"gpu-three-ways-{os.geteuid()}")
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if private and status.st_uid == os.geteuid():
            return path
    return None
