"""One student's hand-in, or one test of it, marked again: what comes of it counts, more or less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compare.labs.classroom import MarkingOptions, mark, read_kept, write_kept
from compare.labs.hand_ins import HandIn
from compare.labs.marking import Marks, Part, Say, nothing
from compare.model.op import UsageError

_UNMARKED = "not marked yet: run grade without --regrade"


def regrade(
    hand_ins: Sequence[HandIn], word: str, rubric: Path | None, options: MarkingOptions, keep: Path, say: Say
) -> tuple[list[Marks], bool]:
    """Mark one student's hand-in again; all others' marks are as they were kept.

    Args:
        hand_ins: of the class.
        word: ``STUDENT`` or ``STUDENT:GROUP``: a name, id or email, and a group, task or part.
        rubric, options, say: as of `compare.labs.classroom.mark`.
        keep: where marks are kept.

    Returns:
        Marks in the order of the hand-ins, and whether it was stopped.

    Raises:
        UsageError: there is no such student or group, or no marks of which a group could be replaced.
    """
    student, group = _named(hand_ins, word)
    files = {each: keep / f"{each.key}.json" for each in hand_ins}
    kept = {each: read_kept(file, each.student) for each, file in files.items()}
    old = kept[student]
    if group and old is None:
        raise UsageError(f"--regrade {word}: {student.student} is {_UNMARKED}")
    chosen = {part.name for part in old.parts if not group or _is_of(part, group)} if old else set()
    if old and not chosen:
        names = ", ".join(part.name for part in old.parts)
        raise UsageError(f"--regrade {word}: {student.student} has no such group or part; there are {names}")
    (new,), interrupted = mark([student], rubric, options, None, say)
    if not interrupted:
        whole = _merged(old, chosen, new, say) if old and group else new
        write_kept(files[student], whole, say)
        kept[student] = whole
    return [
        kept[each] or nothing(each.student, _UNMARKED, result="inconclusive") for each in hand_ins
    ], interrupted


def _merged(old: Marks, chosen: set[str], new: Marks, say: Say) -> Marks:
    """``old`` with the chosen parts of ``new``; what is still open there stays as it was."""
    decided = {part.name: part for part in new.parts if part.name in chosen and part.counted}
    for part in old.parts:
        if part.name in chosen:
            points = f"{decided[part.name].points:g}" if part.name in decided else "undecided, as before"
            say(f"{old.student}: {part.name}: {part.points:g} -> {points} of {part.of:g}")
    return _replaced(old, decided)


def _named(hand_ins: Sequence[HandIn], word: str) -> tuple[HandIn, str]:
    """The student of a word, and the group or an empty text; a name may have a colon of its own."""
    for at in [len(word), *(at for at in reversed(range(len(word))) if word[at] == ":")]:
        several = [each for each in hand_ins if word[:at] in each.names]
        if len(several) == 1:
            return several[0], word[at + 1 :].strip()
    raise UsageError(f"--regrade {word}: there is no hand-in of this student")


def _is_of(part: Part, group: str) -> bool:
    task, _, name = part.name.partition(": ")
    return group in (part.name, task, name)


def _replaced(marks: Marks, new: dict[str, Part]) -> Marks:
    """Marks with these parts, those that earlier hand-ins had earned too."""
    parts = tuple(new.get(part.name, part) for part in marks.parts)
    before = _replaced(marks.before, new) if marks.before else None
    return replace(marks, parts=parts, before=before)
