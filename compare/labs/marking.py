"""Marks of one submission: points for each part, and words for each part that got none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

from compare.device import lacks, pick
from compare.labs import prediction
from compare.labs.lab import Group, Lab, Limit, Speed, Task, Visibility, op_of
from compare.labs.running import LATE, Allowance, Run, run
from compare.labs.work import Work
from compare.model.op import Case, Op, UsageError, way_of
from compare.model.result import DOES_NOT_COMPILE, OWN_WORK, UNREAD, Comparison, Mismatch, Row
from compare.sandbox.words import printable
from compare.timing import figures
from compare.worker.own_code import OWN_CODE

PartResult = Literal[
    "passed",
    "marked",
    "partial",
    "wrong",
    "error",
    "timeout",
    "refused",
    "not started",
    "to be read",
    "inconclusive",
    "machine",
    "left out",
]
"""``error``: the code raised or did not compile. ``refused``: it cheated. ``machine``: the reference or the
judge failed too. ``partial``: on a scale, with less than all points. ``left out``: the reference has nothing
to show here either. ``to be read``, ``marked``: by an instructor."""

NOT_WRITTEN = "not written yet"
"""Starters raise a `NotImplementedError` with these words."""
_ANSWER = 20_000
"""Characters of an answer that are kept."""
_FIRST = "first make every case correct"
_TAMPERED = "it forked its process", "it wrote into the pipe", OWN_CODE
"""In the reason of a row whose code attacked its own check, or is not the student's."""
_AT_ONCE = 2
"""Files of a submission that are tested at a time."""
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
    answer: str = ""
    """Of a question: what an instructor reads."""
    visibility: Visibility = "visible"
    """When Gradescope shows it to students."""
    figure: float | None = None
    """Of correct work: for a leaderboard."""
    lowest: bool = False
    """Whether the lowest figure is the best."""

    @property
    def counted(self) -> bool:
        """Whether it is in the total: what the machine leaves open costs no points."""
        return self.result not in ("inconclusive", "machine", "left out", "to be read")


def part_of(
    name: str, of: float, result: PartResult, detail: str = "", mismatch: Mismatch | None = None
) -> Part:
    """A part with all its points if it passed, else with none."""
    return Part(name, of if result == "passed" else 0.0, of, result, detail, mismatch)


@dataclass(frozen=True)
class Submission:
    """When something was handed in."""

    at: str
    """ISO 8601, with the time zone."""
    source: str
    """How it is known."""
    digest: str = ""
    """`Work.digest` of what was handed in; empty: not marked yet."""

    @property
    def time(self) -> datetime:
        return datetime.fromisoformat(self.at)


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
    submission: Submission | None = None
    """Of the hand-in that earned them last."""
    before: Marks | None = None
    """What earlier hand-ins had earned."""
    lost: float = 0.0
    """Points, by the late rule."""
    late: str = ""
    """Why."""
    id: str = ""
    email: str = ""

    @property
    def earned(self) -> float:
        """Points before the late rule."""
        return sum(part.points for part in self.parts if part.counted)

    @property
    def points(self) -> float:
        return self.earned - self.lost

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
        runs = _Runs(work, task, device, timeout_s)
        done = _tried(work, task, runs)
        uncompiled = _uncompiled(op_of(work.lab, task), task, done, runs)
        parts = [
            part_of(f"{task.title}: {group.name}", group.points, *uncompiled)
            if uncompiled
            else _group(work, task, group, done, runs)
            for group in task.group
        ]
        right = all(part.result == "passed" for part in parts)
        parts = [replace(part, visibility=g.visibility) for part, g in zip(parts, task.group, strict=True)]
        limits = [_limit(task, limit, done, right, runs) for limit in task.limit]
        return [*parts, *(replace(part, visibility=task.visibility) for part in limits)], done

    # A file that hangs in one task is not run for the next.
    by_file: dict[str, list[int]] = {}
    for number, task in enumerate(work.lab.task):
        by_file.setdefault(task.file, []).append(number)

    def of_file(numbers: Sequence[int]) -> list[tuple[int, tuple[list[Part], Run]]]:
        return [(number, tested(work.lab.task[number])) for number in numbers]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        by_number = dict(each for results in pool.map(of_file, by_file.values()) for each in results)
    tasks = [by_number[number] for number in sorted(by_number)]
    devices = [done.comparison.environment.device for _, done in tasks if done.comparison]
    parts = tuple(part for parts, _ in tasks for part in parts)
    gpu = pick(device).type == "cuda"
    return Marks(work.name, work.lab.name, "".join(devices[:1]), gpu, _now(), work.digest, parts)


