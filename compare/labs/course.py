"""A course, as its ``course.toml`` describes it: the roster, due dates, and what lateness costs."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path

from compare.labs import roster, tables
from compare.labs.lab import described
from compare.labs.marking import Marks, Submission
from compare.labs.roster import Person, Roster
from compare.model.op import UsageError

NAME = "course.toml"
"""In a class's folder, or beside it."""
_SUBMITTED = ("submission time", "submitted at", "submitted_at", "last modified (submission)", "time")
_NONE = ("", "-", "never")
_FORMATS = (
    *("%Y-%m-%d %H:%M:%S %z", "%Y-%m-%d %H:%M:%S UTC", "%A, %d %B %Y, %I:%M %p", "%A, %d %B %Y, %H:%M"),
    *("%A, %B %d, %Y, %I:%M %p", "%d %B %Y, %I:%M %p", "%b %d, %Y %I:%M %p", "%m/%d/%Y %H:%M"),
)
"""Beside ISO 8601: of Gradescope, and of Moodle by language and version."""
_SUFFIX = re.compile(
    r"(?P<base>.+?)[ _.-]+(?P<date>\d{4}-?\d\d-?\d\d)[T _-]"
    r"(?P<hour>\d\d[-:.]?\d\d)(?:[-:.]?\d\d)?(?P<utc>Z?)",
    re.DOTALL,
)
"""``alice_2026-12-01T2359``, ``alice-20261201-235900``"""


@dataclass(frozen=True)
class LateRule:
    """What a day after the due date costs; each day that has begun counts."""

    points_per_day: float = 0.0
    percent_per_day: float = 0.0
    """Of the points without it."""
    cap: float = math.inf
    """The most that is lost, in the unit of the above."""
    grace_minutes: float = 0.0
    """So much after the due date is not late."""
    closes_after_days: float = math.inf
    """After so many days a hand-in has no points."""

    def __post_init__(self) -> None:
        if (self.points_per_day > 0) == (self.percent_per_day > 0):
            raise ValueError("a late rule has one of points_per_day and percent_per_day, above 0")
        for name in ("cap", "grace_minutes", "closes_after_days"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name):g}: write a number of 0 or more")

    def lost(self, late: timedelta, earned: float) -> tuple[float, str]:
        """Points that are lost, and why; none and an empty text in time."""
        if late <= timedelta(minutes=self.grace_minutes):
            return 0.0, ""
        days = math.ceil(late / timedelta(days=1))
        words = f"{days} day{'s' if days > 1 else ''} late"
        if late > timedelta(days=1) * min(self.closes_after_days, 1e6):
            return earned, f"{words}: closed after {self.closes_after_days:g} days"
        a_day = self.points_per_day or self.percent_per_day
        unit = "points" if self.points_per_day else "%"
        loss = min(days * a_day, self.cap)
        most = "" if math.isinf(self.cap) else f", at most {self.cap:g}"
        points = loss if self.points_per_day else earned * loss / 100
        return min(points, earned), f"{words}: {a_day:g} {unit} a day{most}"


@dataclass(frozen=True)
class Extension:
    """Another due date for one student."""

    student: str
    """Name, id or email."""
    due: datetime


@dataclass(frozen=True)
class Course:
    """What holds for the hand-ins of a lab."""

    roster: str = ""
    """A CSV file with name, id and email.  Paths are from the file's own folder."""
    times: str = ""
    """A CSV file of submission times."""
    due: datetime | None = None
    late: LateRule | None = None
    """None: lateness is shown and costs nothing."""
    extension: tuple[Extension, ...] = ()
    path: Path = field(default=Path(), compare=False)

    def __post_init__(self) -> None:
        for date in filter(None, (self.due, *(each.due for each in self.extension))):
            if date.tzinfo is None:
                raise ValueError(f"due = {date.isoformat()} has no time zone: {date.isoformat()}-08:00")

    def people(self) -> Roster:
        """Its roster; without one it has none."""
        return roster.read(self.path.parent / self.roster) if self.roster else Roster()

    def submissions(self) -> Times:
        """Its submission times."""
        return Times(self.path.parent / self.times if self.times else None, self.due)

    def due_of(self, names: Collection[str]) -> datetime | None:
        """When a student's hand-in is due.

        Args:
            names: all that stands for the student.
        """
        return next((each.due for each in self.extension if each.student in names), self.due)


def read(file: Path) -> Course:
    """The course of a file.

    Raises:
        UsageError: it cannot be read, or describes none; with the line.
    """
    return described(Course, file, "compare/labs/course.py")


def find(folder: Path) -> Course:
    """The course of a class's folder; an empty one where no file describes it."""
    places = (folder / NAME, folder.resolve().parent / NAME)
    return next((read(file) for file in places if file.is_file()), Course())


