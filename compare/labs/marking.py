"""Marks of one submission: points for each part, and words for each part that got none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Literal

from compare.device import lacks, pick
from compare.labs import prediction
from compare.labs.lab import Group, Lab, Limit, Speed, Task, op_of
from compare.labs.running import Allowance, Run, run
from compare.labs.work import Work
from compare.model.op import Case, UsageError
from compare.model.result import NOT_SANITIZED, OWN_WORK, UNREAD, Mismatch, Row
from compare.sandbox.words import printable
from compare.timing import figures

PartResult = Literal[
    "passed", "wrong", "error", "timeout", "refused", "not started", "inconclusive", "machine", "left out"
]
"""``error``: the code raised or did not compile. ``refused``: it cheated. ``machine``: the reference or the
judge failed too. ``left out``: this tier cannot show it."""

NOT_WRITTEN = "not written yet"
"""Starters raise a `NotImplementedError` with these words."""
_FIRST = "first make every case correct"
_LATE = "took longer than"
"""In the reason of a row one of whose steps reached the limit."""
_TAMPERED = "it forked its process", "it wrote into the pipe"
"""In the reason of a row whose code attacked its own check."""
_AT_ONCE = 2
"""Tasks of a submission that are tested at a time."""
_LONGEST = 2000
"""Characters of a reason."""
_TRIES = 3
"""Runs of what stays inconclusive."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    name: str
    points: float
    of: float
    result: PartResult
    detail: str = ""
    mismatch: Mismatch | None = None

    @property
    def counted(self) -> bool:
        """Whether it is in the total: what the machine leaves open costs no points."""
        return self.result not in ("inconclusive", "machine", "left out")


def part_of(
    name: str, of: float, result: PartResult, detail: str = "", mismatch: Mismatch | None = None
) -> Part:
    """A part with all its points if it passed, else with none."""
    return Part(name, of if result == "passed" else 0.0, of, result, detail, mismatch)


@dataclass(frozen=True)
class Marks:
    """What a submission got, part by part."""

    student: str
    lab: str
    device: str
    """Its name; empty where nothing ran."""
    gpu: bool
    created: str
    """ISO 8601, UTC."""
    digest: str
    """`Work.digest` of what was marked."""
    parts: tuple[Part, ...]

    @property
    def points(self) -> float:
        return sum(part.points for part in self.parts if part.counted)

    @property
    def of(self) -> float:
        return sum(part.of for part in self.parts if part.counted)

    @property
    def share(self) -> float:
        return self.points / self.of if self.of else 0.0


def correctness(work: Work, device: str, timeout_s: float, say: Say) -> Marks:
    """Marks for the tests: everything but speed and what is written."""

    def tested(task: Task) -> tuple[list[Part], Run]:
        say(f"{work.name}: testing {task.title}")
        done = _tried(work, task, device, timeout_s)
        parts = [_group(work, task, group, done) for group in task.group]
        right = all(part.result == "passed" for part in parts)
        return [*parts, *(_limit(task, limit, done, right) for limit in task.limit)], done

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tasks = list(pool.map(tested, work.lab.task))
    devices = [done.comparison.environment.device for _, done in tasks if done.comparison]
    parts = tuple(part for parts, _ in tasks for part in parts)
    gpu = pick(device).type == "cuda"
    return Marks(work.name, work.lab.name, "".join(devices[:1]), gpu, _now(), work.digest, parts)


def speeds(work: Work, marks: Marks, device: str, timeout_s: float, say: Say) -> Marks:
    """``marks`` with the other parts: speed, which is left out without a GPU, predictions and answers."""
    parts: list[Part] = []
    for task in work.lab.task:
        right = all(p.result == "passed" for p in marks.parts if p.name.startswith(f"{task.title}: "))
        if marks.gpu and right and task.speed:
            say(f"{work.name}: timing {task.title}")
            parts += _timed(work, task, device, timeout_s)
        else:
            result: PartResult = "not started" if marks.gpu else "left out"
            why = _FIRST if marks.gpu else "speed needs a GPU"
            parts += [part_of(_name(task, speed), speed.points, result, why) for speed in task.speed]
    return replace(marks, parts=(*marks.parts, *parts, *_written(work)))


