"""A case that a CPU would check for minutes, shortened: its first dimensions smaller, the rest unchanged."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from compare.capture import meta_inputs
from compare.model.op import Case, Op, UsageError

_BYTES_A_SECOND = 200_000
"""Of memory traffic, in the check of an implementation by one core: Triton's interpreter, or fibers."""
_FLOPS_A_BYTE = 8
"""So many operations take as long as a byte."""
LONGEST_S = 80.0
"""Of one core: with two, the answer is there within a minute."""
_BYTES_A_ROW = 1_000
"""A row, or image, of the first input takes as long as so many bytes, however short: a program of its own."""
_LEAST_FIRST, _LEAST = 8, 128
"""The least size of the first dimension, which counts rows or images, and of the others."""


def seconds(op: Op, case: Case, implementations: int) -> float:
    """About how long one core checks a case."""
    cost = op.cost(case)
    shape = meta_inputs(op, case)[0].shape
    rows = shape[0] if len(shape) > 1 else 1
    work = max(cost.bytes, cost.flops / _FLOPS_A_BYTE, rows * _BYTES_A_ROW)
    return implementations * work / _BYTES_A_SECOND


def shortened(op: Op, case: Case, implementations: int) -> Case | None:
    """The case if its check is quick, else with dimensions halved until it is; None where it never is.

    A size keeps its remainder, so what is odd, or not a multiple of 128, stays so.
    """
    for name, _ in case.dims:
        least = _LEAST_FIRST if name == case.dims[0][0] else _LEAST
        while seconds(op, case, implementations) > LONGEST_S:
            size = case[name]
            half = max(least, size // 2 // least * least) + size % least
            dims = tuple((dim, half if dim == name else of_dim) for dim, of_dim in case.dims)
            smaller = replace(case, dims=dims)
            if half >= size or not _has_inputs(op, smaller):
                break
            case = smaller
    return case if seconds(op, case, implementations) <= LONGEST_S else None


def _has_inputs(op: Op, case: Case) -> bool:
    with suppress(UsageError):
        meta_inputs(op, case)
        return True
    return False
