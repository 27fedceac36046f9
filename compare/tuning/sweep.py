"""Implementations run with other values of what can be chosen of them: ``--tune BLOCK_SIZE``.

What can be chosen is declared where an implementation registers (``tunable``).  Every choice of values is a
row of its own, behind the row with the defaults, which all of them are held against.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from compare import registry
from compare.spec import Implementation, UsageError

Asked = tuple[str, tuple[int, ...]]
"""A parameter, and the values that it is to have; none: all that are declared."""
Values = tuple[tuple[str, int], ...]

MOST = 32
"""Rows that may be added: each has a process of its own, and all of them take turns."""


@dataclass(frozen=True)
class Trials:
    impls: tuple[Implementation, ...]
    """Behind each that has what was asked for, itself with other values."""
    parameters: Mapping[str, Values]
    """By label: what a row runs with, of what was asked for."""
    notes: Mapping[str, str]
    """By label: why a row has no other values."""

    @property
    def count(self) -> int:
        """How many rows were added."""
        return sum(1 for impl in self.impls if impl.base)


def parse(texts: Sequence[str]) -> tuple[Asked, ...]:
    """Read what was given to ``--tune``: ``BLOCK_SIZE``, or ``BLOCK_SIZE=64,128``.

    Raises:
        UsageError: it is not of that form, or a parameter is given twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, listed = (part.strip() for part in text.partition("="))
        values = [value.strip() for value in listed.split(",")] if equals else []
        # With more digits no kernel takes it, and with thousands int does not.
        if not name.isidentifier() or not all(re.fullmatch("[0-9]{1,18}", value) for value in values):
            raise UsageError(f"--tune {text:.80}: write --tune BLOCK_SIZE, or --tune BLOCK_SIZE=64,128")
        if name in found:
            raise UsageError(f"--tune {name} is given twice; give it once, with all values")
        found[name] = tuple(dict.fromkeys(map(int, values)))
    return tuple(found.items())


def trials(
    impls: Sequence[Implementation], asked: Sequence[Asked], among: Collection[str], keep: Collection[str]
) -> Trials:
    """What is run for ``--tune``: of several parameters, every choice of values for those that it has.

    Args:
        impls: all of an op.
        asked: by `parse`.
        among: labels of those that may be rows.
        keep: labels of those that are rows even if they have none of the parameters.

    Raises:
        UsageError: nobody has a parameter, there is nothing to choose, or there are more than `MOST` choices.
    """
    chosen = [impl for impl in impls if impl.label in among]
    for name, _ in asked:
        if not any(name in dict(impl.tunable) for impl in chosen):
            raise UsageError(f"--tune {name}: {_nobody_has(name, impls, chosen)}")
    found: list[Implementation] = []
    parameters: dict[str, Values] = {}
    notes: dict[str, str] = {}
    for impl in chosen:
        declaring = _declaring(impl, impls)
        names = [name for name, _ in asked if name in dict(declaring.tunable)]
        if names or impl.label in keep:
            found.append(impl)
        if not names:
            continue
        parameters[impl.label] = _defaults(declaring, names)
        if declaring is not impl:
            notes[impl.label] = (
                f"its {' and '.join(names)} cannot be chosen: its host code in C++ has it as a constant, "
                f"fixed when that is compiled. {declaring.label} launches the same kernel with other values"
            )
            continue
        for values in _choices(impl, names, dict(asked), notes):
            if values != parameters[impl.label]:
                label = f"{impl.label}:{worded(values)}"
                other = registry.with_parameters(impl, label, dict(values))
                found.append(replace(other, untuned="", matches=""))
                parameters[label] = values
    made = Trials(tuple(found), parameters, notes)
    _check_count(made.count)
    if not made.count:
        why = "; ".join(f"{label}: {note}" for label, note in notes.items()) or "these are the defaults"
        raise UsageError(f"--tune {' '.join(name for name, _ in asked)}: nothing to try, {why}")
    return made


def worded(values: Values) -> str:
    """``BLOCK_SIZE=128,WARPS=8``"""
    return ",".join(f"{name}={value}" for name, value in values)


def _declaring(impl: Implementation, impls: Sequence[Implementation]) -> Implementation:
    """Itself; for one through pybind11 that declares nothing, the one through cupy of the same kernel."""
    if impl.route != "pybind" or impl.tunable:
        return impl
    return registry.through_cupy(impl, impls) or impl


def _defaults(impl: Implementation, names: Sequence[str]) -> Values:
    """What it runs with otherwise; what it has no parameter for has one value."""
    taking, declared = registry.keywords(impl.run), dict(impl.tunable)
    return tuple((name, taking.get(name, declared[name][0])) for name in names)


def _choices(
    impl: Implementation, names: Sequence[str], asked: Mapping[str, tuple[int, ...]], notes: dict[str, str]
) -> list[Values]:
    """Every choice of values, smallest first; what is fixed of it is noted where more was asked for."""
    taking, declared = registry.keywords(impl.run), dict(impl.tunable)
    each: list[Sequence[int]] = []
    for name in names:
        wanted = asked[name] or declared[name]
        if name not in taking:
            if set(wanted) != set(declared[name]) or len(names) == 1:
                notes[impl.label] = f"its {name} is {declared[name][0]} and nothing else"
            wanted = declared[name]
        each.append(sorted(wanted))
    _check_count(math.prod(map(len, each)) - 1)
    return [tuple(zip(names, values, strict=True)) for values in itertools.product(*each)]


def _check_count(count: int) -> None:
    if count > MOST:
        raise UsageError(
            f"--tune: that makes {count} rows or more, and at most {MOST} are added. Give fewer "
            "values (--tune NAME=64,128), or fewer implementations (--only)"
        )


def _nobody_has(name: str, impls: Sequence[Implementation], chosen: Sequence[Implementation]) -> str:
    """Why it is no parameter, and what is one, of whom."""
    op = impls[0].op
    owners: dict[str, list[str]] = {}
    for impl in impls:
        for other, _ in impl.tunable:
            owners.setdefault(other, []).append(impl.label)
    if not owners:
        return (
            f"the implementations of {op} declare nothing that can be chosen (tunable=, compare/registry.py)"
        )
    there = "; ".join(f"{other} of {', '.join(labels)}" for other, labels in owners.items())
    asked = f"none of {', '.join(impl.label for impl in chosen)} has" if name in owners else f"{op} has no"
    return f"{asked} {'it' if name in owners else 'such parameter'}. What can be chosen: {there}"
