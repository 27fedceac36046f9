"""The default screen as text: at most 30 lines of 80 columns, words never cut."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import geometric_mean

from compare.history.crossover import Standing, standing
from compare.model.op import WAYS
from compare.model.result import (
    HARD_INPUTS,
    MEMORY,
    OTHER_SIZES,
    SANITIZER,
    THREAD_ORDERS,
    WRONG,
    Calibration,
    CaseComparison,
    Comparison,
    Estimate,
    Row,
)
from compare.report import lines, summary
from compare.report.layout import Column, fitted, grid, paragraph
from compare.report.lines import WORDS, Line
from compare.report.sentences import evidence
from compare.report.summary import View
from compare.report.tables import NOTHING, count, number, percent
from compare.timing import figures

WIDEST = 80
"""Of text, however wide the terminal; a table that needs more may take it."""
_WHY_LINES = 4
"""So many lines of 80 columns for the evidence, divided among the cases."""
_FAILURES = 4
"""More are only named, unless they are the user's."""
_REASON_WORDS = 45
_BAR = 14, 24
"""The shortest bar worth drawing, and the longest."""
_SWEPT = 10
"""A sweep shows this many cases, evenly spread over its list; ``--all`` shows each."""
_INDENT = "      "
_NO_BREAK = "\N{NO-BREAK SPACE}"
_DOT = f"{_NO_BREAK}· "


def render(comparison: Comparison, width: int, view: View) -> str:
    """The screen, no line wider than ``width`` unless a single word is."""
    room, width = width, min(width, WIDEST)
    timed, main = figures.timed_cases(comparison), figures.main_case(comparison)
    swept = len(timed) > figures.LISTED_CASES
    listed = timed if timed and not swept else [main] if main else []
    shown = [lines.of_one_arch(comparison, case) for case in listed]
    named = shown[0][0].case if len(shown) == 1 and not swept else ""
    head = _head(comparison, named, width)
    head += [_facts("", facts, width) for facts in summary.machine(comparison, shown) if facts]
    blocks = ["\n".join(head), "\n".join(_verdict(comparison, view, width))]
    if swept and main:
        untimed = sum(not any(row.agreement or row.timing for row in case.rows) for case in comparison.cases)
        blocks.append("\n".join(_sweep(timed, untimed, figures.baseline_of(main), view, room)))
    many = len(shown) > 1 or swept
    for case, _ in shown:
        table = [] if swept else _table(comparison, case, view, room, titled=many)
        why = _why(comparison, case, 1 if many else _WHY_LINES, width, f"{case.case}: " if swept else "")
        blocks += ["\n".join(part) for part in (table, why) if part]
    follow = _next(summary.next_steps(comparison, view), width)
    if not timed:
        blocks.append(paragraph(summary.no_speed(comparison, main), width))
    if len(shown) == 1 and timed and blocks[-1].startswith("WHY"):
        blocks[-1] += "\n" + follow
    else:
        blocks.append(follow)
    return "\n\n".join(blocks)


# --------------------------------------------------------------------------- head and verdict


def _head(comparison: Comparison, case: str, width: int) -> list[str]:
    case = case.replace(",", " ")
    title = f"{comparison.op}  {summary.formula(comparison)}"
    room = width - len(title)
    if room > len(case) + 2:
        return [(title + case.rjust(room)).rstrip()]
    return [line for line in (paragraph(title, width), paragraph(case, width).rjust(width).rstrip()) if line]


def _verdict(comparison: Comparison, view: View, width: int) -> list[str]:
    words = ["INTERRUPTED: results so far."] if comparison.interrupted else []
    failures = summary.failures(comparison)
    own = [each for each in failures if not view.yours.isdisjoint(row.label for row in each[1])]
    failures = own + [each for each in failures if each not in own]
    most = max(_FAILURES, len(own))
    for case, rows in failures[:most]:
        words += failure(case, rows)
    if rest := [row.label for _, rows in failures[most:] for row in rows]:
        words.append(f"and {len(rest)} more (--details): {', '.join(rest)}")
    verdict = [paragraph(text, width, hanging=_INDENT) for text in words]
    verdict.append(paragraph(f"CORRECT  {summary.correct(comparison)}", width, hanging=" " * 9))
    left_out = summary.not_run(comparison, view.yours)
    return [*verdict, *(paragraph(text, width, hanging="  ") for text in left_out)]


