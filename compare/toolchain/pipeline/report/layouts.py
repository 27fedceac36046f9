"""Triton's layouts in words and drawn: which warp and lane holds which element."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from compare.report.terminal import paragraph
from compare.toolchain.pipeline.layouts import Layout
from compare.toolchain.pipeline.records import Opened

_MOST_ROWS = 16
_MOST_COLUMNS = 8
_LINE_BYTES = 128
"""Of shared memory: 32 banks of 4 bytes, which one access of a warp can read at once."""
_MOST_LINES = 8

_WORDS = {
    "blocked": "blocked: a thread has {sizePerThread} neighbouring elements, a warp's lanes lie "
    "as {threadsPerWarp}, the warps as {warpsPerCTA}, dimension by dimension; {order} is the "
    "order of the dimensions, that of neighbouring addresses first. A larger tensor is covered "
    "again and again in the same way; of a smaller one several threads hold the same element",
    "nvidia_mma 2": "what a warp's mma.sync leaves: of each 16x8 sums lane 4i+j has columns 2j "
    "and 2j+1 of rows i and i+8; the warps lie as {warpsPerCTA}",
    "nvidia_mma 3": "what a warp group's wgmma leaves: each of its four warps has 16 rows, in "
    "which lane 4i+j has columns 2j and 2j+1 of rows i and i+8, and so on every 8 columns; the "
    "warps lie as {warpsPerCTA}, one instruction makes {instrShape} (rows of a warp, columns, K)",
    "slice": "{parent} without its dimension {dim}: what is left of a tensor that was reduced "
    "along it, or what will be one that gets it by expand_dims. Threads that differed along it "
    "only hold the same element",
    "dot_op 0": "the left operand of a product whose sums are {parent}, as it is taken from registers",
    "dot_op 1": "the right operand of a product whose sums are {parent}, as it is taken from registers",
    "linear": "a layout that no other kind describes, given by its bases alone",
    "swizzled_shared": "shared memory: {vec} elements stay together, and a row's groups of {vec} "
    "are swizzled by XOR with (row / {perPhase}) % {maxPhase}, so that a column is free of bank conflicts",
    "nvmma_shared": "shared memory as wgmma and TMA need it: rows of "
    "{swizzlingByteWidth} bytes, whose groups of 16 bytes are swizzled by XOR with the row, so that a "
    "column is free of bank conflicts",
}


def render(one: Opened, found: Sequence[Layout], width: int) -> str:
    """Each of a kernel's layouts in words and drawn."""
    head = f"// {one.label}  {one.kernel}  {one.arch}  layouts of its ttgir"
    return "\n\n".join([head, *(described(layout, width) for layout in found)])


def described(layout: Layout, width: int) -> str:
    """A layout in words, its bases, and a drawing of its first rows and columns."""
    name = layout.name if layout.name == layout.definition else f"{layout.name} = {layout.definition}"
    lines = [paragraph(name, width), paragraph(_in_words(layout), width, "  ", hanging="  ")]
    if layout.unknown:
        return "\n".join([*lines, paragraph(layout.unknown, width, "  ")])
    lines += [paragraph(_facts(layout), width, "  ", hanging="  ")]
    for of, bases in layout.bases.items():
        if bases:
            drawn_bases = " ".join(f"[{', '.join(map(str, base))}]" for base in bases)
            lines.append(paragraph(f"{of} bits: {drawn_bases}", width, "  ", hanging="    "))
    if layout.shared:
        lines += ["", *drawn_memory(layout, width)]
    elif len(layout.shape) <= 2:
        lines += ["", *drawn(layout, width)]
    else:
        lines.append(f"  of {len(layout.shape)} dimensions, not drawn")
    return "\n".join(lines)


def _in_words(layout: Layout) -> str:
    told_apart_by = {"nvidia_mma": "versionMajor", "dot_op": "opIdx"}.get(layout.kind, "")
    try:
        words = _WORDS[f"{layout.kind} {layout.parameters.get(told_apart_by, '')}".strip()]
        return f"{words.format_map(layout.parameters)}."
    except KeyError:
        return f"{layout.kind}, which is not described here."


def _facts(layout: Layout) -> str:
    if layout.shared:
        size = layout.count("offset") * _bytes(layout)
        return f"As it has {layout.tensor}: {size} bytes."
    registers, lanes, warps = map(layout.count, ("register", "lane", "warp"))
    along = {tuple(base).index(1): 0 for base in layout.bases["register"] if sum(base) == 1}
    dim = next(iter(along), len(layout.shape) - 1)
    run = 1
    while any(base[dim] == run and sum(base) == run for base in layout.bases["register"]):
        run *= 2
    said = f"As it has {layout.tensor}, over {warps} warps of {lanes} lanes: {registers} elements a thread"
    if run > 1:
        said += f", {run} of them neighbours along dimension {dim} ({run * _bytes(layout)} bytes)"
    copies = 2 ** sum(not any(base) for of in ("register", "lane", "warp") for base in layout.bases[of])
    return said + (f"; each element {copies} times." if copies > 1 else ".")


