"""What differs between the ways, each with its evidence from what the compilers wrote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from compare.pipeline.records import Opened
from compare.resources.sass.instruction_mix import classified, mix, multiplications, width_bits


@dataclass(frozen=True)
class Difference:
    """One thing that the implementations do not do alike, for one architecture."""

    arch: str
    what: str
    evidence: tuple[str, ...]
    """A line for each way of doing it, which implementations do so, and what shows it."""


def differences(opened: Sequence[Opened]) -> list[Difference]:
    """Between the kernels of one op that came out as machine code, by architecture."""
    different = []
    for arch in dict.fromkeys(one.arch for one in opened):
        here = [one for one in opened if one.arch == arch and one.instructions]
        for what, trait_of in _TRAITS.items():
            names: dict[_Trait, list[str]] = {}
            for one in here:
                names.setdefault(trait_of(one), []).append(_name(one, here))
            if len({kind for kind, _ in names}) > 1:
                evidence = tuple(f"{', '.join(labels)}: {text}" for (_, text), labels in names.items())
                different.append(Difference(arch, what, evidence))
    return different


def kinds(one: Opened) -> dict[str, str]:
    """By what kernels may differ in, the kind of thing that this one does."""
    return {what: trait_of(one)[0] for what, trait_of in _TRAITS.items()}


def _name(one: Opened, among: Iterable[Opened]) -> str:
    """The label; with the kernel's name where an implementation has several."""
    several = sum(other.label == one.label for other in among) > 1
    return f"{one.label} ({one.kernel})" if several else one.label


_Trait = tuple[str, str]
"""What kind of thing a kernel does, by which kernels are told apart; and what shows it."""


def _widest(group: str, one: Opened) -> _Trait:
    moves = [i.opcode for i in one.instructions if classified(i)[0] == group]
    if not moves:
        return "none", "none"
    if by_tma := [opcode for opcode in moves if opcode.startswith("U")]:
        return "TMA", f"by TMA ({_counted(Counter(by_tma))})"
    bits = max(map(width_bits, moves))
    widest = Counter(opcode for opcode in moves if width_bits(opcode) == bits)
    text = f"{bits // 8} bytes ({_counted(widest)})"
    unknown = _not_known_divisible(one) if bits < 128 else []
    if unknown:
        multiples = "is a multiple" if len(unknown) == 1 else "are multiples"
        text += f", and its TTIR does not say that {', '.join(unknown)} {multiples} of 16"
    return str(bits), text


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items()))


def _not_known_divisible(one: Opened) -> list[str]:
    """Integers and pointers of a Triton kernel that the compiler may not take to be multiples of 16."""
    ttir = one.stage("ttir")
    head = re.search(r"tt\.func public @\w+\((.*)\) attributes", ttir.text) if ttir else None
    if head is None:
        return []
    arguments = re.findall(r"%(\w+): (!tt\.ptr<\w+>|i32|i64)( \{[^}]*\})?", head[1])
    return [name for name, _, attributes in arguments if "tt.divisibility = 16" not in attributes]


def _spills(one: Opened) -> _Trait:
    groups = mix(one.instructions)
    loads, stores = (sum(groups.get(name, {}).values()) for name in ("local loads", "local stores"))
    text = f"{loads} LDL, {stores} STL" if loads + stores else "none"
    return text, text


def _waits(one: Opened) -> _Trait:
    return _kinds(kind for group, kind in map(classified, one.instructions) if group in ("barriers", "warp"))


def _copies(one: Opened) -> _Trait:
    """The copies, and what commits and awaits them."""
    return _kinds(
        i.opcode.partition(".")[0]
        for i in one.instructions
        if i.opcode.startswith("LDGSTS") or classified(i)[1] == "TMA" or classified(i)[0] == "async copies"
    )


def _kinds(names: Iterable[str]) -> _Trait:
    counts = Counter(names)
    return ", ".join(sorted(counts)), _counted(counts) or "none"


_TRAITS: dict[str, Callable[[Opened], _Trait]] = {
    "widest load from global memory": partial(_widest, "global loads"),
    "widest store to global memory": partial(_widest, "global stores"),
    "multiplies with": lambda one: _kinds(multiplications(one.instructions).elements()),
    "synchronizes and exchanges by": _waits,
    "local memory (spills)": _spills,
    "asynchronous copies": _copies,
}