def failure(case: str, rows: Sequence[Row]) -> list[str]:
    """``WRONG  label on case: reason``, and the first mismatch."""
    reason = rows[0].reason
    finding, _, detail = reason.partition(": ")
    if finding in (HARD_INPUTS, OTHER_SIZES, THREAD_ORDERS):  # names the case itself
        case, _, reason = detail.partition(": ")
    elif finding in (MEMORY, SANITIZER):
        reason = detail
    words = reason.split()
    reason = " ".join(words[:_REASON_WORDS]) + (" ... (--details)" if len(words) > _REASON_WORDS else "")
    verdict = WORDS["disagrees" if rows[0].status in WRONG else "failed"].upper()
    text = [f"{verdict}  {', '.join(row.label for row in rows)} on {case}: {reason}"]
    if mismatch := next((row.agreement.mismatch for row in rows if row.agreement), None):
        at = f"({', '.join(map(str, mismatch.index))})" if mismatch.index else "the only element"
        text.append(
            f"{_INDENT}first at {at}: {lines.got_and_expected(mismatch)}; "
            f"{mismatch.count} of {mismatch.of} wrong"
        )
        if mismatch.pattern:
            text.append(f"{_INDENT}pattern: {mismatch.pattern}")
    return text


# --------------------------------------------------------------------------- the table of a case


def _table(
    comparison: Comparison, case: CaseComparison, view: View, width: int, *, titled: bool
) -> list[str]:
    """The table as wide as fits: with bars, without them, set closer, at last in two; with its notes."""
    sizes = comparison.code_sizes
    shown = lines.every(case, sizes) if view.every else lines.best_of_each_way(case, sizes, view.yours)
    bare = _columns(case, shown, view, bar=0)
    ceiling = f"% of {figures.share_of(case)}"
    share = _share(ceiling, shown, 0)
    room = min(width, WIDEST) - sum(column.width + 2 for column in bare) + 1 + share.width
    bar = min(_BAR[1], room - 5)
    if bar >= max(_BAR[0], len(ceiling) - 5):
        table = grid(_columns(case, shown, view, bar), 2)
    else:
        table = fitted([(bare, 2), (bare, 1)], width)
    blocks = [f" {line}" for line in table]
    width = min(width, WIDEST)
    own_kernels = summary.about_registers(comparison, case, shown)
    blocks += [paragraph(f"   {note}", width) for note in own_kernels]
    if figures.timed_cases(comparison):
        notes = [summary.launch(case), *summary.notes(case, shown)]
        blocks += [paragraph(f"   {note}", width) for note in notes if note]
    own = summary.yours(comparison, case, view.yours)
    blocks += [paragraph(f"YOURS {text}", width, hanging=_INDENT) for text in own]
    return [case.case, *blocks] if titled else blocks


def _columns(case: CaseComparison, shown: Sequence[Line], view: View, bar: int) -> list[Column]:
    timed = lines.is_timed(case)
    title = "every row" if view.every or not timed else "best of each way"
    names = tuple(
        line.label + (" *" if line.stale else "") + (" (ordinary)" if line.row.status == "ordinary" else "")
        for line in shown
    )
    columns = [Column(title, names, left=True)]
    if any(line.us is not None for line in shown):
        columns += [
            Column("µs", _times([figures.cold_us(line.row) for line in shown])),
            Column("speedup", tuple(map(_speedup, shown))),
            _share(f"% of {figures.share_of(case)}", shown, bar),
        ]
    return [
        *columns,
        Column("regs", tuple(count(line.registers) for line in shown)),
        Column("smem", tuple(_size(line.shared_bytes) for line in shown)),
        Column("lines", tuple(count(line.lines) for line in shown)),
    ]


def _share(ceiling: str, shown: Sequence[Line], bar: int) -> Column:
    """The share of the ceiling, behind a bar where there is room for one."""
    shares = [line.share for line in shown]
    if not bar:
        return Column("% of\n" + ceiling.split()[2], tuple(map(percent, shares)))
    drawn = ("#" * min(bar, round((share or 0) * bar)) for share in shares)
    cells = tuple(f"{line:<{bar}} {percent(share):>4}" for line, share in zip(drawn, shares, strict=True))
    return Column(ceiling, cells, left=True)


def _times(us: Sequence[float]) -> tuple[str, ...]:
    """Times with as many decimals each as the shortest of them needs, so that their points align."""
    digits = 2 if min(us) < 10 else 1 if min(us) < 1000 else 0
    return tuple(f"{time:.{digits}f}" if math.isfinite(time) else NOTHING for time in us)


