"""The one temporary folder of a run, which the processes that it starts use too.

It is removed when the run ends.  The kernel frees its lock however the run ends, so the next run knows which
folders were left by runs that were killed, and removes them.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import getpass
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = "three-ways-"
_ATTEMPTS, _PAUSE_S = 10, 0.02


def begin() -> None:
    """Have this process, a command, and all that it starts put temporary files into the run's folder."""
    with suppress(OSError):  # no folder can be written to: what needs one says so
        os.environ.update(variables())
        tempfile.tempdir = None


def variables() -> dict[str, str]:
    """Environment variables that send temporary files into the run's folder, and keep what runs share out."""
    shared = os.environ.get("COMPARE_TMPDIR") or str(folder().parent)
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or inductor_cache(shared)
    return {"TMPDIR": str(folder()), "COMPARE_TMPDIR": shared, "TORCHINDUCTOR_CACHE_DIR": inductor}


def inductor_cache(shared: str) -> str:
    """Where torch.compile keeps what it has compiled, if nothing else is said: in the temporary folder."""
    try:
        user = re.sub(r"[^\w.-]", "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{shared}/torchinductor_{user}"


@functools.cache
def folder() -> Path:
    """The run's folder; removed when this process ends.

    Raises:
        OSError: no temporary folder can be written to.
    """
    shared = Path(tempfile.gettempdir()).absolute()
    _remove_abandoned(shared)
    while True:
        new = Path(tempfile.mkdtemp(prefix=_NAME, dir=shared))
        lock = _locked(new)
        if lock is not None and new.exists():  # else another run took it for abandoned
            atexit.register(_end, new, os.getpid())
            return new


def private_folder() -> Path:
    """A new folder for an isolated process (`isolation.enter`), in that of the run."""
    return Path(tempfile.mkdtemp(prefix="private-", dir=folder()))


def _end(new: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a process that was forked from it
        remove(new)


def _remove_abandoned(shared: Path) -> None:
    """Remove the folders of runs that were killed: nothing holds their locks."""
    for old in shared.glob(f"{_NAME}*"):
        with suppress(OSError):
            lock = _locked(old)
            if lock is not None:
                remove(old)
                os.close(lock)


def _locked(path: Path) -> int | None:
    """A descriptor that holds a folder's lock until it is closed; None: another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


# --------------------------------------------------------------------------- removing


def remove(folder: Path) -> None:
    """Remove a folder, whatever modes its folders have and however deep they are; never raises."""
    with suppress(OSError):
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return  # anyone may give a name in the temporary folder to what is not theirs
        for _ in range(_ATTEMPTS):  # a process that was killed just now may still make a last file
            with _opened(str(folder)) as descriptor:
                _empty(descriptor)
            with suppress(OSError):
                folder.rmdir()
                return
            time.sleep(_PAUSE_S)


@contextmanager
def _opened(name: str, parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder, which everything in it may be done with from now on."""
    path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{path}", 0o700)  # noqa: PTH101 - of the folder that was opened
        descriptor = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=path)
    finally:
        os.close(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _empty(top: int) -> None:
    """Remove all that is in a folder.

    Folders within its folders are moved up into it first: in a deep tree a path is too long for the kernel,
    and a call or a descriptor for each level is too many.
    """
    while names := os.listdir(top):
        if not sum(_removed(name, top) for name in names):
            return


def _removed(name: str, top: int) -> bool:
    """Whether an entry of a folder could be removed."""
    with suppress(OSError):
        try:
            os.unlink(name, dir_fd=top)
        except IsADirectoryError:
            with _opened(name, top) as descriptor:
                _move_up(descriptor, top)
            os.rmdir(name, dir_fd=top)
        return True
    return False


def _move_up(folder: int, top: int) -> None:
    """Remove the files of a folder, and move its folders to the top."""
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            with _opened(name, folder):  # else it may not be moved
                os.rename(name, secrets.token_hex(), src_dir_fd=folder, dst_dir_fd=top)
