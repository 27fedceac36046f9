"""Detects changes of the project's files by user code.

A worker has the user's rights, so it can write to them.  An audit hook refuses and records what it does by
Python's functions (`watch_deeds`); any other change shows in the files themselves (`Tree`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from compare.registry import ROOT

_FOLDERS = (
    *("compare", "torch_impl", "triton_impl", "cuda_impl", "results"),
    *("tests", "tools", "labs", "docs", "examples"),
)
_BESIDE = "__pycache__"
"""Not watched: Python writes there at imports."""

_SHOWN = 3
"""Most files that a message names."""


class Tree:
    """A snapshot of the project's files and the user's; `changed` names the differences."""

    def __init__(self, also: Iterable[str] = ()) -> None:
        self._also = [Path(file) for file in also]
        self._lock = threading.Lock()
        self._known = dict(self._looked_at())

    def changed(self) -> str:
        """The files edited, deleted or added since the last call, in words; empty if none."""
        with self._lock:
            before, self._known = self._known, dict(self._looked_at())
            after = self._known
        found = [f"{_name(path)} was deleted" for path in before if path not in after]
        found += [f"{_name(path)} was added" for path in after if path not in before]
        found += [
            f"{_name(path)} was edited" for path in after if path in before and before[path] != after[path]
        ]
        more = len(found) - _SHOWN
        return ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

    def _looked_at(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every file with its stat fields that a write changes; no user can set the last, ctime."""
        for path in self._paths():
            try:
                found = os.lstat(path)
            except OSError:  # deleted, or a user's file that does not exist
                continue
            yield path, (found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _paths(self) -> Iterator[str]:
        for folder in _FOLDERS:
            for parent, folders, names in os.walk(ROOT / folder):
                folders[:] = [name for name in folders if name != _BESIDE and not name.startswith(".")]
                yield from (str(Path(parent, name)) for name in names)
        yield from map(str, self._also)


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEEDS = {
    "os.chmod": "changed the mode of",
    "os.remove": "deleted",
    "os.rmdir": "deleted",
    "shutil.rmtree": "deleted",
    "os.rename": "renamed",
    "os.truncate": "wrote to",
    "os.symlink": "linked",
    "os.link": "linked",
}


def watch_deeds(note: Callable[[str], object]) -> None:
    """Refuse changes of the project's files and signals to other processes, by an audit hook.

    Args:
        note: called with each refused deed, in words.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                look("wrote to", path)
        elif event in _DEEDS:
            for path in arguments[:2]:
                look(_DEEDS[event], path)
        elif event in ("os.kill", "os.killpg") and not _is_own(arguments[0]):
            refuse("sent a signal to a process that is not its own")

    def look(deed: str, path: object) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            real = Path(os.path.realpath(os.fsdecode(path)))
            if _is_ours(real):
                refuse(f"{deed} {_name(str(real))}")

    def refuse(deed: str) -> None:
        note(deed)
        raise PermissionError(f"it {deed}")

    sys.addaudithook(hook)


def _is_own(pid: int) -> bool:
    """Whether a process or process group is this one, or its child."""
    if pid in (0, os.getpid(), os.getpgrp()):
        return True
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    except OSError:  # it has exited
        return pid > 0


def _is_ours(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / folder) for folder in _FOLDERS) and _BESIDE not in path.parts


def _name(path: str) -> str:
    """A path relative to the project, where it is inside."""
    inside = Path(path).is_relative_to(ROOT)
    return Path(path).relative_to(ROOT).as_posix() if inside else path