def _speedup(line: Line) -> str:
    if line.terms:
        return f"({line.terms})"
    if line.us is None or line.speedup is None:
        return NOTHING
    ratio = line.speedup.median
    digits = 0 if ratio >= 100 else 1 if ratio >= 10 else 2
    shown = f"{ratio:.{digits}f}" if ratio >= 0.1 else number(ratio, 2)
    return f"{'' if line.differs or line.reference else '~'}{shown}x"


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return NOTHING
    return f"{nbytes} B" if nbytes < 1024 else f"{nbytes / 1024:.0f} KB"


# --------------------------------------------------------------------------- a sweep


def _sweep(cases: Sequence[CaseComparison], untimed: int, baseline: str, view: View, width: int) -> list[str]:
    """One line a case: the best of each way against the baseline; and how often each way is the fastest."""
    standings = [standing(0, case) for case in cases]
    last = min(len(cases), _SWEPT) - 1
    some = [standings[round(i * (len(cases) - 1) / last)] for i in range(last + 1)]
    shown = standings if view.every or view.shapes else some
    alone = Counter(way for each in standings if len(each.leaders) == 1 for way in each.leaders)
    counts = ", ".join(f"{way} {alone[way]}" for way in sorted(WAYS, key=lambda way: -alone[way]))
    noise = f"within noise {len(cases) - alone.total()}"
    text = f"   Speedup vs {baseline}. Fastest over {len(cases)} cases: {counts}; {noise}."
    if view.shapes:
        ratios = {way: [ratio.median for each in standings if (ratio := _of_way(each, way))] for way in WAYS}
        means = (
            f"{way} {geometric_mean(each):.3f}x{f' over {len(each)}' * (len(each) < len(cases))}"
            for way, each in ratios.items()
            if each
        )
        text += f" Geometric means: {', '.join(means)}."
    if untimed:
        text += f" Without a time: {untimed} of {len(cases) + untimed} cases."
    return [
        *(f" {line}" for line in _sweep_table(shown, baseline, width, variants=view.shapes)),
        paragraph(text, min(width, WIDEST)),
    ]


def _of_way(standing: Standing, way: str) -> Estimate | None:
    """The speedup of a way's best vs the baseline."""
    row = standing.best.get(way)
    reference = figures.row_of(standing.comparison, figures.baseline_of(standing.comparison))
    return figures.ratio(row, reference) if row and reference else None


def _sweep_table(shown: Sequence[Standing], baseline: str, width: int, variants: bool) -> list[str]:
    references = [figures.row_of(each.comparison, figures.baseline_of(each.comparison)) for each in shown]
    us = [figures.cold_us(row) if row else math.inf for row in references]
    cells = zip(*(_swept(each, variants) for each in shown), strict=True)
    names, *others = (
        Column(header, column, left=header in ("best of each way", "fastest", ""))
        for header, column in zip(("best of each way", *WAYS, "fastest", "% of", ""), cells, strict=True)
    )
    others.insert(0, Column(baseline.replace(".", ".\n") + " µs", _times(us)))
    choices = []
    for label in (names, _sizes_only(names.cells)):  # where the terminal is narrow
        for left_out in ((), (" µs",), ("fastest",), (" µs", "fastest")):
            choices.append(([label, *(each for each in others if not each.header.endswith(left_out))], 1))
    return fitted(choices, width)


def _swept(standing: Standing, variants: bool) -> tuple[str, ...]:
    """The case, the speedup of each way's best, who is the fastest, and at which share of what."""
    case = standing.comparison
    fastest = figures.fastest(case.rows)
    share = figures.share(case, fastest) if fastest else None
    leaders = ", ".join(way for way in WAYS if way in standing.leaders)
    if len(standing.leaders) < 2:
        leaders = figures.represented(case, fastest)[0] if fastest else NOTHING
    return (
        case.case,
        *(_best(standing, way, variants) for way in WAYS),
        leaders,
        percent(share),
        "" if share is None else "peak" if figures.compute_bound(case) else "copy",
    )


def _best(standing: Standing, way: str, variants: bool) -> str:
    """``1.02x``, or with its variant ``split_k 1.02x``."""
    ratio = _of_way(standing, way)
    name = standing.best[way].label.partition(".")[2] if ratio and variants else ""
    return f"{name} {ratio.median:.2f}x".lstrip() if ratio else NOTHING


def _sizes_only(cases: Sequence[str]) -> Column:
    """The cases without the names of their sizes, which stand in the header."""
    words = [[word.partition("=") for word in case.split(",")] for case in cases]
    names = ",".join(name for name, equals, _ in words[0] if equals)
    sizes = tuple(",".join(size if equals else name for name, equals, size in of_case) for of_case in words)
    return Column(f"best of each way\n{names}", sizes, left=True)


