"""``--tune BLOCK_SIZE``: implementations run with other values of their parameters.

An implementation declares its parameters where it registers (``tunable``).  Every combination of values is a
row, after the row with the defaults.  The defaults are their reference.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from compare import registry
from compare.model.op import Implementation, UsageError

Asked = tuple[str, tuple[int, ...]]
"""A parameter and the values to try; none: all declared ones."""
Values = tuple[tuple[str, int], ...]

MOST = 64
"""Most rows added: each has its own process, and every round samples all of them."""


@dataclass(frozen=True)
class Trials:
    impls: tuple[Implementation, ...]
    """Each implementation with a requested parameter, followed by copies with other values."""
    parameters: Mapping[str, Values]
    """By label: a row's values of the requested parameters."""
    notes: Mapping[str, str]
    """By label: why a row has no other values."""

    @property
    def count(self) -> int:
        """Number of rows added."""
        return sum(1 for impl in self.impls if impl.base)


def parse(texts: Sequence[str]) -> tuple[Asked, ...]:
    """The arguments of ``--tune``: ``BLOCK_SIZE``, or ``BLOCK_SIZE=64,128``.

    Raises:
        UsageError: it is not of that form, or a parameter is given twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, listed = (part.strip() for part in text.partition("="))
        values = [value.strip() for value in listed.split(",")] if equals else []
        # No kernel takes more digits, and int() refuses thousands of them.
        if not name.isidentifier() or not all(re.fullmatch("[0-9]{1,18}", value) for value in values):
            raise UsageError(f"--tune {text:.80}: write --tune BLOCK_SIZE, or --tune BLOCK_SIZE=64,128")
        if name in found:
            raise UsageError(f"--tune {name} is given twice; give it once, with all values")
        found[name] = tuple(dict.fromkeys(map(int, values)))
    return tuple(found.items())


def trials(
    impls: Sequence[Implementation], asked: Sequence[Asked], among: Collection[str], keep: Collection[str]
) -> Trials:
    """The rows of ``--tune``: for each implementation, every combination of values of its parameters.

    Args:
        impls: all of an op.
        asked: by `parse`.
        among: labels of possible rows.
        keep: labels that stay rows even without any of the parameters.

    Raises:
        UsageError: no implementation has a parameter, there is no other value, or there are more than `MOST`
            combinations.
    """
    chosen = [impl for impl in impls if impl.label in among]
    for name, _ in asked:
        if not any(name in dict(impl.tunable) for impl in chosen):
            raise UsageError(f"--tune {name}: {_missing(name, impls, chosen)}")
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
                f"its C++ is compiled for the default of {' and '.join(names)}. "
                f"{declaring.label} launches the same kernel with other values"
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
        raise UsageError(f"--tune {' '.join(name for name, _ in asked)}: no other value to try: {why}")
    return made


def worded(values: Values) -> str:
    """``BLOCK_SIZE=128,WARPS=8``"""
    return ",".join(f"{name}={value}" for name, value in values)


def _declaring(impl: Implementation, impls: Sequence[Implementation]) -> Implementation:
    """``impl``; for pybind without parameters of its own, the cupy implementation of the same kernel."""
    if impl.route != "pybind" or impl.tunable:
        return impl
    return registry.through_cupy(impl, impls) or impl


def _defaults(impl: Implementation, names: Sequence[str]) -> Values:
    """The default values; a constant that is no parameter has one declared value."""
    taking, declared = registry.keywords(impl.run), dict(impl.tunable)
    return tuple((name, taking.get(name, declared[name][0])) for name in names)


def _choices(
    impl: Implementation, names: Sequence[str], asked: Mapping[str, tuple[int, ...]], notes: dict[str, str]
) -> list[Values]:
    """Every combination of values, smallest first; adds a note where a constant was asked to change."""
    taking, declared = registry.keywords(impl.run), dict(impl.tunable)
    each: list[Sequence[int]] = []
    for name in names:
        wanted = asked[name] or declared[name]
        if name not in taking:
            if set(wanted) != set(declared[name]) or len(names) == 1:
                notes[impl.label] = f"its {name} is always {declared[name][0]}"
            wanted = declared[name]
        each.append(sorted(wanted))
    _check_count(math.prod(map(len, each)) - 1)
    return [tuple(zip(names, values, strict=True)) for values in itertools.product(*each)]


def _check_count(count: int) -> None:
    if count > MOST:
        raise UsageError(
            f"--tune: that makes at least {count} rows, and {MOST} are the limit. Give fewer values "
            "(--tune NAME=64,128), or fewer implementations (--only)"
        )


def _missing(name: str, impls: Sequence[Implementation], chosen: Sequence[Implementation]) -> str:
    """Which implementations lack the parameter, and the parameters that exist with their implementations."""
    op = impls[0].op
    owners: dict[str, list[str]] = {}
    for impl in impls:
        for other, _ in impl.tunable:
            owners.setdefault(other, []).append(impl.label)
    if not owners:
        return f"the implementations of {op} declare no parameters (tunable=, compare/registry.py)"
    there = "; ".join(f"{other} of {', '.join(labels)}" for other, labels in owners.items())
    labels = ", ".join(impl.label for impl in chosen)
    lacking = f"none of {labels} has it" if name in owners else f"{op} has no such parameter"
    return f"{lacking}. Parameters: {there}"