def first_look(work: Work, task: Task, device: str, timeout_s: float) -> Part:
    """The result of a task's first group, from a run that compiles nothing for a GPU."""
    op, group, runs = op_of(work.lab, task), task.group[0], _Runs(work, task, device, timeout_s)
    try:
        work.content(task.file)
    except UsageError as error:
        return part_of(f"{task.title}: {group.name}", group.points, "error", str(error))
    file = replace(work.handed_in(task), inspected=False)
    done = run(op.name, group.cases, [task.label], device, timeout_s, file, work.allowance)
    return _group(work, task, group, done, runs)


def speeds(work: Work, marks: Marks, device: str, timeout_s: float, say: Say) -> Marks:
    """``marks`` with the other parts: speed, which is left out without a GPU, predictions and answers."""
    parts: list[Part] = []
    for task in work.lab.task:
        right = all(p.result == "passed" for p in marks.parts if p.name.startswith(f"{task.title}: "))
        if marks.gpu and right and task.speed:
            say(f"{work.name}: timing {task.title}")
            timed = _timed(work, task, device, timeout_s)
        else:
            result: PartResult = "not started" if marks.gpu else "left out"
            why = _FIRST if marks.gpu else "speed needs a GPU"
            timed = [part_of(_name(task, speed), speed.points, result, why) for speed in task.speed]
        parts += [replace(part, visibility=task.visibility) for part in timed]
    return replace(marks, parts=(*marks.parts, *parts, *_written(work)))


def best(old: Marks | None, new: Marks) -> Marks:
    """The better of each part: a submission after the first never loses points.

    Args:
        old: None: there are none.
        new: of the later submission.
    """
    if old is None or old.lab != new.lab:
        return new
    before = {part.name: part for part in old.parts}

    def better(part: Part) -> Part:
        if part.result == "to be read":
            return part
        other = before.get(part.name, part)
        better_before = not part.counted or other.points > part.points
        return other if other.counted and better_before and other.of == part.of else part

    merged = replace(new, parts=tuple(map(better, new.parts)))
    return _standing(old, merged)


def _standing(old: Marks, merged: Marks) -> Marks:
    """``merged`` with the hand-in that earned it last, and what had been earned before that.

    New answers are those of the later hand-in, and so is then the whole.
    """
    again = old.digest == merged.digest
    gained = [(p.name, p.points) for p in old.parts] != [(p.name, p.points) for p in merged.parts]
    answers, parts = (
        [[getattr(part, name) for part in each.parts] for each in (old, merged)]
        for name in ("answer", "name")
    )
    rewritten = answers[0] != answers[1] or parts[0] != parts[1]
    if again or rewritten:
        return replace(merged, before=old.before if again else None)
    return (
        replace(merged, before=old)
        if gained
        else replace(merged, submission=old.submission, before=old.before)
    )


def handed_in(marks: Marks, submission: Submission | None) -> Marks:
    """Marks with the time of the hand-in that they are of; unless an earlier one had earned them all."""
    earlier = marks.submission is not None and marks.submission.digest != marks.digest
    if earlier or submission is None:
        return marks
    return replace(marks, submission=replace(submission, digest=marks.digest))


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


class _Runs:
    """Further runs of a task, each made where it decides: what a student's file says cannot."""

    def __init__(self, work: Work, task: Task, device: str, timeout_s: float) -> None:
        self._work, self._task, self._device, self._timeout_s = work, task, device, timeout_s
        self._done: dict[tuple[str, ...], Run] = {}

    def alone(self, *cases: str) -> Run:
        """The task's reference without the student's file."""
        if cases not in self._done:
            op, only = op_of(self._work.lab, self._task).name, [self._task.reference]
            allowance = Allowance(timing_s=0.1 * len(cases), stop=self._work.allowance.stop)
            self._done[cases] = run(op, cases, only, self._device, self._timeout_s, allowance=allowance)
        return self._done[cases]

    def reference(self, case: str) -> Row | None:
        return self.alone(case).row(case, self._task.reference)

    def mine(self, cases: Sequence[str]) -> Run:
        """The student's file."""
        op, file = op_of(self._work.lab, self._task).name, self._work.handed_in(self._task)
        allowance = replace(self._work.allowance, timing_s=0.1 * len(cases))
        return run(op, cases, [self._task.label], self._device, self._timeout_s, file, allowance)


def _tried(work: Work, task: Task, runs: _Runs) -> Run:
    """A run of the student's file on all cases; once more where nothing came of it.

    The file is to blame if the reference runs without it, and the machine if not.
    """
    if not (work.folder / task.file).exists():
        return Run(None, f"there is no {task.file}", refused=True)
    try:
        work.content(task.file)
    except UsageError as error:
        return Run(None, str(error), refused=True)
    for _ in range(2):
        done = runs.mine(task.cases)
        if done.comparison or done.refused:
            return done
    return replace(done, refused=runs.alone(task.cases[0]).comparison is not None)


