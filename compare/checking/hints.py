"""What the cases that an implementation gets wrong have in common: a guess at the mistake, for its author."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from compare.model.op import Case, Op

_FILLS = {
    "huge": "an overflow: are sums kept in fp32?",
    "neg_inf": "rows of -inf, or -inf - (-inf): is NaN or 0 what the reference has there?",
    "nan": "NaN is lost: a comparison or fmaxf drops it",
    "zero": "a division by 0, another eps, or padding that joins a reduction",
}
_LAYOUTS = {
    "padded": "is the stride of a row taken for its length?",
    "transposed": "is the stride of the last dimension taken for 1?",
    "sliced": "is the stride of the last dimension taken for 1?",
    "misaligned": "are vectors loaded at an address that is no multiple of their size?",
    "expanded": "is a stride of 0 ignored?",
}
_LEAST_SCORE = 0.4
"""Of a trait: the share of wrong cases that have it, times the share of wrong ones among all that have it."""
_TILES = (128, 64, 32, 16, 8, 4, 2)
_LONG = (4096, 1024, 256, 64, 32)


Trait = tuple[Callable[[Case], bool], str]


def hint_of(op: Op, passed: Sequence[Case], failed: Sequence[Case]) -> str:
    """The trait that most of ``failed`` and the fewest of ``passed`` have, and what it suggests.

    Empty where no trait is telling.
    """
    if not failed:
        return ""
    traits = list(_traits(op, failed[0], passed))
    pairs = [
        ((lambda case, one=one, two=two: one(case) and two(case)), _both(words, more))
        for (one, words), (two, more) in itertools.combinations(traits, 2)
    ]
    best, hint = _LEAST_SCORE, ""
    for has, words in (*traits, *pairs):
        hits, others = sum(map(has, failed)), sum(map(has, passed))
        score = hits / len(failed) * hits / (hits + others)
        if score > best and others <= len(passed) / 2:  # else it tells right from wrong no better than chance
            best, hint = score, f"{'all' if hits == len(failed) else 'most'} with {words}"
    return hint


def _both(words: str, more: str) -> str:
    """In words, that a case has two traits."""
    (first, _, question), second = words.partition(":"), more.partition(":")[0]
    if words.endswith(_OPTION) and more.endswith(_DIFFER):
        return f"{first} and {second}: is a mask aligned at the other corner?"
    if more.endswith(_TAIL) and not words.endswith((_OPTION, _DIFFER, _TAIL)):
        # A fill or a layout: likelier than the size, which most hard inputs have.
        return f"{first} and {second}:{question}"
    return f"{first} and {more}"


_READ = ": is this option read?"
_OPTION = f"{_READ} A mask: aligned at the right corner, no index off by one?"
_DIFFER = ": is one taken for the other?"
_LATER = ": is a tile behind the first one wrong, or a limit too low?"
_TAIL = ": is the last tile lost (tail), or does its padding join a reduction?"


def _traits(op: Op, case: Case, passed: Sequence[Case]) -> Iterator[Trait]:
    """Traits of a case, the most telling first, each in words.

    An option is no trait if it is read: if three of its values are right.
    """

    def has(value: Callable[[Case], object]) -> Callable[[Case], bool]:
        own = value(case)
        return lambda other: value(other) == own

    if case.fill != "normal":
        yield has(lambda each: each.fill), f"{case.fill} values: {_cause(op, case)}"
        if op.special:
            yield (lambda each: each.fill != "normal"), f"{op.special}: are they handled?"
    if case.layout != "contiguous":
        yield has(lambda each: each.layout), f"{case.layout} inputs: {_meaning(case)}"
        yield has(_meaning), f"{case.layout} and like inputs: {_meaning(case)}"
        yield (
            has(lambda each: each.layout != "contiguous"),
            "strided inputs: are all strides read?",
        )
    if op.is_empty(case):
        yield has(op.is_empty), "empty sizes: a grid of 0 blocks, or nothing to reduce"
    unread = set()
    for name, value in op.options(case).items():
        shown = int(value) if isinstance(value, bool) else value
        if len({_option(op, name, each) for each in passed} - {value}) < 3:
            unread.add(name)
            yield has(partial(_option, op, name)), f"{name}={shown}{_OPTION}"
    for name, many in itertools.product(op.dims, _LONG):
        if case[name] > many:
            yield partial(_is_above, name, many), f"{name} above {many}{_LATER}"
    for first, second in itertools.combinations(op.dims, 2):
        if case[first] != case[second]:
            words = f"{first} other than {second}{_DIFFER}"
            yield has(partial(_differ, first, second)), words
    for name, tile in itertools.product(op.dims, _TILES):
        if case[name] % tile:
            words = f"{name} that is no multiple of {tile}{_READ if name in unread else _TAIL}"
            yield has(partial(_is_partial, name, tile)), words
    yield has(lambda each: each.dtype), f"{case.dtype}: is it loaded or rounded as another dtype?"


def _cause(op: Op, case: Case) -> str:
    """What a kernel of this op may get wrong on a fill."""
    fill = case.fill
    if fill == "huge" and re.search(r"exp\(|\wmax\(", op.summary):
        return "an overflow: is the row maximum subtracted before exp, are sums kept in fp32?"
    if op.tolerance(case).exact and "/" not in op.summary and fill != "nan":  # values are moved
        if fill == "zero":
            return "equal elements: is one lost, or taken twice?"
        return "is padding, or an initial value, taken for an element?"
    return _FILLS[fill]


def _meaning(case: Case) -> str:
    return _LAYOUTS.get(case.layout.rpartition("_")[2], "which strides are read?")


def _option(op: Op, name: str, case: Case) -> object:
    return op.options(case).get(name)


def _differ(first: str, second: str, case: Case) -> bool:
    return case[first] != case[second]


def _is_above(name: str, many: int, case: Case) -> bool:
    return case[name] > many


def _is_partial(name: str, tile: int, case: Case) -> bool:
    return case[name] % tile != 0
