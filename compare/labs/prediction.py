"""Predictions beside what was measured, and how good they were."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.labs.lab import Prediction
from compare.labs.running import Run, run
from compare.model.op import WAYS, Op, UsageError, way_of
from compare.model.result import CaseComparison, Comparison, Row
from compare.timing import figures

BINDING = ("memory", "compute", "neither")
"""What limits the fastest implementation: bandwidth, arithmetic, or latency and launch overhead."""
_STATIC = ("registers", "shared_bytes", "lines", "instruction")
"""Measures of the code: the same on every machine that compiles for an architecture."""
_LARGEST = 1e12
"""Of a prediction: more than any measure reaches."""
CLOSE = 1.1
"""A prediction within this factor scores 1; each further factor of 2 costs 1."""


@dataclass(frozen=True)
class ScoredPrediction:
    """A prediction, and what came of it."""

    prediction: Prediction
    predicted: str | float | None
    """None: not made."""
    measured: str | float | None
    """None: not measured."""
    origin: str
    """Where the measurement is from, or why it is missing."""
    score: float | None
    """0 to 1; None where a side is missing."""


def standard(op: Op) -> tuple[Prediction, ...]:
    """What ``python -m compare predict OP`` asks."""
    case, ways = str(op.cases.default), ", ".join(WAYS)
    fastest = f"Which way is the fastest on {case}: {ways}?"
    speedup = f"The speedup of the fastest implementation vs {op.baseline}, e.g. 1.5?"
    registers = "Registers per thread of the fastest Triton kernel?"
    return (
        Prediction("fastest", fastest, "fastest", case, choices=WAYS),
        Prediction("binding", f"What limits it: {', '.join(BINDING)}?", "binding", case),
        Prediction("speedup", speedup, "speedup", case, against=op.baseline),
        Prediction("registers", registers, "registers", case, label="triton"),
    )


def read(prediction: Prediction, text: str | float) -> str | float:
    """An answer as its measure has it: a choice or a number.

    Raises:
        ValueError: the answer is neither.
    """
    choices = BINDING if prediction.measure == "binding" else prediction.choices
    got = reprlib.repr(text)
    if prediction.measure in ("fastest", "binding", "instruction"):
        if str(text).strip() in choices:
            return str(text).strip()
        raise ValueError(f"{prediction.name}: got {got}, expected one of {', '.join(choices)}")
    try:
        number = float(re.sub(r"\s*(x|us|%|B)$", "", str(text).strip()))
    except ValueError:
        number = math.nan
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"{prediction.name}: got {got}, expected a number from 0 to {_LARGEST:g}")
    return number


def read_all(
    predictions: Sequence[Prediction], answers: Mapping[str, str | float], where: Path
) -> dict[str, str | float]:
    """The answers that there are, `read`; a `UsageError` if one is none, as the file ``where`` has it."""
    try:
        return {each.name: read(each, answers[each.name]) for each in predictions if each.name in answers}
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def outcomes(
    predictions: Sequence[Prediction],
    answers: Mapping[str, str | float],
    default: str,
    device: str,
    timeout_s: float,
) -> list[ScoredPrediction]:
    """Measure what was predicted: one run for each op.

    Args:
        answers: by the prediction's name.
        default: the op of predictions that name none.
    """
    runs: dict[str, Run] = {}
    for op in dict.fromkeys(each.op or default for each in predictions):
        mine = [each for each in predictions if (each.op or default) == op]
        cases = list(dict.fromkeys(each.case for each in mine))
        runs[op] = run(op, cases, _needed(mine), device, timeout_s)
    return [outcome(each, answers.get(each.name), runs[each.op or default]) for each in predictions]


def _needed(predictions: Sequence[Prediction]) -> list[str]:
    """The labels that a run is limited to; none where a prediction is about whole ways.

    ``binding`` is of the fastest of those.
    """
    compared = (choice for each in predictions if each.measure == "fastest" for choice in each.choices)
    named_ones = (label for each in predictions for label in (each.label, each.against))
    labels = [label for label in (*named_ones, *compared) if label]
    named = all(each.label or each.choices or each.measure == "binding" for each in predictions)
    return list(dict.fromkeys(labels)) if named and not set(labels) & set(WAYS) else []


def outcome(prediction: Prediction, answer: str | float | None, done: Run) -> ScoredPrediction:
    """A prediction beside what a run measured."""
    comparison = done.comparison
    case = next((c for c in comparison.cases if c.case == prediction.case), None) if comparison else None
    if comparison is None or case is None:
        return ScoredPrediction(prediction, answer, None, done.error or "the case was not run", None)
    measured, accepted, row = _measured(prediction, comparison, case)
    if measured is None:
        return ScoredPrediction(prediction, answer, None, "not measured here, and no record has it", None)
    origin = "measured now"
    if prediction.measure not in _STATIC:
        origin = f"recorded on {row.recorded}" if row and row.recorded else origin
    elif comparison.environment.device_type != "cuda":
        origin = "counted" if prediction.measure == "lines" else f"compiled for {arch_of(comparison)}"
    score = None if answer is None else _score(answer, measured, accepted)
    return ScoredPrediction(prediction, answer, measured, origin, score)


def arch_of(comparison: Comparison) -> str:
    """This GPU; without one, the newest architecture that was compiled for."""
    archs = {k.arch for case in comparison.cases for row in case.rows for k in row.resources}
    return comparison.environment.arch or max(archs, key=lambda arch: (len(arch), arch), default="")


def _measured(
    prediction: Prediction, comparison: Comparison, case: CaseComparison
) -> tuple[str | float | None, tuple[str, ...], Row | None]:
    """The measurement, other answers that are as good, and the row that it is from."""
    if prediction.measure == "fastest":
        rows = {row.label: choice for row in case.rows for choice in prediction.choices if _is(row, choice)}
        best = figures.fastest(row for row in case.rows if row.label in rows)
        if best is None:
            return None, (), None
        level = [row for row in case.rows if row.label in rows and figures.ratio(row, best)]
        ties = (rows[row.label] for row in level if figures.stands(row) and not figures.differs(row, best))
        return rows[best.label], tuple(dict.fromkeys(ties)), best
    if prediction.measure == "binding":
        best = figures.fastest(case.rows)
        return figures.binding(case), (), best
    row = figures.fastest(row for row in case.rows if not prediction.label or _is(row, prediction.label))
    row = row or next((row for row in case.rows if prediction.label and _is(row, prediction.label)), None)
    return (None, (), None) if row is None else (_figure(prediction, comparison, case, row), (), row)


def _is(row: Row, word: str) -> bool:
    """Whether a row is meant by a label, or belongs to a way."""
    return word in (row.label, way_of(row.label))


def _figure(
    prediction: Prediction, comparison: Comparison, case: CaseComparison, row: Row
) -> float | str | None:
    if prediction.measure in _STATIC:
        figure = static(comparison, row, prediction.measure)
        return figure.partition(".")[0] if isinstance(figure, str) else figure
    if prediction.measure == "speedup":
        other = figures.row_of(case, prediction.against)
        ratio = figures.ratio(row, other) if other else None
        return ratio.median if ratio else None
    if prediction.measure == "share":
        share = figures.share(case, row)
        return None if share is None else 100 * share
    time = figures.cold_us(row)
    return None if time == math.inf else time


def static(comparison: Comparison, row: Row, name: str) -> float | str | None:
    """A figure of a row's code, ``lines`` or ``tokens``, or the largest among its kernels.

    Args:
        name: also a field of `KernelResources`, or ``shared_bytes``; of ``instruction`` the first known one.
    """
    if name in ("lines", "tokens"):
        size = comparison.code_sizes.get(row.label)
        return float(getattr(size, name)) if size else None
    arch = arch_of(comparison)
    kernels = [kernel for kernel in row.resources if kernel.arch == arch]
    if name == "instruction":
        return next((kernel.instruction for kernel in kernels if kernel.instruction), None)
    if name == "shared_bytes":
        values = [k.static_shared_bytes + k.dynamic_shared_bytes for k in kernels]
    else:
        values = [value for kernel in kernels if (value := getattr(kernel, name)) is not None]
    return max(map(float, values), default=None)


def _score(predicted: str | float, measured: str | float, accepted: Sequence[str]) -> float:
    if isinstance(measured, str) or isinstance(predicted, str):
        return float(predicted == measured or predicted in accepted)
    if min(predicted, measured) <= 0:
        return float(predicted == measured)
    factor = max(predicted / measured, measured / predicted)
    return 1.0 if factor <= CLOSE else max(0.0, 1 - math.log2(factor))
