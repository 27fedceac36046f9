"""A class: a folder of submissions, one folder each, marked one by one; a stopped run is resumed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compare.labs.lab import FOLDER, Lab, read
from compare.labs.marking import Marks, Say, best, correctness, nothing, speeds
from compare.labs.work import ANSWERS, Work, read_folder
from compare.model.op import UsageError
from compare.records.encoding import decode, encode, write_whole

KEPT = "_marks"
"""The folder of kept marks, within the class's folder."""


def is_class(folder: Path) -> bool:
    """Whether a folder holds submissions, and is none itself."""
    return not (folder / ANSWERS).is_file() and bool(submissions(folder)) and not any(folder.glob("*.py"))


def submissions(folder: Path) -> list[Path]:
    """The students' folders."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))


def mark(
    folders: Sequence[Path],
    rubric: Path | None,
    device: str,
    jobs: int,
    timeout_s: float,
    keep: Path | None,
    say: Say,
) -> list[Marks]:
    """Mark submissions; what happens in one costs that one only.

    Submissions are tested ``jobs`` at a time.  While nothing else runs, those that took too long are tested
    again, as the others may have slowed them, and those on a GPU are timed, one by one.

    Args:
        folders: one for each submission.
        rubric: the lab's description; None: each names its lab.
        keep: where marks are kept.  Work that has not changed is not marked again, and marks never fall.
    """
    works, unread = _read(folders, rubric)
    found = {folder: nothing(folder.resolve().name, reason) for folder, reason in unread.items()}
    kept = {folder: _kept(keep, folder) for folder in folders}
    for folder, work in works.items():
        old = kept[folder]
        if old and old.digest == work.digest and _complete(old):
            found[folder] = old
            say(f"{work.name}: unchanged since {old.created}")
    rest = [work for folder, work in works.items() if folder not in found]

    def finished(work: Work, marks: Marks) -> None:
        old = kept[work.folder]
        found[work.folder] = best(old, marks) if old else marks
        if keep:
            write_whole(_file(keep, work.folder), json.dumps(encode(found[work.folder]), indent=1) + "\n")

    def checked(work: Work) -> Marks:
        return _guarded(work, lambda: correctness(work, device, timeout_s, say))

    waiting: list[tuple[Work, Marks]] = []
    with ThreadPoolExecutor(jobs) as pool:
        for work, marks in zip(
            rest, pool.map(checked, rest) if jobs > 1 else map(checked, rest), strict=True
        ):
            if jobs > 1 and (marks.gpu or _late(marks)):  # the others' tests would disturb its times
                waiting.append((work, marks))
            else:
                finished(work, _timed(work, marks, device, timeout_s, say))
    for work, marks in waiting:
        again = best(marks, checked(work)) if _late(marks) else marks
        finished(work, _timed(work, again, device, timeout_s, say))
    return [found[folder] for folder in folders]


def _read(folders: Sequence[Path], rubric: Path | None) -> tuple[dict[Path, Work], dict[Path, str]]:
    """Submissions, and why others cannot be read.  One that names no lab gets the lab that most have."""
    works: dict[Path, Work] = {}
    unread: dict[Path, str] = {}
    for folder in folders:
        try:
            works[folder] = read_folder(folder, rubric)
        except UsageError as error:
            unread[folder] = str(error)
    named = Counter(work.lab.path for work in works.values()).most_common(1)
    for path, _ in named:
        works |= {folder: read_folder(folder, path) for folder in unread}
        unread = {}
    return {folder: works[folder] for folder in folders if folder in works}, unread


def _timed(work: Work, marks: Marks, device: str, timeout_s: float, say: Say) -> Marks:
    return _guarded(work, lambda: speeds(work, marks, device, timeout_s, say))


def _guarded(work: Work, marks: Callable[[], Marks]) -> Marks:
    """Whatever a submission makes go wrong is that submission's result."""
    try:
        return marks()
    except Exception as error:
        return nothing(work.name, f"{type(error).__name__}: {error}", work.lab, work.digest)


def _late(marks: Marks) -> bool:
    return any(part.result == "timeout" for part in marks.parts)


def _complete(marks: Marks) -> bool:
    """Whether another run, with more time or less load, could not change the marks."""
    return not any(part.result in ("inconclusive", "machine", "timeout") for part in marks.parts)


def _file(keep: Path, folder: Path) -> Path:
    return keep / (re.sub(r"[^\w.-]", "_", folder.resolve().name) + ".json")


def _kept(keep: Path | None, folder: Path) -> Marks | None:
    """The marks of an earlier run; None where there are none that can be read."""
    try:
        return decode(Marks, json.loads(_file(keep, folder).read_text())) if keep else None
    except (OSError, TypeError, ValueError):
        return None


def labs_of(all_marks: Iterable[Marks]) -> list[Lab]:
    """The labs of marks, each once."""
    names = dict.fromkeys(marks.lab for marks in all_marks if marks.lab)
    return [read(FOLDER / name / "lab.toml") for name in names if (FOLDER / name / "lab.toml").is_file()]