def _uncompiled(op: Op, task: Task, done: Run, runs: _Runs) -> tuple[PartResult, str] | None:
    """The result of all groups of a task whose file a compiler does not take; None: one does.

    A CPU runs what no GPU could.  Of several cases a run compiles the first, if that is correct.  An empty
    one needs no kernel.
    """
    cases = [case.case for case in done.comparison.cases] if done.comparison else []
    rows = {case: row for case in cases if (row := done.row(case, task.label))}
    correct = {
        case: row
        for case, row in rows.items()
        if row.status in ("ok", "ordinary")
        and way_of(row.label) != "torch"
        and not op.is_empty(Case.parse(case, op))
    }
    if correct and not any(row.resources or _refusal(row) for row in rows.values()):
        case, row = next(iter(correct.items()))
        if case != cases[0] and (again := runs.mine([case]).row(case, task.label)):
            rows[case] = row = again
        theirs = None if row.resources or _refusal(row) else runs.reference(case)
        if theirs and theirs.resources:
            why = row.reason or "it launches no kernel when it is compiled for a GPU"
            return _blamed(why), f"{case}: {why}; {task.reference} compiles here"
    refused = ((case, row.reason) for case, row in rows.items() if _refusal(row))
    return next((("error", f"{case}: {why}") for case, why in refused), None)


def _refusal(row: Row) -> bool:
    """Whether no compiler takes a row's kernels."""
    return row.status == "failed" and DOES_NOT_COMPILE in row.reason


def _group(work: Work, task: Task, group: Group, done: Run, runs: _Runs) -> Part:
    """The first of its cases that fails decides.

    A failure on other sizes alone counts only where no case of the task fails: its group shows it.
    """
    name, op = f"{task.title}: {group.name}", op_of(work.lab, task)
    if done.comparison is None:
        return part_of(name, group.points, _blamed(done.error) if done.refused else "machine", done.error)
    shown = any(row.status not in ("ok", "ordinary") for row in _rows(done.comparison, task.label))
    for case in (str(Case.parse(text, op)) for text in group.cases):
        row = done.row(case, task.label)
        if row and row.status == "ordinary" and shown:
            continue
        result, why = _verdict(row, done.row(case, op.baseline), partial(runs.reference, case))
        if result != "passed":
            mismatch = row.agreement.mismatch if row and row.agreement else None
            return part_of(name, group.points, result, f"{case}: {why}", mismatch)
    return part_of(name, group.points, "passed")


def _verdict(
    row: Row | None, baseline: Row | None, alone: Callable[[], Row | None]
) -> tuple[PartResult, str]:
    """What a student's row on a case is worth, and why it is not correct.

    Args:
        row: the student's.
        baseline: the op's, of the same run.
        alone: the task's reference on the case, from a run without the student's file.
    """
    if row is None:
        return "error", "the file registers no implementation of this label and op"
    if row.status == "ok":
        return "passed", ""
    if row.by_judge:
        return "machine", row.reason
    if NOT_WRITTEN in row.reason:
        return "not started", row.reason
    faulty, refuses = baseline is None or baseline.status == "failed", row.status == "unavailable"
    theirs = alone() if faulty or refuses else None
    if (faulty or refuses) and (theirs is None or theirs.status == "failed"):
        return "machine", f"the reference failed too: {theirs.reason if theirs else 'it has no row'}"
    if refuses and theirs and theirs.status == "unavailable":
        return "left out", theirs.reason
    if refuses:
        return "wrong", f"your file refuses this case: {row.reason}; the reference runs here"
    if row.status in ("disagrees", "ordinary"):
        failed = {f.name for f in row.agreement.findings if not f.passed} if row.agreement else set()
        return "wrong" if failed - {OWN_WORK} else "refused", row.reason
    if row.status == "impossible":
        return "refused", row.reason
    return _blamed(row.reason), row.reason


def _blamed(reason: str) -> PartResult:
    """The result of code that could not be checked, for this reason."""
    if any(words in reason for words in _TAMPERED):
        return "refused"
    return "timeout" if LATE in reason else "error"


def _rows(comparison: Comparison, label: str) -> list[Row]:
    return [row for case in comparison.cases for row in case.rows if fnmatchcase(row.label, label)]


def _figure_of(done: Run, label: str, limit: Limit) -> float | str | None:
    """The limit's figure of a label's rows: of the first case that has one."""
    if done.comparison is None:
        return None
    read = (prediction.static(done.comparison, row, limit.figure) for row in _rows(done.comparison, label))
    return next((each for each in read if each is not None), None)


