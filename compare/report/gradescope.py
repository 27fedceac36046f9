"""Gradescope's ``results.json`` (its documentation: Autograder specifications, output format)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from compare.labs.lab import Lab
from compare.labs.marking import Marks, Part
from compare.report.labs import verdict


def results(marks: Marks, labs: Sequence[Lab] = ()) -> str:
    """A submission's results.

    A part that is not counted is no test: Gradescope would show 0 of 0 points as passed.  It is a line of
    the output, unless its group is not shown yet.
    """
    tests = [_test(part) for part in marks.parts if part.counted]
    shown = [part for part in marks.parts if part.visibility == "visible"]
    lines = [f"Marked on {marks.device}." if marks.device else "Nothing of it could be run."]
    lines += [f"Not counted: {part.name}: {verdict(part)}" for part in shown if not part.counted]
    if marks.late:
        lines.append(f"{marks.earned:g} points before the late rule. {marks.late}")
    board = [
        {"name": part.name, "value": round(part.figure, 2), "order": "asc" if part.lowest else "desc"}
        for part in shown
        if part.figure is not None and any(lab.leaderboard for lab in labs)
    ]
    return _dumps(marks.points, lines, tests=tests, **({"leaderboard": board} if board else {}))


def unfinished(reason: str) -> str:
    """Results that say why there are none yet."""
    return _dumps(0.0, [f"The grader has not finished: {reason}"], tests=[])


def _dumps(score: float, lines: Sequence[str], **more: object) -> str:
    return json.dumps({"score": round(score, 2), "output": "\n".join(lines), **more}, indent=1) + "\n"


def _test(part: Part) -> Mapping[str, object]:
    return {
        "name": part.name,
        "score": part.points,
        "max_score": part.of,
        "status": "passed" if part.points else "failed",
        "output": verdict(part),
        "visibility": part.visibility,
    }
