"""The default screen as text: `Summary` in at most 30 lines of 80 columns, words never cut."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from compare.report.summary import Block, Failure, Line, Summary, Swept
from compare.report.tables import NOTHING, number, percent

WIDEST = 80
"""Of text, however wide the terminal; a table that needs more may take it."""
_WHY_LINES = 4
"""So many lines of 80 columns for the evidence, divided among the cases."""
_FAILURES = 4
"""More are only named."""
_REASON_WORDS = 45
_BAR = 14, 24
"""The shortest bar worth drawing, and the longest."""
_INDENT = "      "


def render(summary: Summary, width: int) -> str:
    """The screen, no line wider than ``width`` unless a single word is."""
    room, width = width, min(width, WIDEST)
    blocks = ["\n".join(_head(summary, width)), "\n".join(_verdict(summary, width))]
    many = len(summary.blocks) > 1 or bool(summary.sweep)
    if summary.sweep:
        table = _sweep(summary.sweep, summary.blocks[0].baseline, room)
        blocks.append("\n".join([*table, _wrapped(f"   {summary.swept}", width, "     ")]))
    for block in summary.blocks:
        lines = [] if summary.sweep else _block(block, room, summary.untimed, titled=many)
        why = _why(block, 1 if many else _WHY_LINES, width, f"{block.case}: " if summary.sweep else "")
        blocks += ["\n".join(part) for part in (lines, why) if part]
    if summary.untimed:
        blocks.append(_wrapped(summary.untimed, width))
    follow = _next(summary.next, width)
    if len(summary.blocks) == 1 and not summary.untimed and blocks[-1].startswith("WHY"):
        blocks[-1] += "\n" + follow
    else:
        blocks.append(follow)
    return "\n\n".join(blocks)


# --------------------------------------------------------------------------- head and verdict


def _head(summary: Summary, width: int) -> list[str]:
    case = summary.blocks[0].case.replace(",", " ") if len(summary.blocks) == 1 and not summary.sweep else ""
    title = f"{summary.op}  {summary.formula}"
    room = width - len(title)
    fits = room > len(case) + 2
    lines = (
        [title + case.rjust(room)] if fits else [_wrapped(title, width), _wrapped(case, width).rjust(width)]
    )
    lines = [line.rstrip() for line in lines]
    return [*filter(None, lines), *(_facts("", facts, width) for facts in summary.machine if facts)]


def _verdict(summary: Summary, width: int) -> list[str]:
    lines = []
    if summary.interrupted:
        lines.append(_wrapped("INTERRUPTED: results so far.", width))
    for failure in summary.failures[:_FAILURES]:
        lines += _failure(failure, width)
    if rest := [label for failure in summary.failures[_FAILURES:] for label in failure.labels]:
        lines.append(_wrapped(f"and {len(rest)} more (--details): {', '.join(rest)}", width, _INDENT))
    lines.append(_wrapped(f"CORRECT  {summary.correct}", width, "         "))
    lines += [_wrapped(text, width, "  ") for text in summary.not_run]
    return lines


def _failure(failure: Failure, width: int) -> list[str]:
    words = failure.reason.split()
    reason = " ".join(words[:_REASON_WORDS]) + (" ... (--details)" if len(words) > _REASON_WORDS else "")
    lines = [
        f"{'WRONG' if failure.wrong else 'FAILED'}  {', '.join(failure.labels)} on {failure.case}: {reason}"
    ]
    if found := failure.mismatch:
        at = f"({', '.join(map(str, found.index))})" if found.index else "the only element"
        lines.append(
            f"{_INDENT}first at {at}: got {found.got:.6g}, expected {found.expected:.6g}; "
            f"{found.count} of {found.of} wrong"
        )
        if found.pattern:
            lines.append(f"{_INDENT}pattern: {found.pattern}")
    return [_wrapped(line, width, _INDENT) for line in lines]


# --------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class _Column:
    header: str
    cells: tuple[str, ...]
    left: bool = False

    @property
    def width(self) -> int:
        return max(map(len, (*self.header.split("\n"), *self.cells)))


def _block(block: Block, width: int, untimed: str, *, titled: bool) -> list[str]:
    title = [block.case] if titled else []
    table = _fitted(block, width)
    width = min(width, WIDEST)
    notes = [] if untimed else [block.launch, *block.notes]
    said = [_wrapped(f"   {note}", width, "     ") for note in notes if note]
    yours = [_wrapped(f"YOURS {text}", width, _INDENT) for text in block.yours]
    return [*title, *table, *said, *yours]


def _fitted(block: Block, width: int) -> list[str]:
    """The table as wide as fits: with bars, without them, set closer, at last in two tables."""
    bare = _columns(block, bar=0)
    room = min(width, WIDEST) - sum(column.width + 2 for column in bare) + 1 + _share(block, 0).width
    longest = max(_BAR[0], len(block.ceiling) - 5)
    bar = min(_BAR[1], room - 5)
    if bar >= longest:
        return _table(_columns(block, bar), 2)
    for gap in (2, 1):
        if sum(column.width + gap for column in bare) - gap + 1 <= width:
            return _table(bare, gap)
    return _stacked(bare, width)


def _stacked(columns: Sequence[_Column], width: int) -> list[str]:
    """Tables one below the other, each with the first column."""
    first, *rest = columns
    parts: list[list[_Column]] = []
    room = 0
    for column in rest:
        if not parts or room < column.width + 1:
            parts.append([first])
            room = width - 1 - first.width
        parts[-1].append(column)
        room -= column.width + 1
    return [line for part in parts for line in _table(part, 1)]


def _table(columns: Sequence[_Column], gap: int) -> list[str]:
    height = max(column.header.count("\n") for column in columns) + 1
    headers = [("\n" * (height - 1 - c.header.count("\n")) + c.header).split("\n") for c in columns]
    cells = [[*header, *column.cells] for header, column in zip(headers, columns, strict=True)]
    lines = []
    for texts in zip(*cells, strict=True):
        set_ = [
            f"{text:<{column.width}}" if column.left else f"{text:>{column.width}}"
            for text, column in zip(texts, columns, strict=True)
        ]
        lines.append((" " + (" " * gap).join(set_)).rstrip())
    return lines


def _columns(block: Block, bar: int) -> list[_Column]:
    lines = block.lines
    timed = any(line.us is not None for line in lines)
    made = [
        _Column(block.title, tuple(line.label + (" *" if line.stale else "") for line in lines), left=True)
    ]
    if timed:
        made += [
            _Column("µs", _times([line.us for line in lines])),
            _Column("speedup", tuple(map(_speedup, lines))),
            _share(block, bar),
        ]
    return [
        *made,
        _Column("regs", tuple(NOTHING if line.registers is None else str(line.registers) for line in lines)),
        _Column("smem", tuple(_size(line.shared_bytes) for line in lines)),
        _Column("lines", tuple(NOTHING if line.lines is None else str(line.lines) for line in lines)),
    ]


def _share(block: Block, bar: int) -> _Column:
    """The share of the ceiling, behind a bar where there is room for one."""
    shares = [line.share for line in block.lines]
    if not bar:
        header = "% of\n" + block.ceiling.removeprefix("% of ").split()[0]
        return _Column(header, tuple(map(percent, shares)))
    drawn = ("#" * min(bar, round((share or 0) * bar)) for share in shares)
    cells = tuple(f"{line:<{bar}} {percent(share):>4}" for line, share in zip(drawn, shares, strict=True))
    return _Column(block.ceiling, cells, left=True)


def _times(us: Sequence[float | None]) -> tuple[str, ...]:
    """Times with as many decimals each as the shortest of them needs, so that their points align."""
    least = min((time for time in us if time is not None), default=0.0)
    digits = 2 if least < 10 else 1 if least < 1000 else 0
    return tuple(NOTHING if time is None else f"{time:.{digits}f}" for time in us)


def _speedup(line: Line) -> str:
    if line.terms:
        return f"({line.terms})"
    if line.speedup is None:
        return NOTHING
    digits = 0 if line.speedup >= 100 else 1 if line.speedup >= 10 else 2
    shown = f"{line.speedup:.{digits}f}" if line.speedup >= 0.1 else number(line.speedup, 2)
    return f"{'~' if line.noise else ''}{shown}x"


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return NOTHING
    return f"{nbytes} B" if nbytes < 1024 else f"{nbytes / 1024:.0f} KB"


def _sweep(cases: Sequence[Swept], baseline: str, width: int) -> list[str]:
    """One line a case: the best of each way against the baseline."""

    def speedups(at: int) -> tuple[str, ...]:
        found = (case.speedups[at] for case in cases)
        return tuple(NOTHING if speedup is None else f"{speedup:.2f}x" for speedup in found)

    columns = [
        _Column("best of each way", tuple(case.case for case in cases), left=True),
        _Column(baseline.replace(".", ".\n") + " µs", _times([case.us for case in cases])),
        *(_Column(way, speedups(at)) for at, way in enumerate(("torch", "triton", "cuda"))),
        _Column("fastest", tuple(map(_leaders, cases)), left=True),
        _Column("% of", tuple(percent(case.share) for case in cases)),
        _Column("", tuple(case.ceiling if case.share is not None else "" for case in cases), left=True),
    ]
    us, fastest = columns[1], columns[5]
    for label in (columns[0], _sizes_only(cases)):  # where the terminal is narrow
        for left_out in ((), (us,), (fastest,), (us, fastest)):
            fitting = [label, *(column for column in columns[1:] if column not in left_out)]
            if sum(column.width + 1 for column in fitting) <= width:
                return _table(fitting, 1)
    return _stacked(columns, width)


def _sizes_only(cases: Sequence[Swept]) -> _Column:
    """The cases without the names of their sizes, which stand in the header."""
    words = [[word.partition("=") for word in case.case.split(",")] for case in cases]
    names = ",".join(name for name, equals, _ in words[0] if equals)
    sizes = tuple(",".join(size if equals else name for name, equals, size in of_case) for of_case in words)
    return _Column(f"best of each way\n{names}", sizes, left=True)


def _leaders(case: Swept) -> str:
    """The fastest implementation, or the ways that are within noise."""
    return ", ".join(case.leaders) if len(case.leaders) > 1 else case.best or NOTHING


# --------------------------------------------------------------------------- why and next


def _why(block: Block, most: int, width: int, start: str) -> list[str]:
    """The most telling evidence that fits into ``most`` lines of 80 columns, after ``start``."""
    left = most
    chosen: list[str] = []
    for text in block.why:
        text = text if chosen else start + text
        takes = _wrapped(_INDENT + text, WIDEST, _INDENT).count("\n") + 1
        if takes <= left or not chosen:
            left -= takes
            chosen.append(text)
    lines = "\n".join(_wrapped(_INDENT + text, width, _INDENT) for text in chosen)
    return ["WHY" + lines[3:]] if chosen else []


def _next(facts: Sequence[str], width: int) -> str:
    """What to type next; the less important options only where they fit into one line."""
    for left_out in ((), ("--details",), ("--html report.html",), ("--details", "--html report.html")):
        line = _facts("NEXT  ", [fact for fact in facts if fact not in left_out], width)
        if "\n" not in line:
            break
    return line


def _facts(start: str, facts: Sequence[str], width: int) -> str:
    """Facts in lines, a dot between two; none is broken unless it is wider than a line."""
    lines = [""]
    indent = " " * len(start) if start else "  "
    for fact in facts:
        joined = f"{lines[-1]} · {fact}" if lines[-1] else fact
        if lines[-1] and len(indent if len(lines) > 1 else start) + len(joined) > width:
            lines.append(fact)
        else:
            lines[-1] = joined
    return "\n".join(
        _wrapped((start if i == 0 else indent) + line, width, indent) for i, line in enumerate(lines)
    )


def _wrapped(text: str, width: int, hanging: str = "") -> str:
    """``text`` in lines of at most ``width``, words whole; ``hanging`` goes before all but the first."""
    return textwrap.fill(
        text.lstrip(),
        max(width, 20),
        initial_indent=text[: len(text) - len(text.lstrip())],
        subsequent_indent=hanging,
        break_on_hyphens=False,
        break_long_words=False,
    )


# --------------------------------------------------------------------------- legend


def legend(summary: Summary, width: int, noise: str) -> str:
    """One entry per column: its meaning, and how it was measured."""
    block = next(iter(summary.blocks), None)
    baseline = block.baseline if block else "torch.eager"
    peak = block is not None and "peak" in block.ceiling
    over = (
        "operations / time, over what the library's 4096-cubed matmul of this dtype reached in the same run"
        if peak
        else "compulsory bytes (inputs read once, outputs written once) / time, over what a copy reached in "
        "the same run"
    )
    entries = {
        "shapes": summary.signature,
        "CORRECT": "every output against an fp64 reference on the same inputs, before any timing; the "
        "tolerance is the op's floor, or twice PyTorch's own error where that is more",
        "µs": "GPU time of one call, median; the L2 cache is flushed before each (cold)",
        "speedup": f"time of {baseline} over this row's, median of the ratios within rounds; ~ within noise: "
        "the 95% interval, with the variance between processes, includes 1",
        block.ceiling if block else "%": over
        + "; the ceiling is chosen by the measured ridge, peak FLOP/s over copy B/s",
        "regs": "registers per thread of the kernel that takes most: from the profiler on a GPU, else from "
        "the compiled machine code",
        "smem": "shared memory per block, static and dynamic, of the kernel that takes most",
        "lines": "code size, without comments and blank lines: the kernels, their launch and the op's "
        "helpers; shared code is in --details, and Triton's (tl.sum) is the compiler's; of cuda.X the cupy "
        "route's",
        "cuda.X": "cupy.X and pybind.X: the same kernel by two routes, one row while within noise (cupy's "
        "figures)",
        "launch overhead": "host time until the call returns, of the row above",
    }
    if noise:
        entries["noise"] = noise
    return "\n".join(_wrapped(f"{name}: {text}.", width, "  ") for name, text in entries.items())
