"""Small cases that show honest mistakes: each fill and layout, odd and empty sizes, options and ratios."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations

from compare.capture import meta_inputs
from compare.model.op import Case, Op, UsageError

MAX_BYTES = 1 << 20
"""Compulsory traffic of a hard case: milliseconds on any device."""
MAX_FLOPS = 1 << 24


def hard_cases(op: Op) -> list[Case]:
    """The op's own small smoke and edge cases, and what they lack."""
    own = [case for case in dict.fromkeys((*op.cases.edge, *op.cases.smoke)) if is_small(op, case)]
    return list(dict.fromkeys((*own, *_missing(op, own), *_long(op, own))))


def by_kind(op: Op, dtype: str) -> tuple[list[Case], list[Case]]:
    """The hard cases in two parts: a few that have every trait of any of them; the others.

    Args:
        op: whose cases.
        dtype: which the cases with a trait have, if there are such: a kernel may take no other.

    Each part begins with cases that have the most traits that none before has, the first with one of each
    fill: time may not last for all.
    """
    cases = hard_cases(op)
    full = [case for case in cases if not op.is_empty(case)]
    known: set[object] = set()
    first: list[Case] = []
    for some in (full, cases):
        for candidates in ([case for case in some if case.dtype == dtype], some):
            first += _cover(candidates, {case: _traits(op, case) for case in candidates}, known)
    of_fill = {case.fill: case for case in reversed(first)}
    first = list(dict.fromkeys((*reversed(of_fill.values()), *first)))
    others = [case for case in cases if case not in first]
    pairs = {case: {(case.dtype, case.layout), (case.dtype, case.fill), *case.dims} for case in others}
    return first, list(dict.fromkeys((*_cover(others, pairs, set()), *others)))


def _cover(cases: Sequence[Case], traits: Mapping[Case, Set[object]], known: set[object]) -> Iterator[Case]:
    """The case with most traits that are not in ``known``, which they join; then the next, while any has."""
    while case := max(cases, key=lambda case: len(traits[case] - known), default=None):
        if traits[case] <= known:
            return
        known |= traits[case]
        yield case


def _traits(op: Op, case: Case) -> Set[object]:
    """What a kernel may do wrong by: fill, layout, dtype, options, the kind of each size and their order."""
    sizes = [(name, case[name]) for name in op.dims if name not in op.options(case)]
    # Of each size a magnitude: from 4096 on it takes more than one tile of most kernels.
    kinds = [(name, size if size < 2 else size % 2, size.bit_length() // 4) for name, size in sizes]
    order = [(one, other, (m > n) - (m < n)) for (one, m), (other, n) in combinations(sizes, 2)]
    return {case.fill, case.layout, case.dtype, *op.options(case).items(), *kinds, *order}


def _missing(op: Op, own: list[Case]) -> Iterator[Case]:
    """Each layout and a fill of zeros for each dtype that has none: a kernel may take one dtype only."""
    for dtype in op.dtypes:
        for layout in dict.fromkeys(case.layout for case in own):
            if not any(case.dtype == dtype and case.layout == layout for case in own):
                yield replace(next(case for case in own if case.layout == layout), dtype=dtype)
        of_fill = next((case for case in own if case.fill in ("nan", "neg_inf")), None)
        if of_fill and not any(case.dtype == dtype and case.fill == "zero" for case in own):
            yield replace(of_fill, dtype=dtype, fill="zero")


_LONG = 1061
"""More rows or tiles than a persistent kernel has blocks on any GPU: its loop iterates."""


def _long(op: Op, own: list[Case]) -> Iterator[Case]:
    """A case for each size that is always less than `_LONG`; with a single one up to the limit."""
    if op.cost(op.cases.default).compute_bound:  # as many programs take minutes in Triton's interpreter
        return
    plain = [case for case in own if case.fill == "normal" and case.layout == "contiguous"]
    plain = [case for case in plain if all(x.numel() for x in meta_inputs(op, case))]
    # Of the first dtype, which most kernels take, and with few sizes of 0 or 1.
    plain.sort(key=lambda case: (op.dtypes.index(case.dtype), sum(size < 2 for size in case.shape)))
    for name in op.dims:
        largest = max(case[name] for case in plain)
        for case in plain:
            changed = _with(case, name, _LONG if len(op.dims) > 1 else _largest(op, case, name))
            if changed[name] > 2 * largest and is_small(op, changed) and is_valid(op, changed):
                yield changed
                break


def _largest(op: Op, case: Case, name: str) -> int:
    """The largest odd size of a dimension with which the case is small."""
    size = 1
    while is_small(op, _with(case, name, 2 * size + 1)):
        size = 2 * size + 1
    return size


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
