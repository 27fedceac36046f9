"""A class: a folder of submissions, one folder each, marked one by one; a stopped run is resumed.

Similar code is found by token fingerprints (winnowing, Schleimer et al. 2003).
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from compare.code_size.sources import USER_FILE_BYTES
from compare.labs.lab import FOLDER, Lab, read
from compare.labs.marking import Marks, Say, best, correctness, nothing, speeds
from compare.labs.running import Allowance, Stop, limit_s
from compare.labs.work import ANSWERS, Work, name_of, read_folder
from compare.model.op import UsageError
from compare.records.encoding import decode, encode, write_whole
from compare.records.reading import read_text

KEPT = "_marks"
"""The folder of kept marks, within the class's folder."""

SHOWN = 0.6
"""Pairs below this share are not listed."""
_NOISE, _GUARANTEE = 15, 25
"""Tokens: shorter matches are ignored; matches of the second length are always found."""
_LEAST = 60
"""A file with fewer tokens of its own is alike in any class."""


@dataclass(frozen=True)
class MarkingOptions:
    """How a class is marked."""

    device: str
    """As on the command line."""
    timeout_s: float
    """The most that one step of an implementation may take."""
    jobs: int = 1
    """Submissions that are tested at a time."""
    stop: Stop = field(default_factory=Stop)
    """Set where Ctrl-C or a signal ends it: what runs then is ended."""


def is_class(folder: Path) -> bool:
    """Whether a folder holds submissions, and is none itself."""
    return not (folder / ANSWERS).is_file() and bool(submissions(folder)) and not any(folder.glob("*.py"))


def submissions(folder: Path) -> list[Path]:
    """The students' folders."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))


def mark(
    folders: Sequence[Path], rubric: Path | None, options: MarkingOptions, keep: Path | None, say: Say
) -> tuple[list[Marks], bool]:
    """Mark submissions; what happens in one costs that one only.

    Several submissions are tested at a time.  While nothing else runs, those that took too long are tested
    again, as the others may have slowed them, and those on a GPU are timed, one by one.

    Args:
        folders: one for each submission.
        rubric: the lab's description; None: each names its lab.
        keep: where marks are kept.  Work that has not changed is not marked again, and marks never fall.

    Returns:
        Marks in the order of the folders, and whether it was stopped: those that are missing then say so.
    """
    device, timeout_s, jobs = options.device, options.timeout_s, options.jobs
    works, unread = _read(folders, rubric)
    marks = {folder: nothing(name_of(folder), reason) for folder, reason in unread.items()}
    files = {folder: keep / (re.sub(r"[^\w.-]", "_", name_of(folder)) + ".json") for folder in works if keep}
    kept = {folder: _kept(file) for folder, file in files.items()}
    for folder, work in works.items():
        works[folder] = replace(work, allowance=Allowance(limit_s(timeout_s), stop=options.stop))
        old = kept.get(folder)
        if old and old.digest == work.digest and _settled(old):
            marks[folder] = old
            say(f"{work.name}: unchanged since {old.created}")

    def checked(work: Work) -> Marks:
        if options.stop.is_set:
            raise KeyboardInterrupt
        work.allowance.start()
        return _guarded(work, lambda: correctness(work, device, timeout_s, say))

    def finish(work: Work, tested: Marks) -> None:
        whole = _guarded(work, lambda: speeds(work, tested, device, timeout_s, say))
        old = kept.get(work.folder)
        marks[work.folder] = best(old, whole) if old else whole
        _keep(files.get(work.folder), marks[work.folder], say)

    rest = [work for folder, work in works.items() if folder not in marks]
    waiting: list[tuple[Work, Marks]] = []
    try:
        with ThreadPoolExecutor(jobs) as pool:
            for work, tested in zip(rest, (pool.map if jobs > 1 else map)(checked, rest), strict=True):
                if jobs > 1 and (tested.gpu or _late(tested)):  # the others' tests would disturb its times
                    waiting.append((work, tested))
                else:
                    finish(work, tested)
        for work, tested in waiting:
            finish(work, best(tested, checked(work)) if _late(tested) else tested)
    except KeyboardInterrupt:
        say("interrupted")
    left = [folder for folder in folders if folder not in marks]
    for folder in left:
        why = "interrupted before it was marked; the same command marks it"
        marks[folder] = nothing(name_of(folder), why, works[folder].lab, result="inconclusive")
    return [marks[folder] for folder in folders], bool(left)


def _read(folders: Sequence[Path], rubric: Path | None) -> tuple[dict[Path, Work], dict[Path, str]]:
    """Submissions, and why others cannot be read.  One that names no lab gets the lab that most have."""
    works: dict[Path, Work] = {}
    unread: dict[Path, str] = {}

    def read_all(rest: Iterable[Path], lab: Path | None) -> None:
        for folder in rest:
            try:
                works[folder] = read_folder(folder, lab)
            except Exception as error:  # whatever it makes go wrong is its own result
                unread[folder] = _told(error)

    read_all(folders, rubric)
    if works and unread:
        ((lab, _),) = Counter(work.lab.path for work in works.values()).most_common(1)
        missing = [*unread]
        unread.clear()
        read_all(missing, lab)
    return works, unread


def _guarded(work: Work, marks: Callable[[], Marks]) -> Marks:
    """Whatever a submission makes go wrong is that submission's result."""
    try:
        return marks()
    except Exception as error:
        return nothing(work.name, _told(error), work.lab, work.digest)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"


