"""The picture of docs/from-python-to-sass.md: one source line of each language, and what it became."""

from __future__ import annotations

import re

from compare.registry import ROOT
from tools.docs import svg
from tools.docs.flows import Arrow, Box, Text
from tools.docs.stages import NAMES, PACKAGES, Kernel, Stages, opened, pinned, readable

PICTURE = "docs/one-line.svg"
CASE = "M=4096,N=512,fp32"
TRITON = Kernel("softmax", "triton.online", "sm_90", CASE)
CUDA = Kernel("softmax", "pybind.online", "sm_90", CASE)
LINES = {TRITON: "x = tl.load", CUDA: "Vec<T, VEC> x = load_vec"}
"""The source line that is followed: the first one with this text."""
SHOWN = {
    "source": ".",
    "ttir": ".",
    "ttgir": "cmpi|addptr|tt.load",
    "llir": "icmp|getelementptr|asm|extractvalue",
    "ptx": "setp|mad|ld.global",
    "sass": "ISETP|LEA|LDG",
}
"""Of the lines that it became those that match; the others copy and convert values."""
_MOST = 5
_WIDTHS = (522, 336)
_CHARACTER = 6.35
_LEFT, _GAP, _LINE = 10, 22, 15


def picture() -> str:
    """The file as it is where other compilers are installed than constraints.txt names."""
    if not pinned(*PACKAGES):
        return (ROOT / PICTURE).read_text()
    boxes: list[Box] = []
    arrows: list[Arrow] = []
    texts: list[Text] = []
    bottoms: dict[str, tuple[int, int]] = {}
    for column, kernel in enumerate((TRITON, CUDA)):
        stages = opened(kernel)
        x, width = _LEFT + column * (_WIDTHS[0] + _GAP), _WIDTHS[column]
        texts.append(("heading", x, 18, "Triton" if column == 0 else "CUDA C++ by nvcc"))
        y = 30
        for name in (name for name in NAMES if name in stages.rows):
            y = bottoms[name][0] if column and name in bottoms else y
            lines = _lines(stages, name, LINES[kernel], int((width - 16) / _CHARACTER))
            tool = "" if name == "source" else f", made by {stages.tools[name]}"
            height = _LINE * (len(lines) + 1) + 10
            inner = (("name", f"{NAMES[name]}{tool}"), *(("tool", line) for line in lines))
            if boxes and boxes[-1].x == x:
                arrows.append(Arrow(f"M{x + width // 2} {boxes[-1].y + boxes[-1].height}V{y}"))
            boxes.append(Box(x, y, width, height, "plain" if name != "source" else "judge", inner))
            bottoms.setdefault(name, (y, height))
            y += height + _GAP
    return svg.drawn(
        "flow",
        title=ALT,
        boxes=boxes,
        arrows=arrows,
        texts=texts,
        width=_LEFT * 2 + sum(_WIDTHS) + _GAP,
        height=max(box.y + box.height for box in boxes) + 10,
    )


def _lines(stages: Stages, name: str, text: str, most: int) -> list[str]:
    """The lines of a stage that come from the source line with ``text``, shortened."""
    line = next(number for row, number in stages.rows["source"] if text in row)
    rows = [readable(row, name).strip() for row, number in stages.rows[name] if number == line]
    rows = [row for row in rows if re.search(SHOWN[name], row)]
    left = len(rows) - _MOST
    rows = [*rows[:_MOST], *([f"and {left} more"] if left > 0 else [])]
    return [row if len(row) <= most else f"{row[: most - 1]}\N{HORIZONTAL ELLIPSIS}" for row in rows]


ALT = (
    "One line of the online softmax through both compilers. Triton: tl.load becomes a tensor load in "
    "TTIR, the same with a layout in TTGIR, in LLVM IR and PTX a load of four values by one thread, and "
    "LDG.E.128 in SASS. nvcc: load_vec becomes ld.global.nc.v4 in PTX and LDG.E.128.CONSTANT in SASS; "
    "between source and PTX it shows no stage"
)