def best(old: Marks, new: Marks) -> Marks:
    """The better of each part: a submission after the first never loses points."""
    before = {part.name: part for part in old.parts}

    def better(part: Part) -> Part:
        other = before.get(part.name, part)
        better_before = not part.counted or other.points > part.points
        return other if other.counted and better_before and other.of == part.of else part

    return replace(new, parts=tuple(map(better, new.parts))) if old.lab == new.lab else new


def nothing(
    student: str, reason: str, lab: Lab | None = None, digest: str = "", result: PartResult = "error"
) -> Marks:
    """Marks of a folder that cannot be marked at all."""
    part = part_of("submission", total(lab) if lab else 1.0, result, printable(reason)[:_LONGEST])
    return Marks(student, lab.name if lab else "", "", False, _now(), digest, (part,))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def total(lab: Lab, speed: bool = False) -> float:
    """The points of a lab; those for speed need a GPU."""
    points = [group.points for task in lab.task for group in task.group]
    points += [limit.points for task in lab.task for limit in task.limit]
    points += [each.points for task in lab.task for each in task.speed if speed]
    return sum(points) + sum(question.points for question in lab.question) + bool(lab.prediction)


# --------------------------------------------------------------------------- correctness


def _tried(work: Work, task: Task, device: str, timeout_s: float) -> Run:
    """A run of the student's file on all cases; once more where nothing came of it.

    The file is to blame if the reference runs without it, and the machine if not.
    """
    file = work.folder / task.file
    if not file.exists():
        return Run(None, f"there is no {task.file}", refused=True)
    try:
        work.content(task.file)
    except UsageError as error:
        return Run(None, str(error), refused=True)
    cases, op = task.cases, op_of(work.lab, task)
    allowance = replace(work.allowance, timing_s=0.1 * len(cases))
    more = ["--sanitize"] if work.lab.sanitize and pick(device).type == "cuda" else []
    for _ in range(2):
        done = run(op.name, cases, [task.label], device, timeout_s, file, allowance, more)
        if done.comparison or done.refused:
            return done
    unlimited = Allowance(timing_s=allowance.timing_s, stop=allowance.stop)
    alone = run(op.name, cases[:1], [task.reference], device, timeout_s, allowance=unlimited, more=more)
    return replace(done, refused=alone.comparison is not None)


def _group(work: Work, task: Task, group: Group, done: Run) -> Part:
    """The first of its cases that fails decides."""
    name, op = f"{task.title}: {group.name}", op_of(work.lab, task)
    if done.comparison is None:
        return part_of(name, group.points, _blamed(done.error) if done.refused else "machine", done.error)
    for case in (str(Case.parse(text, op)) for text in group.cases):
        row = done.row(case, task.label)
        result, why = _verdict(row, done.row(case, op.baseline))
        if result != "passed":
            mismatch = row.agreement.mismatch if row and row.agreement else None
            return part_of(name, group.points, result, f"{case}: {why}", mismatch)
    return part_of(name, group.points, "passed")


def _verdict(row: Row | None, baseline: Row | None) -> tuple[PartResult, str]:
    """What a student's row on a case is worth, and why it is not correct."""
    if row is None:
        return "error", "the file registers no implementation of this label and op"
    if row.status == "ok":
        return "passed", ""
    if baseline is None or baseline.status == "failed":
        return "machine", f"the reference failed too: {baseline.reason if baseline else 'it has no row'}"
    if row.by_judge:
        return "machine", row.reason
    if row.status in ("disagrees", "ordinary"):
        failed = {f.name for f in row.agreement.findings if not f.passed} if row.agreement else set()
        return "wrong" if failed - {OWN_WORK} else "refused", row.reason
    if row.reason.startswith(NOT_SANITIZED):
        return "machine", row.reason
    if row.status == "impossible":
        return "refused", row.reason
    if NOT_WRITTEN in row.reason:
        return "not started", row.reason
    if row.status == "unavailable":
        return "left out" if row.reason.startswith(("needs ", "it needs ")) else "wrong", row.reason
    return _blamed(row.reason), row.reason


