"""What differs between the ways, each with its evidence from what the compilers wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from compare.resources.sass.instruction_mix import mix, multiplications, width_bits
from compare.toolchain.pipeline.records import Opened


@dataclass(frozen=True)
class Difference:
    """One thing that the implementations do not do alike, for one architecture."""

    arch: str
    what: str
    evidence: tuple[str, ...]
    """A line for each way of doing it, which implementations do so, and what shows it."""


def differences(opened: Sequence[Opened]) -> list[Difference]:
    """Between the kernels of one op that came out as machine code, by architecture."""
    found = []
    for arch in dict.fromkeys(one.arch for one in opened):
        here = [one for one in opened if one.arch == arch and one.instructions]
        for what, look in _LOOKED_AT.items():
            kinds = set()
            ways: dict[str, list[str]] = {}
            for one in here:
                kind, said = look(one)
                kinds.add(kind)
                ways.setdefault(said, []).append(_name(one, here))
            if len(kinds) > 1:
                found.append(
                    Difference(arch, what, tuple(_line(names, said) for said, names in ways.items()))
                )
    return found


def _line(names: Sequence[str], said: str) -> str:
    return f"{', '.join(names)}: {said}"


def _name(one: Opened, among: Iterable[Opened]) -> str:
    """The label; with the kernel's name where an implementation has several."""
    several = sum(other.label == one.label for other in among) > 1
    return f"{one.label} ({one.kernel})" if several else one.label


_Seen = tuple[str, str]
"""What kind of thing a kernel does, by which kernels are told apart; and what shows it."""


def _widest_loads(one: Opened) -> _Seen:
    return _widest(one, "LDG", "global loads")


def _widest_stores(one: Opened) -> _Seen:
    return _widest(one, "STG", "global stores")


def _widest(one: Opened, name: str, group: str) -> _Seen:
    moves = [i.opcode for i in one.instructions if i.opcode.partition(".")[0] == name]
    if not moves:
        return "none", "none"
    widest = max(moves, key=width_bits)
    bits = width_bits(widest)
    count = mix(one.instructions)[group][f"{bits} bits"]
    said = f"{bits // 8} bytes ({count} {widest})"
    unknown = _not_known_divisible(one) if bits < 128 else []
    if unknown:
        said += (
            f", and its TTIR does not say that {', '.join(unknown)} "
            f"{'is a multiple' if len(unknown) == 1 else 'are multiples'} of 16"
        )
    return str(bits), said


def _not_known_divisible(one: Opened) -> list[str]:
    """Integers and pointers of a Triton kernel that the compiler may not take to be multiples of 16."""
    ttir = one.stage("ttir")
    head = re.search(r"tt\.func public @\w+\((.*)\) attributes", ttir.text) if ttir else None
    if head is None:
        return []
    arguments = re.findall(r"%(\w+): (!tt\.ptr<\w+>|i32|i64)( \{[^}]*\})?", head[1])
    return [name for name, _, attributes in arguments if "tt.divisibility = 16" not in attributes]


def _multiplies(one: Opened) -> _Seen:
    found = multiplications(instruction.opcode for instruction in one.instructions)
    if not found:
        return "nothing", "nothing"
    kinds = ", ".join(sorted(found))
    return kinds, f"{kinds} ({found.total()} in all)"


def _synchronises(one: Opened) -> _Seen:
    groups = mix(one.instructions)
    found = {**groups.get("barriers", {}), **groups.get("warp", {})}
    return _listed(found)


def _spills(one: Opened) -> _Seen:
    groups = mix(one.instructions)
    loads = sum(groups.get("local loads", {}).values())
    stores = sum(groups.get("local stores", {}).values())
    said = f"{loads} LDL, {stores} STL" if loads + stores else "none"
    return said, said


def _async_copies(one: Opened) -> _Seen:
    return _listed(mix(one.instructions).get("async copies", {}))


def _listed(found: Mapping[str, int]) -> _Seen:
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items())) or "nothing"
    return ", ".join(sorted(found)), said


_LOOKED_AT: dict[str, Callable[[Opened], _Seen]] = {
    "widest load from global memory": _widest_loads,
    "widest store to global memory": _widest_stores,
    "multiplies with": _multiplies,
    "waits for others, or exchanges with them, by": _synchronises,
    "uses local memory, where spills go": _spills,
    "copies asynchronously by": _async_copies,
}
