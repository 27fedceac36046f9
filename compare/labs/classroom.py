"""A class: a folder of submissions, one folder each, marked one by one; a stopped run is resumed.

Similar code is found by token fingerprints (winnowing, Schleimer et al. 2003).
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from compare.code_size.sources import USER_FILE_BYTES
from compare.labs.hand_ins import HandIn
from compare.labs.lab import FOLDER, SOLUTIONS, Lab, op_of, read
from compare.labs.marking import Marks, Say, best, correctness, handed_in, nothing, speeds
from compare.labs.running import Allowance, Stop, limit_s
from compare.labs.work import Work, files_within, read_folder, shown
from compare.model.op import UsageError
from compare.places import to_install
from compare.records.encoding import decode, encode, write_whole
from compare.records.reading import read_text
from compare.registry import ROOT

KEPT = "_marks"
"""The folder of kept marks, within the class's folder."""

SHOWN = 0.6
"""Pairs below this share are not listed."""
_NOISE, _GUARANTEE = 25, 35
"""Characters of code, where a name counts as one: shorter matches are ignored; matches of the second length
are always found."""
_LEAST = 150
"""Characters that a file has beside its starter's and what others have as well; with fewer all are alike."""
_USUAL, _USUAL_SHARE = 5, 1 / 3
"""What so many hand-ins have, and this share of them, is usual and tells nothing."""


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
    elsewhere: Callable[[Mapping[HandIn, Work], Say], Iterable[tuple[HandIn, Marks | str]]] | None = None
    """Marks hand-ins on other machines, or says why one is not marked."""


def mark(
    hand_ins: Sequence[HandIn], rubric: Path | None, options: MarkingOptions, keep: Path | None, say: Say
) -> tuple[list[Marks], bool]:
    """Mark hand-ins; what happens in one costs that one only.

    Args:
        hand_ins: one for each student.
        rubric: the lab's description; None: each names its lab.
        keep: where marks are kept.  Work that has not changed is not marked again, and marks never fall.

    Returns:
        Marks in the order of the hand-ins, and whether some are missing: these say why.
    """
    works, unread = _read(hand_ins, rubric)
    marks = {student: nothing(student.student, reason) for student, reason in unread.items()}
    files = {student: keep / f"{student.key}.json" for student in works if keep}
    kept = {student: read_kept(file, student.student) for student, file in files.items()}
    for student, work in works.items():
        old = kept.get(student)
        if old and old.digest == work.digest and _settled(old):
            marks[student] = handed_in(old, student.submission)
            say(f"{work.name}: unchanged since {old.created}")
    rest = {student: work for student, work in works.items() if student not in marks}
    reasons: dict[HandIn, str] = {}
    try:
        for student, done in (options.elsewhere or partial(_marked_here, options))(rest, say):
            if isinstance(done, str):
                reasons[student] = f"not marked: {done}"
            else:
                marks[student] = best(kept.get(student), handed_in(done, student.submission))
                write_kept(files.get(student), marks[student], say)
    except KeyboardInterrupt:
        say("interrupted")
    left = [student for student in hand_ins if student not in marks]
    for student in left:
        why = reasons.get(student, "interrupted before it was marked") + "; the same command marks it"
        marks[student] = nothing(student.student, why, works[student].lab, result="inconclusive")
    return [marks[student] for student in hand_ins], bool(left)


def _marked_here(
    options: MarkingOptions, works: Mapping[HandIn, Work], say: Say
) -> Iterator[tuple[HandIn, Marks]]:
    """Each hand-in with its marks, by this machine.

    Several hand-ins are tested at a time.  While nothing else runs, those on a GPU are timed, one by one;
    before that those that took too long are tested again, as the others may have slowed them.
    """
    device, timeout_s, jobs = options.device, options.timeout_s, options.jobs
    limited = {
        student: replace(work, allowance=Allowance(limit_s(timeout_s), stop=options.stop))
        for student, work in works.items()
    }

    def checked(student: HandIn) -> Marks:
        if options.stop.is_set:
            raise KeyboardInterrupt
        work = limited[student]
        work.allowance.start()
        return _guarded(work, lambda: correctness(work, device, timeout_s, say))

    def finished(student: HandIn, tested: Marks) -> tuple[HandIn, Marks]:
        work = limited[student]
        return student, _guarded(work, lambda: speeds(work, tested, device, timeout_s, say))

    waiting: list[tuple[HandIn, Marks]] = []
    with ThreadPoolExecutor(jobs) as pool:
        results = (pool.map if jobs > 1 else map)(checked, limited)
        for student, tested in zip(limited, results, strict=True):
            if jobs > 1 and tested.gpu:  # the others' tests would disturb its times
                waiting.append((student, tested))
            else:
                yield finished(student, tested)
    for student, tested in waiting:
        yield finished(student, best(tested, checked(student)) if _late(tested) else tested)


