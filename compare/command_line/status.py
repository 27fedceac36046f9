"""Exit statuses; each command's ``--help`` has their meaning."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from compare.spec import WRONG, Comparison

SUCCESS, FAILURE, USAGE, INCONCLUSIVE = 0, 1, 2, 3

_SEVERITY = (SUCCESS, INCONCLUSIVE, FAILURE)


def worst(statuses: Iterable[int]) -> int:
    """The exit status of a command that did several things; inconclusive if it did none."""
    return max(statuses, key=_SEVERITY.index, default=INCONCLUSIVE)


def of(comparison: Comparison, yours: Collection[str] = ()) -> int:
    """0 if every row that ran is correct, 1 if one is wrong, 3 if inconclusive.

    Args:
        comparison: the rows.
        yours: labels from a user's files, each of which has to run on one case at least.
    """
    rows = [row for case in comparison.cases for row in case.rows]
    if any(row.status in WRONG for row in rows):
        return FAILURE
    checked = any(row.agreement for row in rows)
    failed = any(row.status == "failed" for row in rows)
    ran = {row.label for row in rows if row.agreement}
    missed = {row.label for row in rows} & set(yours) - ran
    return INCONCLUSIVE if comparison.interrupted or failed or not checked or missed else SUCCESS
