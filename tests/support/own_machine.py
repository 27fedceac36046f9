"""A command with ``/tmp`` and ``/dev/shm`` of its own, so that a test sees all that it leaves there."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from compare.registry import ROOT

PLACES = {Path("/tmp"): "tmp", Path("/var/tmp"): "var", Path("/dev/shm"): "shm"}
"""Folders of the machine, and the names of those that stand in for them."""
CACHES = "torchinductor_"
"""What stays on purpose: PyTorch's own cache."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x20000
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12


def _mount(source: str | Path, target: Path, flags: int) -> None:
    if _LIBC.mount(os.fsencode(source), os.fsencode(target), b"", ctypes.c_ulong(flags), b"") < 0:
        raise OSError(ctypes.get_errno(), f"mount on {target}")


@dataclass(frozen=True)
class OwnMachine:
    """A folder with all that the commands started here see as those of the machine.

    It stays visible under its own path, and so does the project.
    """

    folder: Path

    def start(self, *words: object, **environment: str) -> subprocess.Popen[str]:
        """``python -m compare``, with a compiler cache of its own: so that it compiles."""
        for name in (*PLACES.values(), "cache"):
            (self.folder / name).mkdir(exist_ok=True)
        inherited = {name: os.environ[name] for name in os.environ.keys() - {"TMPDIR", "TRITON_INTERPRET"}}
        return subprocess.Popen(
            [sys.executable, "-m", "compare", *map(str, words)],
            cwd=ROOT,
            env={**inherited, "COMPARE_CACHE_DIR": str(self.folder / "cache"), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=self._enter,
        )

    def left(self) -> set[str]:
        """All paths there now, as the commands see them."""
        visible = {path for each in (ROOT, self.folder) for path in (each, *each.parents)}
        paths = {
            place / Path(folder, name).relative_to(self.folder / own)
            for place, own in PLACES.items()
            for folder, folders, files in os.walk(self.folder / own)
            for name in (*folders, *files)
        }
        return {str(path) for path in paths - visible if not any(CACHES in part for part in path.parts)}

    def _enter(self) -> None:
        user, group = os.geteuid(), os.getegid()
        if _LIBC.unshare(_NEW_USER | _NEW_MOUNTS) < 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for name, text in {
            "setgroups": "deny",
            "uid_map": f"{user} {user} 1",
            "gid_map": f"{group} {group} 1",
        }.items():
            Path("/proc/self", name).write_text(text)
        _mount("none", Path("/"), _PRIVATE | _RECURSIVE)
        visible = {path: os.open(path, os.O_PATH) for path in (ROOT, self.folder)}
        for place, own in PLACES.items():
            _mount(self.folder / own, place, _BIND)
            # A folder that this hides is looked up by its descriptor from now on.
            for path, descriptor in visible.items():
                if path.is_relative_to(place):
                    path.mkdir(parents=True, exist_ok=True)
                    _mount(f"/proc/self/fd/{descriptor}", path, _BIND | _RECURSIVE)
        for descriptor in visible.values():
            os.close(descriptor)
