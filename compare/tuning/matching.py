"""One implementation run with the configuration of another: ``--matched``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from compare import registry
from compare.spec import Implementation, Row

MATCHED = "matched"
"""Behind a label and a colon: run with the configuration of another."""

_SAME = {"num_warps": "WARPS", "num_stages": "STAGES", "num_ctas": "CLUSTER"}
"""What Triton calls what CUDA's host code has another name for."""
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
_COUNTS = ("WARPS", "STAGES", "THREADS")
_WARP = 32


def registered_as(label: str) -> str:
    """The implementation that a row is of, whatever it is run with."""
    return label.partition(":")[0]


def stand_ins(impls: Sequence[Implementation]) -> list[Implementation]:
    """``impls``, and behind each that matches another of them one to be run with that one's configuration."""
    labels = {impl.label for impl in impls}
    found = []
    for impl in impls:
        found.append(impl)
        if impl.matches in labels:
            found.append(replace(impl, label=f"{impl.label}:{MATCHED}", base=impl.label))
    return found


def configuration(impl: Implementation, row: Row | None) -> dict[str, int]:
    """What ``impl`` runs with: what its search in ``row`` has found, else its defaults.

    Raises:
        NotImplementedError: it tunes itself, and was not seen to.
    """
    if not impl.untuned:
        return registry.keywords(impl.run)
    if row is None or not row.tunings:
        raise NotImplementedError(f"no configuration is known: that of {impl.label} is searched for on a GPU")
    words = _words(row.tunings[-1].found)
    return {name: int(value) for name, value in words.items() if value.isdecimal()}


def matched(stand_in: Implementation, wanted: Mapping[str, int]) -> tuple[Implementation, str, str]:
    """One of `stand_ins` with the nearest to ``wanted`` that it takes; in words, and how it falls short.

    Args:
        stand_in: what is to be run so.
        wanted: the configuration of what it matches, by the names that CUDA's host code has.
    """
    choices = dict(stand_in.tunable)
    if "THREADS" in choices and "WARPS" in wanted:
        wanted = {name: value for name, value in wanted.items() if name != "WARPS"} | {
            "THREADS": wanted["WARPS"] * _WARP
        }
    values, apart = {}, []
    for name, value in wanted.items():
        if name not in choices:
            apart.append(f"{name} {value}, which it does not have")
            continue
        values[name] = min(choices[name], key=partial(_apart, value))
        if values[name] != value:
            apart.append(f"{name} {value}, where it takes {_either(choices[name])}")
    impl = registry.with_parameters(stand_in, stand_in.label, values)
    short = f"as near as it can be to {stand_in.matches}, which has {'; '.join(apart)}" if apart else ""
    return impl, worded(values), short


def _either(values: Sequence[int]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else f"{last} alone"


def _apart(wanted: int, value: int) -> float:
    return abs(math.log2(value / wanted))


def configured(found: str) -> str:
    """A search's result in the words of `worded`, where it is made of names and numbers."""
    words = _words(found)
    if not all(value.isdecimal() for value in words.values()):
        return found
    return worded({name: int(value) for name, value in words.items()})


def _words(found: str) -> dict[str, str]:
    """A search's result by name, as CUDA's host code has it: ``BLOCK_M=128 num_warps=8``."""
    words = (word.partition("=") for word in found.split())
    return {_SAME.get(name, name): value for name, _, value in words}


def worded(values: Mapping[str, int]) -> str:
    """``128x256x64, 8 warps, 3 stages``; what has other names, by name."""
    tile = [str(values[name]) for name in _TILE if name in values]
    said = ["x".join(tile)] if tile else []
    said += [
        f"{value} {name.lower()}" if name in _COUNTS else f"{name}={value}"
        for name, value in values.items()
        if name not in _TILE
    ]
    return ", ".join(said)
