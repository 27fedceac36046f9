"""``--matched``: one implementation run with the configuration of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from compare import registry
from compare.model.op import Implementation
from compare.model.result import Row

MATCHED = "matched"
"""Suffix of a label, after a colon: run with the configuration of another."""

_SAME = {"num_warps": "WARPS", "num_stages": "STAGES", "num_ctas": "CLUSTER"}
"""Triton's parameter names, with those of CUDA's host code."""
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
_COUNTS = ("WARPS", "STAGES", "THREADS")
_WARP = 32


def registered_as(label: str) -> str:
    """A row's label without its configuration: that of the registered implementation."""
    return label.partition(":")[0]


def stand_ins(impls: Sequence[Implementation]) -> list[Implementation]:
    """``impls``, each that matches another of them followed by a copy labelled ``:matched``."""
    labels = {impl.label for impl in impls}
    found = []
    for impl in impls:
        found.append(impl)
        if impl.matches in labels:
            found.append(replace(impl, label=f"{impl.label}:{MATCHED}", base=impl.label))
    return found


def configuration(impl: Implementation, row: Row | None) -> dict[str, int]:
    """The parameters of ``impl``: those that its search in ``row`` found, else its defaults.

    Raises:
        NotImplementedError: it is autotuned, and no search was made.
    """
    if not impl.untuned:
        return registry.keywords(impl.run)
    if row is None or not row.configuration.tunings:
        raise NotImplementedError(f"no configuration of {impl.label} is known: finding one needs a GPU")
    words = _words(row.configuration.tunings[-1].found)
    return {name: int(value) for name, value in words.items() if value.isdecimal()}


def matched(stand_in: Implementation, wanted: Mapping[str, int]) -> tuple[Implementation, str, str]:
    """A stand-in with its configuration nearest to ``wanted``; that in words; and the differences in words.

    Args:
        stand_in: one of `stand_ins`.
        wanted: the configuration to match, by the parameter names of CUDA's host code.
    """
    choices = dict(stand_in.tunable)
    if "THREADS" in choices and "WARPS" in wanted:
        wanted = {name: value for name, value in wanted.items() if name != "WARPS"} | {
            "THREADS": wanted["WARPS"] * _WARP
        }
    values, apart = {}, []
    for name, value in wanted.items():
        if name not in choices:
            apart.append(f"{name} {value} (this has none)")
            continue
        values[name] = min(choices[name], key=partial(_apart, value))
        if values[name] != value:
            apart.append(f"{name} {value} (this takes {_either(choices[name])})")
    impl = registry.with_parameters(stand_in, stand_in.label, values)
    short = f"nearest configuration to that of {stand_in.matches}: {'; '.join(apart)}" if apart else ""
    return impl, worded(values), short


def _either(values: Sequence[int]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else f"only {last}"


def _apart(wanted: int, value: int) -> float:
    return abs(math.log2(value / wanted))


def configured(found: str) -> str:
    """A search's result as `worded` writes it; unchanged where it is not made of names and numbers."""
    words = _words(found)
    if not all(value.isdecimal() for value in words.values()):
        return found
    return worded({name: int(value) for name, value in words.items()})


def _words(found: str) -> dict[str, str]:
    """A search's result (``BLOCK_M=128 num_warps=8``) by the parameter names of CUDA's host code."""
    words = (word.partition("=") for word in found.split())
    return {_SAME.get(name, name): value for name, _, value in words}


def worded(values: Mapping[str, int]) -> str:
    """``128x256x64, 8 warps, 3 stages``; other parameters as ``NAME=8``."""
    tile = [str(values[name]) for name in _TILE if name in values]
    said = ["x".join(tile)] if tile else []
    said += [
        f"{value} {name.lower()}" if name in _COUNTS else f"{name}={value}"
        for name, value in values.items()
        if name not in _TILE
    ]
    return ", ".join(said)
