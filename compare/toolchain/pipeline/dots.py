"""What becomes of ``tt.dot``: the pass that chose the unit, and the instruction that multiplies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compare.resources.sass.instruction_mix import multiplications
from compare.toolchain.pipeline.records import Followed, Opened, Pass
from compare.toolchain.pipeline.tracing import mlir

_DOT = re.compile(
    r"(?:= |^\s*)(tt\.dot(?:_scaled)?|ttng\.warp_group_dot|ttng\.tc(?:_)?gen5_mma(?:_scaled)?) (.*)"
)
_LAYOUT = re.compile(r"^(#\w+) = #\w+\.(\w+)<\{(.*)\}>$", re.MULTILINE)
_PTX = ("wgmma.mma_async", "tcgen05.mma", "mma.sync", "fma.rn")
"""Instructions that multiply in PTX, the fastest first."""

_UNITS = {
    "warp group": "by a warp group, from shared memory (wgmma)",
    "warp": "by a warp (mma.sync)",
    "generation 5": "by tensor cores of the fifth generation, in tensor memory (tcgen05)",
}


@dataclass(frozen=True)
class _Dot:
    """How a module multiplies at one place."""

    op: str
    layout: str
    """The result's, as it is defined; empty before there are layouts."""
    dtype: str
    """Of the operands."""
    tf32: bool = False
    """Whether they may be rounded to TF32."""

    @property
    def unit(self) -> str:
        if self.op.startswith(("ttng.tc_gen5", "ttng.tcgen5")):
            return _UNITS["generation 5"]
        if self.op == "ttng.warp_group_dot":
            return _UNITS["warp group"]
        return _UNITS["warp"] if "nvidia_mma" in self.layout else ""


def followed(opened: Opened, passes: Sequence[Pass]) -> Followed | None:
    """What a kernel's ``tt.dot`` became; None for a kernel that has none, or has not come as far as TTGIR.

    Args:
        opened: what the compiler made.
        passes: those that made the TTGIR, at least.
    """
    ttir, ttgir = opened.stage("ttir"), opened.stage("ttgir")
    if ttir is None or ttgir is None or not (before := _dots(ttir.text)):
        return None
    after = _dots(ttgir.text)
    ptx = opened.stage("ptx")
    by_pass = _decided(passes) if any(dot.unit for dot in after) else ""
    return Followed(
        dots=len(before),
        places=_places(ttir.text),
        became=_listed(dot.op for dot in after),
        unit=_listed(dot.unit for dot in after if dot.unit),
        layout=_listed(dot.layout for dot in after),
        by_pass=by_pass,
        widened=_widened(before, after),
        exact=all(dot.dtype in ("f32", "f64") and not dot.tf32 for dot in before),
        ptx=_of_ptx(ptx.ops) if ptx else {},
        sass=multiplications(opened.instructions),
    )


def _dots(module: str) -> list[_Dot]:
    layouts = {match[1]: f"{match[2]}<{match[3]}>" for match in _LAYOUT.finditer(module)}
    found = []
    for line in module.splitlines():
        if match := _DOT.search(re.sub(r" loc\(.*", "", line)):
            types = match[2].rpartition(" : ")[2]
            dtype = re.search(r"x([a-z]\w*)[,>]", types)
            result = re.search(r"-> tensor<[^#>]*(#\w+)>", types) or re.search(r"(#\w+)>?$", types)
            layout = layouts.get(result[1], result[1]) if result else ""
            found.append(_Dot(match[1], layout, dtype[1] if dtype else "", "tf32" in match[2]))
    return found


def _decided(passes: Sequence[Pass]) -> str:
    """The last pass after which tensor cores multiply, and before which they do not."""
    for ran in reversed(passes):
        if ran.changed and ran.after is not None:
            units = [{dot.unit for dot in _dots(module)} for module in (ran.before, ran.after)]
            if units[0] and "" in units[0] and units[1] and "" not in units[1]:
                return ran.name
    return ""


def _widened(before: Sequence[_Dot], after: Sequence[_Dot]) -> str:
    old, new = ({dot.dtype for dot in dots} for dots in (before, after))
    return f"from {_listed(old)} to {_listed(new)}" if after and old != new else ""


def _places(ttir: str) -> tuple[str, ...]:
    """The source lines of the products, the innermost where one was inlined into another."""
    innermost = (places[0] for line, places in mlir(ttir) if places and _DOT.search(line))
    return tuple(dict.fromkeys(f"{file}:{line}" for file, line in innermost))


def _of_ptx(ops: Mapping[str, int]) -> dict[str, int]:
    for sign in _PTX:
        if found := {op: count for op, count in ops.items() if op.startswith(sign)}:
            return found
    return {}


def _listed(names: Iterable[str]) -> str:
    counted = Counter(names)
    return ", ".join(name for name in counted if name)