def _blamed(reason: str) -> PartResult:
    """The result of code that could not be checked, for this reason."""
    if any(words in reason for words in _TAMPERED):
        return "refused"
    return "timeout" if _LATE in reason else "error"


def _limit(task: Task, limit: Limit, done: Run, right: bool) -> Part:
    name = f"{task.title}: {limit.words}"
    comparison = done.comparison
    if not right or comparison is None:
        return part_of(name, limit.points, "not started", _FIRST)
    rows = [row for case in comparison.cases for row in case.rows if fnmatchcase(row.label, task.label)]
    arch = prediction.arch_of(comparison)
    lacking = lacks(limit.requires, arch) if limit.requires and arch else None
    if lacking:
        return part_of(name, limit.points, "left out", lacking)
    figures_read = (prediction.static(comparison, row, limit.figure) for row in rows)
    figure = next((each for each in figures_read if each is not None), None)
    if figure is None:
        why = next((row.reason for row in rows if row.reason.startswith(UNREAD)), "")
        result: PartResult = "timeout" if _LATE in why else "left out"
        return part_of(name, limit.points, result, why or "the figure could not be read")
    text = figure if isinstance(figure, str) else f"{figure:g}"
    if limit.allows(figure):
        return part_of(name, limit.points, "passed", text)
    return part_of(name, limit.points, "wrong", f"got {text}, expected {limit.bound}")


# --------------------------------------------------------------------------- speed, and what is written


def _timed(work: Work, task: Task, device: str, timeout_s: float) -> list[Part]:
    """Speeds of a task, from one run; what it leaves open is timed again."""
    op, file = op_of(work.lab, task), work.folder / task.file
    parts: dict[Speed, Part] = {}
    left = list(task.speed)
    for _ in range(_TRIES):
        if left:
            cases = list(dict.fromkeys(speed.case for speed in left))
            labels = [task.label, task.reference]
            done = run(op.name, cases, labels, device, timeout_s, file, allowance=work.allowance)
            for speed in left:
                result, why = _speed(task, speed, str(Case.parse(speed.case, op)), done)
                parts[speed] = part_of(_name(task, speed), speed.points, result, why)
            left = [speed for speed in left if parts[speed].result in ("inconclusive", "machine")]
    return [parts[speed] for speed in task.speed]


def _name(task: Task, speed: Speed) -> str:
    return f"{task.title}: speed of at least {speed.at_least:g}x {task.reference}"


def _speed(task: Task, speed: Speed, case: str, done: Run) -> tuple[PartResult, str]:
    row, reference = done.row(case, task.label), done.row(case, task.reference)
    if row is None or reference is None or reference.status != "ok":
        return "machine", done.error or "the reference was not timed"
    if row.status != "ok":
        result, why = _verdict(row, reference)
        return result, f"{case}: {why}"
    if row.timing and row.timing.unverified:
        return "inconclusive", f"timed by its own process only: {row.timing.unverified}"
    ratio = figures.ratio(row, reference)
    if ratio is None:
        return "inconclusive", "too few samples"
    text = f"{ratio.median:.2f}x {task.reference} (95% interval {ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.median >= speed.at_least:
        return "passed", text
    if ratio.high < speed.at_least:
        return "wrong", f"{text}; {speed.at_least:g}x is needed"
    return "inconclusive", f"{text}: too close to {speed.at_least:g}x to tell"


def _written(work: Work) -> Iterator[Part]:
    """Predictions and answers."""

    def part(name: str, points: float, lacking: str) -> Part:
        detail = (work.problem or lacking) if lacking else ""
        return part_of(name, points, "not started" if lacking else "passed", detail)

    if work.lab.prediction:
        missing = [each.name for each in work.lab.prediction if each.name not in work.predictions]
        yield part("predictions made", 1.0, f"not made: {', '.join(missing)}" if missing else "")
    for question in work.lab.question:
        words = len(work.answers[question.name].split())
        short = f"{words} words; {question.words} are asked for" if words < question.words else ""
        yield part(f"answer {question.name}", question.points, short)
