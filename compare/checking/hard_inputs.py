"""Small cases that show honest mistakes: each fill and layout, odd and empty sizes, options and ratios."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

from compare.capture import meta_inputs
from compare.model.op import Case, Op, UsageError

MAX_BYTES = 1 << 20
"""Compulsory traffic of a hard case: milliseconds on any device."""
MAX_FLOPS = 1 << 24


def hard_cases(op: Op) -> list[Case]:
    """The op's own smoke and edge cases that are small, the most unlike ones first."""
    seen: set[tuple[str, object]] = set()
    unlike: list[Case] = []
    alike: list[Case] = []
    for case in dict.fromkeys((*op.cases.edge, *op.cases.smoke)):
        if is_small(op, case):
            traits = {("fill", case.fill), ("layout", case.layout), ("dtype", case.dtype), *case.dims}
            (alike if traits <= seen else unlike).append(case)
            seen |= traits
    return unlike + alike


def is_small(op: Op, case: Case) -> bool:
    """Whether a check takes milliseconds."""
    cost = op.cost(case)
    return cost.bytes <= MAX_BYTES and cost.flops <= MAX_FLOPS


def is_valid(op: Op, case: Case) -> bool:
    """Whether the op has inputs for a case: ``D`` may have to be 64, ``Hq`` a multiple of ``Hk``."""
    try:
        meta_inputs(op, case)
    except UsageError:
        return False
    return True


def neighbour(op: Op, case: Case) -> Case:
    """The case with as many sizes as may be replaced by random odd ones, at most an eighth smaller."""
    for name, size in case.dims:
        changed = _with(case, name, _odd_near(size))
        if changed != case and is_valid(op, changed):
            case = changed
    return case


def variants(op: Op, case: Case) -> Iterator[Case]:
    """The case with one size changed at a time: half, twice, odd; each option turned, ``causal`` 1 for 0."""
    for name, size in case.dims:
        for other in (1 - size,) if size in (0, 1) else (size // 2, 2 * size, _odd_near(size)):
            changed = _with(case, name, other)
            if changed != case and is_small(op, changed) and is_valid(op, changed):
                yield changed


def _odd_near(size: int) -> int:
    return size if size < 4 else min(size, (size - 1 - secrets.randbelow(max(1, size // 8))) // 2 * 2 + 1)


def _with(case: Case, name: str, size: int) -> Case:
    return replace(case, dims=tuple((dim, size if dim == name else old) for dim, old in case.dims))
