"""Marks of one submission: points for each part, and words for each part that got none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Literal

from compare.device import lacks, pick
from compare.labs import prediction
from compare.labs.lab import Group, Lab, Limit, Speed, Task, op_of
from compare.labs.running import Run, run
from compare.labs.work import Work
from compare.model.op import Case
from compare.model.result import OWN_WORK, UNREAD, Mismatch, Row
from compare.timing import figures

PartResult = Literal[
    "passed",
    "wrong",
    "error",
    "timeout",
    "refused",
    "not started",
    "inconclusive",
    "machine",
    "left out",
]
"""``error``: the code raised or did not compile. ``refused``: it cheated. ``machine``: the reference failed
too. ``left out``: this tier cannot show it."""

NOT_COUNTED = ("inconclusive", "machine", "left out")
"""Parts with such a result cost no points: they are not in the total either."""
NOT_WRITTEN = "not written yet"
"""Starters raise a `NotImplementedError` with these words."""
_LATE = "took longer than"
"""In the reason of a row one of whose steps reached the limit."""
_TAMPERED = "it forked its process", "it wrote into the pipe"
"""In the reason of a row whose code attacked its own check."""
_AT_ONCE = 2
"""Tasks of a submission that are tested at a time."""
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
        return sum(part.points for part in self.parts if part.result not in NOT_COUNTED)

    @property
    def of(self) -> float:
        return sum(part.of for part in self.parts if part.result not in NOT_COUNTED)

    @property
    def share(self) -> float:
        return self.points / self.of if self.of else 0.0


def correctness(work: Work, device: str, timeout_s: float, say: Say) -> Marks:
    """Marks for the tests: everything but speed and what is written."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tested = list(pool.map(lambda task: _tested(work, task, device, timeout_s, say), work.lab.task))
    seen = [done.comparison.environment for _, done in tested if done.comparison]
    return Marks(
        work.name,
        work.lab.name,
        seen[0].device if seen else "",
        pick(device).type == "cuda",
        _now(),
        work.digest,
        tuple(part for parts, _ in tested for part in parts),
    )


def _tested(work: Work, task: Task, device: str, timeout_s: float, say: Say) -> tuple[list[Part], Run]:
    say(f"{work.name}: testing {task.title}")
    cases = [case for group in task.group for case in group.cases]
    done = _tried(work, task, cases, [task.label], device, timeout_s)
    parts = [_group(work, task, group, done) for group in task.group]
    right = all(part.result == "passed" for part in parts)
    return [*parts, *(_limit(task, limit, done, right) for limit in task.limit)], done


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
            why = "first make every case correct" if marks.gpu else "speed needs a GPU"
            parts += [Part(_name(task, speed), 0.0, speed.points, result, why) for speed in task.speed]
    return replace(marks, parts=(*marks.parts, *parts, *_written(work)))


def best(old: Marks, new: Marks) -> Marks:
    """The better of each part: a submission after the first never loses points."""
    before = {part.name: part for part in old.parts}

    def better(part: Part) -> Part:
        other = before.get(part.name, part)
        counted = other.result not in NOT_COUNTED
        if counted and (part.result in NOT_COUNTED or other.points > part.points) and other.of == part.of:
            return other
        return part

    return replace(new, parts=tuple(map(better, new.parts))) if old.lab == new.lab else new


def nothing(student: str, reason: str, lab: Lab | None = None, digest: str = "") -> Marks:
    """Marks of a folder that cannot be marked at all."""
    part = Part("submission", 0.0, total(lab) if lab else 1.0, "error", reason)
    return Marks(student, lab.name if lab else "", "", False, _now(), digest, (part,))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def total(lab: Lab, speed: bool = False) -> float:
    """The points of a lab; those for speed need a GPU."""
    found = [group.points for task in lab.task for group in task.group]
    found += [limit.points for task in lab.task for limit in task.limit]
    found += [question.points for question in lab.question]
    found += [1.0] * bool(lab.prediction)
    return sum(found) + (sum(s.points for task in lab.task for s in task.speed) if speed else 0.0)


# --------------------------------------------------------------------------- parts


def _tried(
    work: Work, task: Task, cases: Sequence[str], only: Sequence[str], device: str, timeout_s: float
) -> Run:
    """A run of the student's file; once more where nothing came of it.

    The file is to blame if the reference runs without it, and the machine if not.
    """
    file = work.folder / task.file
    if not file.is_file():
        return Run(None, f"there is no {task.file}", refused=True)
    op, budget_s = op_of(work.lab, task), 0.1 * len(cases)
    for _ in range(2):
        done = run(op.name, cases, only, device, timeout_s, file, budget_s)
        if done.comparison or done.refused:
            return done
    alone = run(op.name, cases[:1], [task.reference], device, timeout_s, budget_s=budget_s)
    return replace(done, refused=alone.comparison is not None)


def _group(work: Work, task: Task, group: Group, done: Run) -> Part:
    name, op = f"{task.title}: {group.name}", op_of(work.lab, task)
    if done.comparison is None:
        return Part(name, 0.0, group.points, _blamed(done.error) if done.refused else "machine", done.error)
    cases = [str(Case.parse(text, op)) for text in group.cases]
    rows = ((case, done.row(case, task.label), done.row(case, op.baseline)) for case in cases)
    parts = [_checked(name, group, *row) for row in rows]
    failed = [part for part in parts if part.result != "passed"]
    return failed[0] if failed else parts[0]