def _limit(task: Task, limit: Limit, done: Run, right: bool, runs: _Runs) -> Part:
    name = f"{task.title}: {limit.words}"
    comparison = done.comparison
    if not right or comparison is None:
        return part_of(name, limit.points, "not started", _FIRST)
    rows = _rows(comparison, task.label)
    arch = prediction.arch_of(comparison)
    lacking = lacks(limit.requires, arch) if limit.requires and arch else None
    if lacking:
        return part_of(name, limit.points, "left out", lacking)
    figure = _figure_of(done, task.label, limit)
    if figure is None:
        why = next((row.reason for row in rows if row.reason.startswith(UNREAD)), "the figure was not read")
        if LATE in why:
            return part_of(name, limit.points, "timeout", why)
        if _figure_of(runs.alone(*task.cases), task.reference, limit) is None:
            return part_of(name, limit.points, "left out", why)
        return part_of(name, limit.points, "wrong", f"{why}; that of {task.reference} was read here")
    text = figure if isinstance(figure, str) else f"{figure:g}"
    if limit.allows(figure):
        part = part_of(name, limit.points, "passed", text)
        lowest = limit.at_most is not None
        return part if isinstance(figure, str) else replace(part, figure=float(figure), lowest=lowest)
    return part_of(name, limit.points, "wrong", f"got {text}, expected {limit.bound}")


# --------------------------------------------------------------------------- speed, and what is written


def _timed(work: Work, task: Task, device: str, timeout_s: float) -> list[Part]:
    """Speeds of a task, from one run; what it leaves open is timed again."""
    op, file = op_of(work.lab, task), replace(work.handed_in(task), sanitized=False)
    runs = _Runs(work, task, device, timeout_s)
    parts: dict[Speed, Part] = {}
    left = list(task.speed)
    for _ in range(_TRIES):
        if left:
            cases = list(dict.fromkeys(speed.case for speed in left))
            labels = [task.label, task.reference]
            done = run(op.name, cases, labels, device, timeout_s, file, allowance=work.allowance)
            for speed in left:
                result, why, ratio = _speed(task, str(Case.parse(speed.case, op)), speed, done, runs)
                part = part_of(_name(task, speed), speed.points, result, why)
                if result == "passed" and ratio and (points := round(speed.worth(ratio), 2)) < part.of:
                    part = replace(part, points=points, result="partial")
                parts[speed] = replace(part, figure=ratio)
            left = [speed for speed in left if parts[speed].result in ("inconclusive", "machine")]
    return [parts[speed] for speed in task.speed]


def _name(task: Task, speed: Speed) -> str:
    bound = f"of {speed.at_least:g}x to {speed.full:g}x" if speed.full else f"of at least {speed.at_least:g}x"
    return f"{task.title}: speed {bound} {task.reference}"


def _speed(
    task: Task, case: str, speed: Speed, done: Run, runs: _Runs
) -> tuple[PartResult, str, float | None]:
    """A speed's result, its reason, and the ratio of work that passed."""
    row, reference = done.row(case, task.label), done.row(case, task.reference)
    if row is None or reference is None or reference.status != "ok":
        theirs = runs.reference(case)
        if theirs is None or theirs.status != "ok":
            return "machine", done.error or "the reference was not timed", None
        why = done.error or f"{case}: beside your file {task.reference} was not timed; alone it was"
        return "error", why, None
    if row.status != "ok":
        result, why = _verdict(row, reference, lambda: reference)
        return result, f"{case}: {why}", None
    if row.timing and row.timing.unverified:
        why = f"only its own process timed it: {row.timing.unverified}"
        own = "Launch kernels of your own file's text only, on tensors that PyTorch allocates"
        return "wrong", f"{why}. {own}", None
    ratio = figures.ratio(row, reference)
    if ratio is None:
        return "inconclusive", "too few samples", None
    text = f"{ratio.median:.2f}x {task.reference} (95% interval {ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.median >= speed.at_least:
        return "passed", text, ratio.median
    if ratio.high < speed.at_least:
        return "wrong", f"{text}; {speed.at_least:g}x is needed", None
    return "inconclusive", f"{text}: too close to {speed.at_least:g}x to tell", None


def _written(work: Work) -> Iterator[Part]:
    """Predictions and answers."""
    if work.lab.prediction:
        missing = [each.name for each in work.lab.prediction if each.name not in work.predictions]
        why = (work.problem or f"not made: {', '.join(missing)}") if missing else ""
        yield part_of("predictions made", 1.0, "not started" if missing else "passed", why)
    for question in work.lab.question:
        name, answer = f"answer {question.name}", work.answers[question.name]
        words = len(answer.split())
        if words < question.words:
            why = work.problem or f"{words} words; {question.words} are asked for"
            yield replace(part_of(name, question.points, "not started", why), answer=printable(answer))
        else:
            part = part_of(name, question.points, "to be read", "it counts when an instructor has read it")
            yield replace(part, answer=printable(answer[:_ANSWER]))
