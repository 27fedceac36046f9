"""The times of every row over many runs, from the oldest to the newest: `diff` of three files or more.

The verdict of a row is that of the first file and the last; those between show when it changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from compare.history.diff import Diff, diff, machines, measured
from compare.model.result import Comparison
from compare.records.archive import Key, newest


def trend(files: Sequence[tuple[Path, Sequence[Comparison]]], only: Sequence[str] = ()) -> Diff:
    """What changed from the first file to the last, with each row's median in every file.

    Args:
        files: two or more, each with its runs, the oldest first.
        only: as of `diff`.
    """
    overall = diff(files[0][1], files[-1][1], only)
    rows = [newest(runs) for _, runs in files]

    def median(i: int, key: Key) -> float | None:
        recorded = rows[i].get(key)
        estimate = measured(recorded.row) if recorded and recorded.row.status == "ok" else None
        return estimate.median if estimate else None

    changes = (
        replace(each, history_us=tuple(median(i, (each.op, each.case, each.label)) for i in range(len(rows))))
        for each in overall.changes
    )
    names = _names([path for path, _ in files])
    differences = (
        f"{name}: {line}"
        for name, ((_, old), (_, new)) in zip(names[1:], pairwise(files), strict=True)
        for line in machines(old, new, only)
    )
    return replace(
        overall,
        changes=tuple(changes),
        environment=tuple(dict.fromkeys(differences)),
        files=tuple(f"{name} ({_day(runs)})" for name, (_, runs) in zip(names, files, strict=True)),
        in_order=_in_order([runs for _, runs in files]),
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """Those of files: with their folders where two files have the same name."""
    same = len({path.name for path in paths}) < len(paths)
    return [str(path) if same else path.name for path in paths]


def _day(runs: Sequence[Comparison]) -> str:
    """Of its newest run."""
    return _created(runs)[:10] or "empty"


def _in_order(every: Sequence[Sequence[Comparison]]) -> bool:
    dates = [_created(runs) for runs in every]
    return dates == sorted(dates)


def _created(runs: Sequence[Comparison]) -> str:
    return max((run.created for run in runs), default="")
