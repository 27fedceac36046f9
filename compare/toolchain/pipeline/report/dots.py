"""What became of ``tt.dot``, as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compare.report.tables import NOTHING
from compare.report.terminal import paragraph
from compare.toolchain.pipeline.records import Followed, Opened
from compare.toolchain.pipeline.report.places import shortened

_STAGE_WIDTH = 7


def render(opened: Sequence[Opened], width: int) -> str:
    """Each matrix product of Triton's from TTIR to machine code, a line a stage; empty if there is none."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, list[str]]] = {}
    for one in opened:
        if one.followed:
            groups.setdefault(lines(one.followed), {}).setdefault(one.arch, []).append(one.label)
    if not groups:
        return ""
    found = ["What became of tt.dot"]
    for of_group, labels in groups.items():
        whose = "; ".join(f"{', '.join(names)} for {arch}" for arch, names in labels.items())
        found.append(paragraph(whose, width, "  "))
        for stage, said in of_group:
            hanging = " " * (4 + _STAGE_WIDTH)
            found.append(paragraph(f"    {stage:<{_STAGE_WIDTH}}{said}", width, hanging=hanging))
    return "\n".join(found)


def lines(found: Followed) -> tuple[tuple[str, str], ...]:
    """What the products are at each stage: its name and a sentence."""
    places = ", ".join(map(shortened, found.places)) or "an unnamed line"
    return (
        ("ttir", f"{found.dots} tt.dot at {places}"),
        ("ttgir", _in_ttgir(found)),
        ("ptx", _counts(found.ptx)),
        ("sass", _counts(found.sass)),
    )


def _in_ttgir(found: Followed) -> str:
    laid_out = f"the result's layout: {found.layout}" if found.layout else ""
    if found.unit:
        by_pass = f"made so by the pass {found.by_pass}" if found.by_pass else ""
        return "; ".join(filter(None, [f"{found.became}, {found.unit}", by_pass, laid_out]))
    if found.exact:
        why = "FMA: fp32 operands without TF32 do not use tensor cores"
    else:
        why = "this Triton falls back to FMA: no pass gave it to tensor cores"
        why += f", and the operands were converted {found.widened}" if found.widened else ""
    return "; ".join(filter(None, [f"{found.became} still, {why}", laid_out]))


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.items()) or NOTHING
