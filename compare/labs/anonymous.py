"""Hand-ins under other names: a keyed hash of each student, which only the key's owner can join back."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from compare.labs import tables
from compare.labs.hand_ins import HandIn
from compare.labs.marking import Marks, Submission
from compare.labs.roster import Person
from compare.model.op import UsageError
from compare.records.encoding import write_whole
from compare.records.reading import read_text

KEY, TABLE = "anonymous.key", "anonymous.csv"
"""In the folder of kept marks: the key, and whose each name is.  Neither is for those who may not know."""
_DIGITS = 12
_KEY_BYTES = 32
_SHORTEST = 3
"""A shorter name is part of other words and numbers."""


class Aliases:
    """Other names for students, the same in every run with one key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file = folder / KEY
        if not file.exists():
            _write_private(file, secrets.token_hex(_KEY_BYTES) + "\n")
        text = read_text(file).strip()
        if not re.fullmatch(rf"[0-9a-f]{{{2 * _KEY_BYTES}}}", text):
            raise UsageError(f"{file}, line 1: it is no key of {_KEY_BYTES} bytes. Restore it, or remove it")
        self._key = bytes.fromhex(text)

    def of(self, name: str) -> str:
        """The other name of a student, by the id or the hand-in's name."""
        return "s" + hmac.digest(self._key, name.encode(errors="surrogateescape"), "sha256").hex()[:_DIGITS]

    def of_hand_in(self, hand_in: HandIn) -> str:
        return self.of(hand_in.person.id if hand_in.person else hand_in.base)

    def renamed(self, hand_ins: Sequence[HandIn], people: Iterable[Person]) -> list[HandIn]:
        """Hand-ins under their other names; writes the table of these, and of the whole roster."""
        of = {
            self.of_hand_in(each): (each.student, each.person.id if each.person else "") for each in hand_ins
        }
        of |= {self.of(person.id): (person.name, person.id) for person in people}
        rows = [{"alias": alias, "student": name, "id": key} for alias, (name, key) in of.items()]
        _write_private(self._folder / TABLE, tables.dumps(rows, ("alias", "student", "id")))
        return [
            replace(each, student=self.of_hand_in(each), listed=_unnumbered(each.listed)) for each in hand_ins
        ]


def _unnumbered(submission: Submission | None) -> Submission | None:
    """Without the line, whose number tells the student."""
    return replace(submission, source="the list of times") if submission else None


def _write_private(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    write_whole(file, text)


def hider(hand_ins: Iterable[HandIn]) -> Callable[[str], str]:
    """A function that puts the other names of students in place of their own, as in the path of a file."""
    of = {name: each.student for each in hand_ins for name in each.names if len(name) >= _SHORTEST}
    if not of:
        return lambda text: text
    longest_first = "|".join(re.escape(name) for name in sorted(of, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\w)(?:{longest_first})(?!\w)")
    return lambda text: pattern.sub(lambda match: of[match[0]], text)


def hidden(marks: Marks, hide: Callable[[str], str]) -> Marks:
    """Marks whose words name no student, but for those that the student wrote."""
    parts = tuple(replace(part, detail=hide(part.detail)) for part in marks.parts)
    return replace(marks, id="", email="", late=hide(marks.late), parts=parts, before=None)
