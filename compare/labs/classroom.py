"""A class: a folder of submissions, one folder each, marked one by one; a stopped run is resumed.

Similar code is found by token fingerprints (winnowing, Schleimer et al. 2003).
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from compare.labs.hand_ins import HandIn
from compare.labs.lab import FOLDER, Lab, read
from compare.labs.marking import Marks, Say, best, correctness, nothing, speeds
from compare.labs.work import Work, read_folder
from compare.model.op import UsageError
from compare.records.encoding import decode, encode, write_whole

KEPT = "_marks"
"""The folder of kept marks, within the class's folder."""

SHOWN = 0.6
"""Pairs below this share are not listed."""
_NOISE, _GUARANTEE = 15, 25
"""Tokens: shorter matches are ignored; matches of the second length are always found."""
_LEAST = 60
"""A file with fewer tokens of its own is alike in any class."""


def mark(
    hand_ins: Sequence[HandIn],
    rubric: Path | None,
    device: str,
    jobs: int,
    timeout_s: float,
    keep: Path | None,
    say: Say,
    others: Path | None = None,
) -> list[Marks]:
    """Mark hand-ins; what happens in one costs that one only.

    Hand-ins are tested ``jobs`` at a time.  While nothing else runs, those that took too long are tested
    again, as the others may have slowed them, and those on a GPU are timed, one by one.

    Args:
        hand_ins: one for each student.
        rubric: the lab's description; None: each names its lab.
        keep: where marks are kept.  Work that has not changed is not marked again, and marks never fall.
        others: the class's folder, of which a hand-in's code sees its own folder only.
    """
    works, unread = _read(hand_ins, rubric, others)
    marks = {student: nothing(student.student, reason) for student, reason in unread.items()}
    files = {student: keep / f"{student.key}.json" for student in works if keep}
    kept = {student: _kept(file, student.student) for student, file in files.items()}
    for student, work in works.items():
        old = kept.get(student)
        if old and old.digest == work.digest and _settled(old):
            marks[student] = old
            say(f"{work.name}: unchanged since {old.created}")

    def checked(work: Work) -> Marks:
        return _guarded(work, lambda: correctness(work, device, timeout_s, say))

    def finish(student: HandIn, tested: Marks) -> None:
        work, old = works[student], kept.get(student)
        whole = _guarded(work, lambda: speeds(work, tested, device, timeout_s, say))
        marks[student] = best(old, whole) if old else whole
        if file := files.get(student):
            write_whole(file, json.dumps(encode(marks[student]), indent=1) + "\n")

    rest = [student for student in works if student not in marks]
    waiting: list[tuple[HandIn, Marks]] = []
    with ThreadPoolExecutor(jobs) as pool:
        results = (pool.map if jobs > 1 else map)(checked, [works[student] for student in rest])
        for student, tested in zip(rest, results, strict=True):
            if jobs > 1 and (tested.gpu or _late(tested)):  # the others' tests would disturb its times
                waiting.append((student, tested))
            else:
                finish(student, tested)
    for student, tested in waiting:
        finish(student, best(tested, checked(works[student])) if _late(tested) else tested)
    return [marks[student] for student in hand_ins]


def _read(
    hand_ins: Sequence[HandIn], rubric: Path | None, others: Path | None
) -> tuple[dict[HandIn, Work], dict[HandIn, str]]:
    """Hand-ins, and why others cannot be read.  One that names no lab gets the lab that most have."""
    works: dict[HandIn, Work] = {}
    unread = {each: each.problem for each in hand_ins if each.problem}

    def read(each: HandIn, rubric: Path | None) -> None:
        work = read_folder(each.folder, rubric)
        works[each] = replace(work, student=each.student, others=others)

    for each in (each for each in hand_ins if not each.problem):
        try:
            read(each, rubric)
        except UsageError as error:
            unread[each] = str(error)
    if works:
        ((lab, _),) = Counter(work.lab.path for work in works.values()).most_common(1)
        for each in [each for each in unread if not each.problem]:
            read(each, lab)
            del unread[each]
    return works, unread


def _guarded(work: Work, marks: Callable[[], Marks]) -> Marks:
    """Whatever a submission makes go wrong is that submission's result."""
    try:
        return marks()
    except Exception as error:
        return nothing(work.name, f"{type(error).__name__}: {error}", work.lab, work.digest)


def _late(marks: Marks) -> bool:
    return any(part.result == "timeout" for part in marks.parts)


def _settled(marks: Marks) -> bool:
    """Whether another run, with more time or less load, could not change the marks."""
    return not any(part.result in ("inconclusive", "machine", "timeout") for part in marks.parts)


def _kept(file: Path, student: str) -> Marks | None:
    """A student's marks of an earlier run; None where there are none that can be read."""
    try:
        marks = decode(Marks, json.loads(file.read_text()))
    except (OSError, TypeError, ValueError):
        return None
    return marks if marks.student == student else None


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


def similar(lab: Lab, hand_ins: Sequence[HandIn]) -> list[Pair]:
    """Pairs with similar code, most similar first; a file that is missing, too large, or no text has none."""
    copydetect, pairs = similarity_library(), []
    for starter in lab.starters:
        boilerplate = list(copydetect.CodeFingerprint(str(starter), _NOISE, 1).hashes)
        prints = []
        for each in hand_ins:
            file = each.folder / starter.name
            try:
                if file.stat().st_size < 1 << 20:
                    window = _GUARANTEE - _NOISE + 1
                    print_ = copydetect.CodeFingerprint(str(file), _NOISE, window, boilerplate)
                    prints.append((each.student, print_))
            except (OSError, ValueError):
                continue
        for (first, one), (second, other) in combinations(prints, 2):
            share = max(copydetect.compare_files(one, other)[1])
            if min(one.token_coverage, other.token_coverage) >= _LEAST and share >= SHOWN:
                pairs.append(Pair(starter.name, first, second, float(share)))
    return sorted(pairs, key=lambda pair: -pair.share)
