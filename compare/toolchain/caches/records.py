"""What `compare.toolchain.caches` found, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cache:
    """A folder of compiled files."""

    whose: str
    holds: str
    folder: Path
    variable: str
    """The environment variable that sets the folder."""
    there: bool
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class File:
    name: str
    bytes: int


@dataclass(frozen=True)
class Part:
    """One thing that a key is made of."""

    name: str
    value: str


@dataclass(frozen=True)
class Entry:
    """What is kept, or would be looked for, under one key."""

    whose: str
    kernel: str
    """Or a module's name."""
    what: str
    """Of which implementation and architecture, or which kind of file."""
    key: str
    place: Path
    """Its folder, or its only file."""
    files: tuple[File, ...]
    """Empty: nothing is kept there."""
    made_of: tuple[Part, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Found:
    """All of one command."""

    op: str
    """Empty: of all."""
    caches: tuple[Cache, ...]
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
    """Keys that are not known, and why."""


@dataclass(frozen=True)
class Cleared:
    """What was removed of ours."""

    folder: Path
    kinds: tuple[tuple[str, int, int], ...]
    """Which kind, how many files of it, and how many bytes."""
    kept: tuple[str, ...] = ()

    @property
    def files(self) -> int:
        return sum(files for _, files, _ in self.kinds)

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self.kinds)