# --------------------------------------------------------------------------- why and next


def _why(comparison: Comparison, case: CaseComparison, most: int, width: int, start: str) -> list[str]:
    """The most telling evidence that fits into ``most`` lines of 80 columns, after ``start``."""
    left = most
    chosen: list[str] = []
    for text in evidence(comparison, case):
        text = text if chosen else start + text
        takes = paragraph(_INDENT + text, WIDEST, hanging=_INDENT).count("\n") + 1
        if takes <= left or not chosen:
            left -= takes
            chosen.append(text)
    why = "\n".join(paragraph(_INDENT + text, width, hanging=_INDENT) for text in chosen)
    return ["WHY" + why[3:]] if chosen else []


def _next(facts: Sequence[str], width: int) -> str:
    """What to type next; the less important options only where they fit into one line."""
    for left_out in ((), ("--details",), ("--html report.html",), ("--details", "--html report.html")):
        line = _facts("NEXT  ", [fact for fact in facts if fact not in left_out], width)
        if "\n" not in line:
            break
    return line


def _facts(start: str, facts: Sequence[str], width: int) -> str:
    """Facts in lines, a dot between two; none is broken unless it is wider than a line."""
    room = width - len(start) - len(_DOT)
    text = _DOT.join(fact if len(fact) > room else fact.replace(" ", _NO_BREAK) for fact in facts)
    lines = paragraph(text, width, start, " " * len(start) or "  ").split("\n")
    return "\n".join(line.removesuffix(_DOT.rstrip(" ")).replace(_NO_BREAK, " ") for line in lines)


# --------------------------------------------------------------------------- legend


_MEANINGS = {
    "CORRECT": "every output against an fp64 reference on the same inputs, before any timing; the "
    "tolerance is the op's floor, or twice PyTorch's own error where that is more",
    "µs": "GPU time of one call, median; the L2 cache is flushed before each (cold)",
    "speedup": "time of {baseline} over this row's, median of the ratios within rounds; ~ within noise: "
    "the 95% interval, with the variance between processes, includes 1",
    "{ceiling}": "{over} in the same run; the ceiling is chosen by the measured ridge, peak FLOP/s over copy "
    "B/s",
    "regs": "registers per thread of the kernel that takes most: from the profiler on a GPU, else as "
    "recorded with the time or, where the screen says so, from machine code compiled here",
    "smem": "shared memory per block, static and dynamic, of the kernel that takes most",
    "lines": "code size, without comments and blank lines: all the project's code that a call needs, in "
    "whichever file; --details splits it, and Triton's (tl.sum) is the compiler's; of cuda.X those through "
    "cupy",
    "cuda.X": "cupy.X and pybind.X: the same kernel through cupy and through pybind11, one row while "
    "within noise (cupy's figures)",
    "launch overhead": "host time until the call returns, of the row above: median of 200 calls back to "
    "back; argument checks and the allocation of the output included; {floors}",
}
_OVER_PEAK = "operations / time, over what the library's 4096-cubed matmul of this dtype reached"
_OVER_COPY = "compulsory bytes (inputs read once, outputs written once) / time, over what a copy reached"


def floors(calibration: Calibration | None) -> str:
    """The floors of launch overhead: PyTorch's, Triton's, cupy's and pybind11's."""
    if calibration is None or not calibration.launch_floors_us:
        return "doctor --calibrate measures the floor, an empty kernel and its output"
    each = ", ".join(f"{route} {number(us, 2)}" for route, us in calibration.launch_floors_us.items())
    return f"floor, an empty kernel and its output, in µs: {each}"


def legend(comparison: Comparison, width: int, noise: str) -> str:
    """One entry per column: its meaning, and how it was measured."""
    main = figures.main_case(comparison)
    values = {
        "baseline": figures.baseline_of(main) if main else "torch.eager",
        "ceiling": f"% of {figures.share_of(main)}" if main else "%",
        "floors": floors(comparison.environment.calibration),
        "over": _OVER_PEAK if main and figures.compute_bound(main) else _OVER_COPY,
    }
    meanings = {name.format(**values): text.format(**values) for name, text in _MEANINGS.items()}
    entries = {"shapes": comparison.signature, **meanings, **({"noise": noise} if noise else {})}
    return "\n".join(paragraph(f"{name}: {text}.", width, hanging="  ") for name, text in entries.items())
