"""Exit statuses; each command's ``--help`` says what they mean for it.

====  =====================================================================================================
0     the answer is good, or what was asked for is done
1     the answer is bad: wrong, slower, failed
2     no question: a mistake in the command, its files or the machine's setup, or a file cannot be written
3     no answer: what it rests on did not run to its end, or what was measured does not decide
4-6   of `grade`: a student's file raised an error or ran out of time, or the machine failed
141   the reader of the output has closed the pipe: 128 + SIGPIPE, as a shell has it
====  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from compare.model.result import WRONG, Comparison

if TYPE_CHECKING:
    from compare.labs.marking import Marks

SUCCESS, FAILURE, USAGE, INCONCLUSIVE = 0, 1, 2, 3

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
    """0 if every row that ran is correct, 1 if one is wrong, 3 if inconclusive.

    Args:
        comparison: the rows.
        yours: labels from a user's files, each of which has to run on one case at least.
    """
    rows = [row for case in comparison.cases for row in case.rows]
    if any(row.status in WRONG for row in rows):
        return FAILURE
    ran = {row.label for row in rows if row.agreement}
    missed = {row.label for row in rows} & set(yours) - ran
    failed = any(row.status == "failed" for row in rows)
    return INCONCLUSIVE if comparison.interrupted or failed or not ran or missed else SUCCESS


def of_marks(submissions: Iterable[Marks]) -> int:
    """The exit status of a lab's marks: that of the weightiest result."""
    results = {part.result for marks in submissions for part in marks.parts}
    return next((status for result, status in _OF_RESULT.items() if result in results), SUCCESS)