def _late(marks: Marks) -> bool:
    return any(part.result == "timeout" for part in marks.parts)


def _settled(marks: Marks) -> bool:
    """Whether another run, with more time or less load, could not change the marks."""
    return not any(part.result in ("inconclusive", "machine", "timeout") for part in marks.parts)


def _kept(file: Path) -> Marks | None:
    """The marks of an earlier run; None where there are none that can be read."""
    try:
        return decode(Marks, json.loads(read_text(file)))
    except (ValueError, RecursionError):
        return None


def _keep(file: Path | None, marks: Marks, say: Say) -> None:
    """Write marks for the next run."""
    if file is None:
        return
    try:
        write_whole(file, json.dumps(encode(marks), indent=1) + "\n")
    except OSError as error:
        say(f"{marks.student}: its marks are not kept for the next run: {file}: {error.strerror}")


def labs_of(all_marks: Iterable[Marks]) -> list[Lab]:
    """The labs of marks, each once."""
    paths = dict.fromkeys(FOLDER / marks.lab / "lab.toml" for marks in all_marks if marks.lab)
    return [read(path) for path in paths if path.is_file()]


# --------------------------------------------------------------------------- similar code


@dataclass(frozen=True)
class Pair:
    """Two submissions' files of one task."""

    file: str
    first: str
    second: str
    share: float
    """Of the shorter file's own tokens that the other has as well, 0 to 1; starter code is left out."""


def similarity_library() -> Any:
    """copydetect.  With it comes matplotlib: only --similar imports them.

    Raises:
        UsageError: it is missing.
    """
    try:
        return importlib.import_module("copydetect")
    except ImportError:
        raise UsageError("--similar needs copydetect: pip install -r requirements-labs.txt") from None


def similar(lab: Lab, folders: Sequence[Path]) -> list[Pair]:
    """Pairs with similar code, most similar first; a file that is missing, too large, or no text has none."""
    copydetect, pairs = similarity_library(), []
    for starter in lab.starters:
        boilerplate = list(copydetect.CodeFingerprint(str(starter), _NOISE, 1).hashes)
        prints = []
        for folder in folders:
            try:
                text = io.StringIO(read_text(folder / starter.name, USER_FILE_BYTES, folder))
            except UsageError:
                continue
            window = _GUARANTEE - _NOISE + 1
            print_ = copydetect.CodeFingerprint(starter.name, _NOISE, window, boilerplate, fp=text)
            prints.append((name_of(folder), print_))
        for (first, one), (second, other) in combinations(prints, 2):
            share = max(copydetect.compare_files(one, other)[1])
            if min(one.token_coverage, other.token_coverage) >= _LEAST and share >= SHOWN:
                pairs.append(Pair(starter.name, first, second, float(share)))
    return sorted(pairs, key=lambda pair: -pair.share)
