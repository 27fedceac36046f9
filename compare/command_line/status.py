"""Exit statuses, each with one meaning; each command's ``--help`` says what it comes to there."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from compare.model.result import WRONG, Comparison

if TYPE_CHECKING:
    from compare.labs.marking import Marks

SUCCESS, FAILURE, USAGE, INCONCLUSIVE = 0, 1, 2, 3
CLOSED_PIPE = 128 + signal.SIGPIPE
"""What a shell gives to a process that a closed pipe ends."""

MEANINGS = {
    SUCCESS: "the answer is good, or what was asked for is done",
    FAILURE: "the answer is bad: wrong, slower, lost, or an error of the code that was asked about",
    USAGE: "no question: a mistake in the command, its files or the machine's setup; a file is not written",
    INCONCLUSIVE: "no answer: interrupted, nothing could run here, or what was measured does not decide",
    4: "of a lab: a submission raised an error or does not compile",
    5: "of a lab: a submission took too long",
    6: "of a lab: a fault of the machine",
    CLOSED_PIPE: "the reader of the output has closed the pipe",
}
"""Of every command.  Only labs tell errors and time-outs from other bad answers, as they are marked apart."""

_OF_RESULT = {
    "machine": 6,
    "timeout": 5,
    "error": 4,
    "refused": FAILURE,
    "wrong": FAILURE,
    "partial": FAILURE,
    "not started": FAILURE,
    "inconclusive": INCONCLUSIVE,
}
"""By a part's result, the weightiest first."""


def worst(statuses: Iterable[int]) -> int:
    """The exit status of a command that did several things; inconclusive if it did none."""
    return max(statuses, key=(SUCCESS, INCONCLUSIVE, FAILURE).index, default=INCONCLUSIVE)


def of(comparison: Comparison, yours: Collection[str] = ()) -> int:
    """0 if every row that ran is correct, 1 if one is wrong or failed, 3 if inconclusive.

    Args:
        comparison: the rows.
        yours: labels from a user's files, each of which has to run on one case at least.
    """
    rows = [row for case in comparison.cases for row in case.rows]
    failed = any(row.status == "failed" and not row.by_judge for row in rows)
    if any(row.status in WRONG for row in rows) or (failed and not comparison.interrupted):
        return FAILURE  # an interrupt may make a row fail, and makes none wrong
    ran = {row.label for row in rows if row.agreement}
    missed = {row.label for row in rows} & set(yours) - ran
    by_judge = any(row.by_judge for row in rows)
    return INCONCLUSIVE if comparison.interrupted or by_judge or not ran or missed else SUCCESS


def of_marks(submissions: Iterable[Marks]) -> int:
    """The exit status of a lab's marks: that of the weightiest result."""
    results = {part.result for marks in submissions for part in marks.parts}
    return next((status for result, status in _OF_RESULT.items() if result in results), SUCCESS)
