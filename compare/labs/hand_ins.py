"""The hand-ins of a class: a folder or a zip for each student, as a learning platform exports them."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from compare.labs.work import ANSWERS, shown
from compare.model.op import UsageError
from compare.records.reading import read_bytes

UNPACKED = "_unpacked-"
"""Begins the name of the folder in a class's folder where zips are unpacked, for as long as it is marked."""
_ARCHIVES = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".rar", ".7z")
_ZIP_BYTES = 16 << 20
"""The most of a zip, and of all files in it."""
_ZIP_FILES = 500
_DEEPEST = 3
"""Folders around a hand-in's files: students and platforms zip a folder in a folder."""
_LONGEST = 100


@dataclass(frozen=True)
class HandIn:
    """What one student has handed in."""

    student: str
    """The name, as it is shown everywhere."""
    folder: Path
    problem: str = ""
    """Why it cannot be marked."""
    key: str = ""
    """A name for files of this student's; different for different names."""
    others: Path | None = None
    """The class's folder, of which its code sees its own folder only."""


def is_class(folder: Path) -> bool:
    """Whether a folder holds hand-ins, and is none itself."""
    return not (folder / ANSWERS).is_file() and bool(_entries(folder)) and not any(folder.glob("*.py"))


def of_one(folder: Path) -> HandIn:
    """A hand-in that is named by its folder."""
    name = folder.resolve().name
    return HandIn(shown(name), _inner(folder), key=_key(name))


def of_class(folder: Path, unpacked: Path) -> list[HandIn]:
    """The hand-ins of a class's folder, by name.  One that cannot be read says why.

    Args:
        folder: with a folder or a zip for each student.
        unpacked: a folder in it that is not there yet.
    """
    hand_ins = [_hand_in(path, unpacked) for path in _entries(folder)]
    times = Counter(each.student for each in hand_ins)
    twice = "there is another hand-in of this name, or of one that looks like it: rename one of them"
    return [replace(each, problem=twice) if times[each.student] > 1 else each for each in hand_ins]


def _entries(folder: Path) -> list[Path]:
    """The folders and archives of a class."""
    paths = (path for path in folder.iterdir() if not path.name.startswith(("_", ".")))
    suffixes = (".zip", *_ARCHIVES)
    return sorted(path for path in paths if path.is_dir() or path.suffix.lower() in suffixes)


def _hand_in(path: Path, unpacked: Path) -> HandIn:
    name = path.name if path.is_dir() else path.stem
    hand_in = HandIn(shown(name), path, key=_key(name), others=unpacked.parent)
    if path.is_symlink():
        return replace(hand_in, problem=f"{shown(path.name)} is a link: hand in the folder itself")
    if path.is_dir():
        return replace(hand_in, folder=_inner(path))
    if path.suffix.lower() != ".zip":
        return replace(hand_in, problem=f"{shown(path.name)} is no folder and no .zip: hand in one of these")
    try:
        folder = unpack(path, unpacked / hand_in.key)
    except UsageError as error:
        return replace(hand_in, problem=str(error))
    return replace(hand_in, folder=_inner(folder))


def _inner(folder: Path) -> Path:
    """The folder with a hand-in's files: they may lie some folders down, where nothing else is."""
    for _ in range(_DEEPEST):
        if (folder / ANSWERS).exists() or any(folder.glob("*.py")):
            break
        inner = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))]
        if len(inner) != 1 or inner[0].is_symlink():
            break
        folder = inner[0]
    return folder


def _key(name: str) -> str:
    """A file's name for a student's: letters, digits, ``-``, ``.``, ``~`` and ``%XX``."""
    key = quote(os.fsencode(name), safe="")
    return (
        key if len(key) <= _LONGEST else f"{key[:_LONGEST]}~{hashlib.sha256(os.fsencode(name)).hexdigest()}"
    )


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip into a new folder, and return that.

    Raises:
        UsageError: it is none, or holds more than a hand-in does.
    """
    where = shown(archive.name)
    try:
        with zipfile.ZipFile(io.BytesIO(_content(archive))) as packed:
            files = [each for each in packed.infolist() if not each.is_dir()]
            if len(files) > _ZIP_FILES:
                raise UsageError(f"{where} holds {len(files)} files; the most is {_ZIP_FILES}")
            left = _ZIP_BYTES
            for each in files:
                with packed.open(each) as file:
                    content = file.read(left + 1)
                left -= len(content)
                if left < 0:
                    raise UsageError(f"{where} unpacks to more than {_ZIP_BYTES >> 20} MB")
                target = folder.joinpath(*_parts(where, each))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        folder.mkdir(parents=True, exist_ok=True)
    except UsageError:
        raise
    except Exception as error:  # zipfile raises a dozen kinds
        problem = shown(str(error))[:200]
        raise UsageError(
            f"{where} cannot be unpacked: {type(error).__name__}: {problem}. Zip it again"
        ) from None
    return folder


def _content(archive: Path) -> bytes:
    try:
        return read_bytes(archive, _ZIP_BYTES)
    except UsageError:
        limit = f"{shown(archive.name)} is no file of at most {_ZIP_BYTES >> 20} MB"
        raise UsageError(f"{limit}: hand in text files only") from None


def _parts(where: str, file: zipfile.ZipInfo) -> tuple[str, ...]:
    """The folders and the name of a file of a zip."""
    path = PurePosixPath(file.filename.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"{where} holds {shown(file.filename)!r}, which lies outside of it: zip a folder")
    kind = stat.S_IFMT(file.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise UsageError(f"{where} holds {shown(file.filename)!r}, which is no regular file")
    return path.parts
