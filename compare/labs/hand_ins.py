"""The hand-ins of a class: a folder or a zip for each student, as a learning platform exports them."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from compare.labs.course import Course, Times
from compare.labs.marking import Submission
from compare.labs.roster import Person, Roster
from compare.labs.work import ANSWERS, shown
from compare.model.op import UsageError
from compare.records.reading import read_bytes

EMPTY = Course()

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
    base: str = ""
    """The folder's name without a time at its end."""
    person: Person | None = None
    """None: the roster does not have this student."""
    listed: Submission | None = None
    """When it was handed in, as the platform says."""
    arrived: Submission | None = None
    """The same, as its own name or its files say."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that stands for the student in a file."""
        names = (self.student, shown(self.base), *(self.person.names if self.person else ()))
        return tuple(dict.fromkeys(filter(None, names)))

    @property
    def submission(self) -> Submission | None:
        return self.listed or self.arrived


def notes(
    hand_ins: Sequence[HandIn], older: Sequence[HandIn], absent: Sequence[Person], has_roster: bool
) -> list[str]:
    """What an instructor has to know of hand-ins, in sentences; empty ones left out."""
    unknown = [each.student for each in hand_ins if not each.person] if has_roster else []
    sentences = {
        "No hand-in of": [person.name for person in absent],
        "Not on the roster": unknown,
        "Replaced by a later hand-in": [f"{each.student} ({shown(each.folder.name)})" for each in older],
    }
    return [f"{words}: {', '.join(names)}." for words, names in sentences.items() if names]


def is_class(folder: Path) -> bool:
    """Whether a folder holds hand-ins, and is none itself."""
    return not (folder / ANSWERS).is_file() and bool(_entries(folder)) and not any(folder.glob("*.py"))


def of_one(folder: Path, course: Course = EMPTY) -> HandIn:
    """A hand-in that is named by its folder."""
    path = folder.resolve()
    hand_in = HandIn(shown(path.name), _inner(folder), key=key_of(path.name))
    return _identified(hand_in, path, course.people(), course.submissions())


def of_class(
    folder: Path, unpacked: Path, course: Course = EMPTY, latest: bool = False
) -> tuple[list[HandIn], list[HandIn]]:
    """The hand-ins of a class's folder, by name, and those that a later one of the same student replaces.

    One that cannot be read, or that may be one of two, says why.

    Args:
        folder: with a folder or a zip for each student.
        unpacked: a folder in it that is not there yet.
        course: with the roster and the times of submissions.
        latest: of several of one student take the last one.
    """
    people, times = course.people(), course.submissions()
    hand_ins = [_identified(_hand_in(path, unpacked), path, people, times) for path in _entries(folder)]
    older: list[HandIn] = []
    if latest:
        hand_ins, older = _last(hand_ins)
    counts = Counter(each.student for each in hand_ins)
    twice = (
        "there is another hand-in of this name, or of one that looks like it: rename one of them, or of "
        "several of one student take the last by --latest"
    )
    return [replace(each, problem=twice) if counts[each.student] > 1 else each for each in hand_ins], older


def _identified(hand_in: HandIn, path: Path, people: Roster, times: Times) -> HandIn:
    """A hand-in with its student and its time.

    Args:
        hand_in: as it lies there.
        path: its folder or archive, as the student or a platform called it.
        people, times: of the course.
    """
    base, arrived = times.of_name(_name(path))
    if not (arrived or hand_in.problem):
        arrived = times.of_files(hand_in.folder if path.is_dir() else path)
    hand_in = replace(hand_in, base=base, student=shown(base), key=key_of(base), arrived=arrived)
    try:
        person = times.person(base, people) or people.find(base)
    except UsageError as error:
        return replace(hand_in, problem=str(error))
    if person:
        hand_in = replace(hand_in, person=person, student=person.name, key=key_of(person.id))
    return replace(hand_in, listed=times.of(base, person))


def _last(hand_ins: Sequence[HandIn]) -> tuple[list[HandIn], list[HandIn]]:
    """The last hand-in of each student, and the others; a time in the platform's list is of the last one."""
    of: dict[object, list[HandIn]] = defaultdict(list)
    for each in hand_ins:
        of[each.person or each.base].append(each)
    for several in of.values():
        several.sort(key=lambda each: (each.arrived.time.timestamp() if each.arrived else 0.0, each.folder))
    return [several[-1] for several in of.values()], [
        each for several in of.values() for each in several[:-1]
    ]


def _entries(folder: Path) -> list[Path]:
    """The folders and archives of a class."""
    paths = (path for path in folder.iterdir() if not path.name.startswith(("_", ".")))
    suffixes = (".zip", *_ARCHIVES)
    return sorted(path for path in paths if path.is_dir() or path.suffix.lower() in suffixes)


def _name(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


def _hand_in(path: Path, unpacked: Path) -> HandIn:
    name = _name(path)
    hand_in = HandIn(shown(name), path, key=key_of(name), others=unpacked.parent)
    if path.is_symlink():
        return replace(hand_in, problem=f"{shown(path.name)} is a link: hand in the folder itself")
    if path.is_dir():
        return replace(hand_in, folder=_inner(path))
    if path.suffix.lower() != ".zip":
        return replace(hand_in, problem=f"{shown(path.name)} is no folder and no .zip: hand in one of these")
    try:
        folder = unpack(path, unpacked / key_of(path.name))
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


def key_of(name: str) -> str:
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
