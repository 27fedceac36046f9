"""Small cases that show honest mistakes: each fill and layout, odd and empty sizes, options and ratios."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import torch

from compare.model.op import Case, Op, UsageError

MAX_BYTES = 1 << 20
"""Compulsory traffic of a hard case: milliseconds on any device."""
MAX_FLOPS = 1 << 24


def hard_cases(op: Op) -> list[Case]:
    """The op's own smoke and edge cases that are small, the most unlike ones first."""
    seen: set[tuple[str, object]] = set()
    unlike, alike = [], []
    for case in dict.fromkeys((*op.cases.edge, *op.cases.smoke)):
        if _is_small(op, case):
            traits = {("fill", case.fill), ("layout", case.layout), ("dtype", case.dtype), *case.dims}
            (alike if traits <= seen else unlike).append(case)
            seen |= traits
    return unlike + alike


def _is_small(op: Op, case: Case) -> bool:
    cost = op.cost(case)
    return cost.bytes <= MAX_BYTES and cost.flops <= MAX_FLOPS


def is_valid(op: Op, case: Case) -> bool:
    """Whether the op has inputs for a case: ``D`` may have to be 64, ``Hq`` a multiple of ``Hk``."""
    try:
        op.make_inputs(case, torch.Generator(), torch.device("meta"))
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


def options_of(op: Op, case: Case) -> Iterator[Case]:
    """The case with each option turned: ``causal`` 1 for 0."""
    for name, size in case.dims:
        if size in (0, 1):
            turned = _with(case, name, 1 - size)
            if is_valid(op, turned) and op.options(turned) != op.options(case):
                yield turned


def _odd_near(size: int) -> int:
    return size if size < 4 else min(size, (size - 1 - secrets.randbelow(max(1, size // 8))) // 2 * 2 + 1)


def _with(case: Case, name: str, size: int) -> Case:
    return replace(case, dims=tuple((dim, size if dim == name else old) for dim, old in case.dims))