def _read(hand_ins: Sequence[HandIn], rubric: Path | None) -> tuple[dict[HandIn, Work], dict[HandIn, str]]:
    """Hand-ins, and why others cannot be read.  One that names no lab gets the lab that most have."""
    works: dict[HandIn, Work] = {}
    unread = {each: each.problem for each in hand_ins if each.problem}

    def read_all(rest: Iterable[HandIn], lab: Path | None) -> None:
        for each in rest:
            try:
                work = read_folder(each.folder, lab)
            except Exception as error:  # whatever it makes go wrong is its own result
                unread[each] = _told(error)
            else:
                works[each] = replace(work, student=each.student, others=each.others)
                unread.pop(each, None)

    readable = [each for each in hand_ins if not each.problem]
    read_all(readable, rubric)
    if works:
        ((lab, _),) = Counter(work.lab.path for work in works.values()).most_common(1)
        read_all([each for each in readable if each in unread], lab)
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


def read_kept(file: Path, student: str) -> Marks | None:
    """A student's marks of an earlier run, under the name of this one; None: there are none to be read."""
    try:
        marks = decode(Marks, json.loads(read_text(file)))
    except (ValueError, RecursionError):
        return None
    return replace(marks, student=student)


def write_kept(file: Path | None, marks: Marks, say: Say) -> None:
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
    """A hand-in's file of a task, and what is like it."""

    file: str
    first: str
    second: str
    """Another student, or where else the code stands."""
    share: float
    """Of the first's own code, 0 to 1: neither the starter's nor what is usual."""


def similarity_library() -> Any:
    """copydetect.  With it comes matplotlib: only --similar imports them.

    Raises:
        UsageError: it is missing.
    """
    try:
        return importlib.import_module("copydetect")
    except ImportError:
        raise UsageError(f"--similar needs copydetect. To install it: {to_install('labs')}") from None


def similar(lab: Lab, hand_ins: Sequence[HandIn], against: Sequence[Path] = ()) -> list[Pair]:
    """Hand-ins with code like others', the project's, its solutions' or earlier years', most similar first.

    A file that is missing, too large, or no text has none.

    Args:
        lab: what they are of.
        hand_ins: of a class.
        against: folders of earlier years' hand-ins.
    """
    pairs: list[Pair] = []
    for starter in lab.starters:
        ops = {op_of(lab, task).name for task in lab.task if task.file == starter.name}
        mine = {each.student: each.folder / starter.name for each in hand_ins if not each.problem}
        theirs = dict(_elsewhere(lab, starter.name, ops, against))
        for part in (_host_code, _kernels):
            pairs += _alike(starter.name, part(starter), _read_all(part, mine), _read_all(part, theirs))
    return sorted(pairs, key=lambda pair: -pair.share)


def _elsewhere(
    lab: Lab, file: str, ops: Iterable[str], against: Sequence[Path]
) -> Iterator[tuple[str, Path]]:
    """Code that is not a student's own, by its place."""
    yield "the lab's solution", SOLUTIONS / lab.name / file
    for pattern in (
        "torch_impl/{}.py",
        "triton_impl/**/{}.py",
        "cuda_impl/launches/{}.py",
        "cuda_impl/kernels/{}*/*.cuh",
        "cuda_impl/kernels/{}.cuh",
    ):
        for path in (path for op in ops for path in ROOT.glob(pattern.format(op))):
            yield str(path.relative_to(ROOT)), path
    for folder in against:
        for path in (path for path in files_within(folder) if path.match(file)):
            yield shown(str(path.parent.relative_to(folder.parent))), path


def _read_all(part: Callable[[Path], str], files: Mapping[str, Path]) -> dict[str, str]:
    texts = {}
    for name, file in files.items():
        with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            texts[name] = part(file)
    return {name: text for name, text in texts.items() if text}


def _host_code(file: Path) -> str:
    """A file's Python."""
    return "" if file.suffix != ".py" else read_text(file, USER_FILE_BYTES)


def _kernels(file: Path) -> str:
    """A file's CUDA."""
    text = read_text(file, USER_FILE_BYTES)
    if file.suffix != ".py":
        return text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the student's
        constants = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    return "\n".join(each for each in constants if isinstance(each, str) and "__global__" in each)


def _alike(file: str, starter: str, mine: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[Pair]:
    copydetect = similarity_library()
    language = "cuda" if "__global__" in "".join(mine.values()) else "python"

    def prints(texts: Mapping[str, str], known: Iterable[int]) -> dict[str, Any]:
        window = _GUARANTEE - _NOISE + 1
        return {
            name: copydetect.CodeFingerprint(
                name, _NOISE, window, [*known], True, language, io.StringIO(text)
            )
            for name, text in texts.items()
        }

    boilerplate = set(
        copydetect.CodeFingerprint(file, _NOISE, 1, None, True, language, io.StringIO(starter)).hashes
    )
    counts = Counter(value for each in prints(mine, boilerplate).values() for value in each.hashes)
    usual = max(_USUAL, _USUAL_SHARE * len(mine))
    boilerplate |= {value for value, count in counts.items() if count >= usual}
    ours = {name: each for name, each in prints(mine, boilerplate).items() if each.token_coverage >= _LEAST}
    for (first, one), (second, other) in combinations(ours.items(), 2):
        share = float(max(copydetect.compare_files(one, other)[1]))
        if share >= SHOWN:
            yield Pair(file, first, second, share)
    for second, other in prints(theirs, boilerplate).items():
        for first, one in ours.items():
            share = float(copydetect.compare_files(one, other)[1][0])
            if share >= SHOWN:
                yield Pair(file, first, second, share)
