"""An advisory lock on a GPU: of the commands that time something on it, one works at a time."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from compare.records.reading import read_text

_SHARED = "/tmp"
"""Not `TMPDIR`, which differs by user and by job: the GPU does not."""


def path_of(uuid: str) -> Path:
    """The lock's file, which all users of this machine share; its text names the last holder."""
    return Path(os.environ.get("COMPARE_LOCKS", _SHARED)) / f"compare-{uuid}.lock"


@contextmanager
def held(uuid: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of the GPU with this UUID; the kernel frees it however this process ends.

    Args:
        uuid: as NVML has it, ``GPU-...``; None: there is no GPU, so nothing is held.
        say: is told whose end is waited for, or why there is no lock.
    """
    if uuid is None:
        yield
        return
    lock = FileLock(path_of(uuid), mode=0o666)
    try:
        _acquire(lock, uuid, say)
    except OSError as error:
        say(f"other runs may use {uuid} meanwhile: {path_of(uuid)} cannot be locked: {error.strerror}")
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, uuid: str, say: Callable[[str], None]) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for {uuid}: {holder(uuid)}")
        lock.acquire()
    with suppress(OSError, KeyError):  # a user without a name; the lock holds all the same
        words = shlex.join(["compare", *sys.argv[1:]])
        since = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        text = f"process {os.getpid()} of {getpass.getuser()} since {since}: {words[:200]}\n"
        with path_of(uuid).open("r+", encoding="utf-8") as file:
            file.truncate()
            file.write(text)


def holder(uuid: str) -> str:
    """Who holds the lock, or held it last: process, user, since when, command."""
    with suppress(Exception):  # anyone may write into the file
        return read_text(path_of(uuid), 1000).strip() or "another process"
    return "another process"