def _bytes(layout: Layout) -> int:
    bits = re.search(r"\d+", layout.dtype)
    if "ptr" in layout.dtype:
        return 8
    return max(int(bits[0]) // 8, 1) if bits else 4


# --------------------------------------------------------------------------- drawings


def drawn(layout: Layout, width: int) -> list[str]:
    """The first rows and columns, each cell with the warps and lanes that hold it: ``w0 l4-7``."""
    holders = layout.holders().items()
    warps = {at: f"w{ranges({warp for warp, _ in who})}" for at, who in holders}
    names = {at: f"{warps[at]} l{ranges({lane for _, lane in who})}" for at, who in holders}
    lines = []
    if len(set(warps.values())) > 1:
        lines += ["  which warp:", *_grid(layout.shape, warps, width), ""]
    return [*lines, "  which lane:", *_grid(layout.shape, names, width)]


def ranges(numbers: Iterable[int]) -> str:
    """
    >>> ranges({0, 1, 2, 3, 8})
    '0-3,8'
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(_span((run[0], run[-1])) for run in found)


def _grid(shape: Sequence[int], names: dict[tuple[int, ...], str], width: int) -> list[str]:
    """Neighbouring rows, and neighbouring columns, that are alike are drawn as one."""
    rows, columns = (shape[0], 1) if len(shape) == 1 else (shape[0], shape[1])

    def name(row: int, column: int) -> str:
        return names[(row,) if len(shape) == 1 else (row, column)]

    down = _alike(rows, lambda row: [name(row, column) for column in range(columns)])
    across = _alike(columns, lambda column: [name(row, column) for row in range(rows)])
    table = [["", *map(_span, across)]] if columns > 1 else []
    table += [[_span(row), *(name(row[0], column[0]) for column in across)] for row in down[:_MOST_ROWS]]
    return _aligned(table, len(down) > _MOST_ROWS, width)


def _alike(count: int, key: Callable[[int], list[str]]) -> list[tuple[int, int]]:
    """Runs of equal rows or columns, each by its first and its last."""
    runs = (list(run) for _, run in groupby(range(count), key))
    return [(run[0], run[-1]) for run in runs]


def _span(run: tuple[int, int]) -> str:
    return str(run[0]) if run[0] == run[1] else f"{run[0]}-{run[1]}"


def drawn_memory(layout: Layout, width: int) -> list[str]:
    """Shared memory in lines of 128 bytes, each cell with the elements in it: ``row:first-last``."""
    per_line = max(_LINE_BYTES // _bytes(layout), 1)
    table = []
    for begin in range(0, layout.count("offset"), per_line):
        line: list[list[tuple[int, ...]]] = []
        for offset in range(begin, min(begin + per_line, layout.count("offset"))):
            at = layout.at(offset=offset)
            if line and _next(line[-1][-1], at) and len(line[-1]) * _bytes(layout) % 16:
                line[-1].append(at)
            else:
                line.append([at])
        table.append([f"byte {begin * _bytes(layout)}", *map(_elements, line)])
    drawing = _aligned(table[:_MOST_LINES], len(table) > _MOST_LINES, width)
    return ["  which element, in lines of 128 bytes: row:columns", *drawing]


def _next(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    changed = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    return len(changed) == 1 and changed[0][1] == changed[0][0] + 1


def _elements(cell: Sequence[tuple[int, ...]]) -> str:
    return ":".join(ranges(dict.fromkeys(at[dim] for at in cell)) for dim in range(len(cell[0])))


def _aligned(table: Sequence[Sequence[str]], more_rows: bool, width: int) -> list[str]:
    """As many columns as there is room for, and dots where there are more."""
    most = max(map(len, table))
    sizes = [max(len(row[i]) for row in table if i < len(row)) for i in range(most)]
    kept = 1
    while kept < min(most, _MOST_COLUMNS + 1) and sum(sizes[: kept + 1]) + 2 * kept + 8 <= max(width, 40):
        kept += 1
    lines = []
    for row in table:
        others = [f"{cell:<{size}}" for cell, size in zip(row[1:kept], sizes[1:], strict=False)]
        cells = [f"{row[0]:>{sizes[0]}}", *others, "..." if kept < most else ""]
        lines.append("    " + "  ".join(cells).rstrip())
    return [*lines, f"    {'...':>{sizes[0]}}"] if more_rows else lines
