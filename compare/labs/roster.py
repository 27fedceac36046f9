"""The students of a course: a roster, and whose hand-in a file is."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.labs import tables
from compare.labs.work import shown
from compare.model.op import UsageError

# Names of columns, in the order in which they count.
ID = ("id", "sid", "student id", "id number", "sis user id")
EMAIL = ("email", "email address")
NAME = ("name", "full name", "student", "student name")
FIRST, LAST = ("first name", "firstname"), ("last name", "surname", "lastname")
# As Canvas and Moodle call what they export: the student's name, and then only what the platform writes.
_EXPORTED = re.compile(r"(?P<name>[^_]+)_(?:LATE_)?\d+_(?:\d+_.*|assignsubmission_.*)", re.DOTALL)


@dataclass(frozen=True)
class Person:
    name: str
    """As it is shown; unlike all others'."""
    id: str
    email: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All that stands for this student in a file."""
        return tuple(filter(None, (self.name, self.id, self.email)))


class Roster:
    """The students of a course, found by anything that stands for one of them."""

    def __init__(self, people: Sequence[Person] = ()) -> None:
        self.people = tuple(people)
        self._by_word: dict[str, set[Person]] = defaultdict(set)
        for person in people:
            words = {word for text in person.names for word in (_folded(text), _reversed(text))}
            for word in words | {_folded(person.email.partition("@")[0])} - {""}:
                self._by_word[word].add(person)

    def find(self, name: str) -> Person | None:
        """Whose hand-in has this name; None: no student's.

        Raises:
            UsageError: it may be of several.
        """
        exported = _EXPORTED.fullmatch(name)
        for text in (name, exported["name"] if exported else ""):
            people = self._by_word.get(_folded(text), set())
            if len(people) > 1:
                ids = ", ".join(sorted(person.id for person in people))
                raise UsageError(f"{shown(name)} may be of the students {ids}: name it by the id")
            if people:
                return next(iter(people))
        return None


def _folded(text: str) -> str:
    """Letters and digits only, in lower case; of an email address all."""
    return text.casefold() if "@" in text else "".join(filter(str.isalnum, text.casefold()))


def _reversed(name: str) -> str:
    """``leeann`` for Ann Lee, as Canvas has it."""
    first, _, last = name.rpartition(" ")
    return _folded(last + first)


def read(file: Path) -> Roster:
    """The roster of a CSV file: name, id, email; or as Canvas, Moodle or Gradescope export one.

    Raises:
        UsageError: a line has no name or no id, or has another line's; with the line.
    """
    lines: dict[str, tuple[str, tables.TableLine]] = {}
    emails: dict[str, str] = {}
    for line in tables.read(file):
        name = line.first(*NAME) or f"{line.first(*FIRST)} {line.first(*LAST)}".strip()
        key, email = line.first(*ID), line.first(*EMAIL)
        if name.startswith("Points Possible") or not any(line.cells.values()):
            continue
        if not (name and key):
            raise UsageError(f"{line.where}: it needs a name and an id; the first line is name,id,email")
        if key in lines:
            raise UsageError(f"{line.where}: the id {key} stands in {lines[key][1].where}, too")
        if email and email.casefold() in emails:
            raise UsageError(f"{line.where}: {email} stands in {emails[email.casefold()]}, too")
        lines[key] = shown(name), line
        emails[email.casefold()] = line.where
    times = Counter(name for name, _ in lines.values())
    people: dict[str, Person] = {}
    for key, (name, line) in lines.items():
        unique = name if times[name] == 1 else f"{name} ({shown(key)})"
        if unique in people:
            raise UsageError(f"{line.where}: another student is shown as {unique}, too: change the name")
        people[unique] = Person(unique, key, line.first(*EMAIL))
    return Roster(list(people.values()))


def missing(roster: Roster, handed_in: Iterable[Person | None]) -> list[Person]:
    """Students without a hand-in."""
    present = set(handed_in)
    return [person for person in roster.people if person not in present]