def _checked(name: str, group: Group, case: str, row: Row | None, baseline: Row | None) -> Part:
    """The part as one case has it."""

    def part(result: PartResult, detail: str = "") -> Part:
        mismatch = row.agreement.mismatch if row and row.agreement else None
        points = group.points if result == "passed" else 0.0
        return Part(name, points, group.points, result, f"{case}: {detail}" if detail else "", mismatch)

    if row is None:
        return part("error", "the file registers no implementation of this label and op")
    if row.status == "ok":
        return part("passed")
    if baseline is None or baseline.status == "failed":
        why = baseline.reason if baseline else "it has no row"
        return part("machine", f"the reference failed too: {why}")
    if row.status == "disagrees":
        failed = {f.name for f in row.agreement.findings if not f.passed} if row.agreement else set()
        return part("wrong" if failed - {OWN_WORK} else "refused", row.reason)
    if row.status == "impossible":
        return part("refused", row.reason)
    if NOT_WRITTEN in row.reason:
        return part("not started", row.reason)
    if row.status == "unavailable":
        return part("left out" if row.reason.startswith(("needs ", "it needs ")) else "wrong", row.reason)
    return part(_blamed(row.reason), row.reason)


def _blamed(reason: str) -> PartResult:
    """The result of code that could not be checked, for this reason."""
    if any(words in reason for words in _TAMPERED):
        return "refused"
    return "timeout" if _LATE in reason else "error"


def _limit(task: Task, limit: Limit, done: Run, right: bool) -> Part:
    name = f"{task.title}: {limit.words}"
    comparison = done.comparison
    if not right or comparison is None:
        return Part(name, 0.0, limit.points, "not started", "first make every case correct")
    every = [row for case in comparison.cases for row in case.rows if fnmatchcase(row.label, task.label)]
    arch = prediction.arch_of(comparison)
    lacking = lacks(limit.requires, arch) if limit.requires and arch else None
    if lacking:
        return Part(name, 0.0, limit.points, "left out", lacking)
    found: float | str | None
    if limit.figure in ("lines", "tokens"):
        size = comparison.code_sizes.get(every[0].label)
        found = float(getattr(size, limit.figure)) if size else None
    else:
        read = (prediction.resource(row, limit.figure, arch) for row in every)
        found = next((each for each in read if each is not None), None)
    if found is None:
        why = next((row.reason for row in every if row.reason.startswith(UNREAD)), "")
        result: PartResult = "timeout" if _LATE in why else "left out"
        return Part(name, 0.0, limit.points, result, why or "the figure could not be read")
    told = found if isinstance(found, str) else f"{found:g}"
    if limit.allows(found):
        return Part(name, limit.points, limit.points, "passed", told)
    return Part(name, 0.0, limit.points, "wrong", f"got {told}, expected {limit.wanted}")


def _timed(work: Work, task: Task, device: str, timeout_s: float) -> list[Part]:
    """Speeds of a task, from one run; what it leaves open is timed again."""
    op, file = op_of(work.lab, task), work.folder / task.file
    found: dict[Speed, Part] = {}
    left = list(task.speed)
    for _ in range(_TRIES):
        if left:
            cases = list(dict.fromkeys(speed.case for speed in left))
            done = run(op.name, cases, [task.label, task.reference], device, timeout_s, file)
            found |= {speed: _speed(task, speed, str(Case.parse(speed.case, op)), done) for speed in left}
            left = [speed for speed in left if found[speed].result in ("inconclusive", "machine")]
    return [found[speed] for speed in task.speed]


def _name(task: Task, speed: Speed) -> str:
    return f"{task.title}: speed of at least {speed.at_least:g}x {task.reference}"


def _speed(task: Task, speed: Speed, case: str, done: Run) -> Part:
    name = _name(task, speed)

    def part(result: PartResult, detail: str) -> Part:
        return Part(name, speed.points if result == "passed" else 0.0, speed.points, result, detail)

    row, reference = done.row(case, task.label), done.row(case, task.reference)
    if row is None or reference is None or reference.status != "ok":
        return part("machine", done.error or "the reference was not timed")
    if row.status != "ok":
        return replace(_checked(name, Group(name, speed.points, ()), case, row, reference), points=0.0)
    if row.timing and row.timing.unverified:
        return part("inconclusive", f"timed by its own process only: {row.timing.unverified}")
    ratio = figures.ratio(row, reference)
    if ratio is None:
        return part("inconclusive", "too few samples")
    told = f"{ratio.median:.2f}x {task.reference} (95% interval {ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.median >= speed.at_least:
        return part("passed", told)
    if ratio.high < speed.at_least:
        return part("wrong", f"{told}; {speed.at_least:g}x is needed")
    return part("inconclusive", f"{told}: too close to {speed.at_least:g}x to tell")


def _written(work: Work) -> Iterator[Part]:
    """Predictions and answers."""
    if work.lab.prediction:
        missing = [each.name for each in work.lab.prediction if each.name not in work.predictions]
        told = work.problem or f"not made: {', '.join(missing)}" * bool(missing)
        result: PartResult = "not started" if missing else "passed"
        yield Part("predictions made", float(not missing), 1.0, result, told)
    for question in work.lab.question:
        words = len(work.answers[question.name].split())
        done = words >= question.words
        told = "" if done else work.problem or f"{words} words; {question.words} are asked for"
        yield Part(
            f"answer {question.name}",
            question.points if done else 0.0,
            question.points,
            "passed" if done else "not started",
            told,
        )