# --------------------------------------------------------------------------- times


class Times:
    """When students handed in, as a platform exported it."""

    def __init__(self, file: Path | None, due: datetime | None) -> None:
        self._zone = due.tzinfo if due else timezone.utc
        self._lines = tables.read(file) if file else []
        if file and self._lines and not any(name in self._lines[0].cells for name in _SUBMITTED):
            raise UsageError(f"{file}, line 1: no column of submission times: {', '.join(_SUBMITTED)}")

    def _of(self, line: tables.TableLine) -> datetime | None:
        text = line.first(*_SUBMITTED)
        return None if text.lower() in _NONE else _time(text, line.where, self._zone)

    def of(self, base: str, person: Person | None) -> Submission | None:
        """The last time of a student, or of a hand-in with this name."""
        names = {name.casefold() for name in (base, *(person.names if person else ()))}
        times = [
            (time, line.where)
            for line in self._lines
            if names & set(_names(line)) and (time := self._of(line))
        ]
        if not times:
            return None
        time, where = max(times)
        return Submission(time.isoformat(), where)

    def person(self, base: str, people: Roster) -> Person | None:
        """Whose hand-in it is, by the number that Gradescope gives it: ``submission_123``."""
        for line in self._lines:
            number = line.cells.get("submission id", "")
            if number and base == f"submission_{number}":
                persons = (people.find(name) for name in _names(line) if name)
                return next(filter(None, persons), None)
        return None

    def of_name(self, name: str) -> tuple[str, Submission | None]:
        """A hand-in's name without the time at its end, and that time."""
        suffix = _SUFFIX.fullmatch(name)
        digits = "".join(filter(str.isdigit, suffix["date"] + suffix["hour"])) if suffix else ""
        try:
            time = datetime.strptime(digits, "%Y%m%d%H%M")
        except ValueError:
            return name, None
        assert suffix
        time = time.replace(tzinfo=timezone.utc if suffix["utc"] else self._zone)
        return suffix["base"], Submission(time.isoformat(), "the time in its name")

    def of_files(self, path: Path) -> Submission | None:
        """When a file, or the last file of a folder, was written; None: no time that a calendar has."""
        try:
            files = [each for each in path.iterdir() if each.is_file()] if path.is_dir() else [path]
            stamp = max((each.lstat().st_mtime for each in files), default=path.lstat().st_mtime)
            time = datetime.fromtimestamp(int(stamp), self._zone)
        except (OSError, OverflowError, ValueError):
            return None
        return Submission(time.isoformat(), "the time of its files, for want of a better one")


def _time(text: str, where: str, zone: tzinfo | None) -> datetime:
    """A time as a platform writes it.

    Raises:
        UsageError: it is none.
    """
    iso = re.sub(r"Z$", "+00:00", text.strip())
    iso = re.sub(r"\.\d+", "", iso)
    for form in (None, *_FORMATS):
        with suppress(ValueError):
            time = _parsed(form, iso) if form else datetime.fromisoformat(iso)
            return time if time.tzinfo else time.replace(tzinfo=zone)
    raise UsageError(f"{where}: {text!r} is no time: write it as 2026-12-01T23:59:00-08:00")


def _parsed(form: str, text: str) -> datetime:
    time = datetime.strptime(text, form)
    return time.replace(tzinfo=timezone.utc) if form.endswith("UTC") else time


def _names(line: tables.TableLine) -> Iterator[str]:
    """What stands for a student in a line of times."""
    for columns in (roster.ID, roster.EMAIL, roster.NAME):
        yield line.first(*columns).casefold()
    yield f"{line.first(*roster.FIRST)} {line.first(*roster.LAST)}".strip().casefold()


# --------------------------------------------------------------------------- lateness


def with_lateness(marks: Marks, due: datetime | None, rule: LateRule | None) -> Marks:
    """Marks after the late rule: of the hand-ins that they were earned by, the one with the most points.

    A late hand-in adds points at its own price, and never takes away those of an earlier one.
    """
    if due is None or marks.submission is None:
        return marks
    tried = [_late(marks, marks.submission, due, rule)]
    if marks.before:
        tried.append(with_lateness(replace(marks.before, student=marks.student), due, rule))
    return max(tried, key=lambda each: each.points)  # the newest of equals


def _late(marks: Marks, submission: Submission, due: datetime, rule: LateRule | None) -> Marks:
    late = submission.time - due
    lost, why = (
        rule.lost(late, marks.earned) if rule else (0.0, "late: it costs nothing" * (late > timedelta()))
    )
    if why:
        why = f"{why}; handed in {submission.at} ({submission.source}), due {due.isoformat()}"
    return replace(marks, lost=round(lost, 2), late=why)
