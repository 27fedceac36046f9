"""The tables of a comparison, as words and figures: what the terminal, Markdown and the documents print."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from compare.model.op import way_of
from compare.model.result import (
    WRONG,
    CaseComparison,
    Comparison,
    Estimate,
    KernelCounters,
    KernelResources,
    RoleSize,
    Row,
)
from compare.report import lines
from compare.report.lines import WORDS, Line, grouped
from compare.timing import calibration, figures
from compare.timing.statistics import ENOUGH
from compare.tuning import sweep as values
from compare.tuning.matching import configured, registered_as

NOTHING = "-"


@dataclass(frozen=True)
class Table:
    """Cells as text.  A header may hold line breaks; the first column says what a line is about."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: tuple[str, ...] = ()
    """Headers of the columns set flush left, besides the first."""
    legend: tuple[str, ...] = ()
    """What it says that is not of every such table, a sentence or two each."""


Block = Table | str
"""Of a screen or a Markdown document: a table, or a text, whose lines that are set in are a list."""

T = TypeVar("T")


def table(
    title: str,
    entries: Iterable[T],
    columns: dict[str, Callable[[T], str]],
    text_columns: tuple[str, ...] = (),
    legend: tuple[str, ...] = (),
) -> Table:
    """A line for each entry, a cell for each column as it reads the entry."""
    rows = tuple(tuple(read(entry) for read in columns.values()) for entry in entries)
    return Table(title, tuple(columns), rows, text_columns, legend)


_MEANINGS = {
    "% of\ntolerance": (
        "max abs and max rel error: against fp64; % of tolerance: the most that any element uses."
    ),
    "warm\nµs": (
        "cold, warm: GPU time with the input out of, and left in, the L2 cache; graph: replayed as a CUDA "
        "graph. ± and brackets: 95% interval; n: samples, where they are too few for one."
    ),
    "GB/s": (
        "GB/s: compulsory bytes (every input read once, every output written once) over the cold time; % of "
        "copy bandwidth: over what a copy reached in the same run."
    ),
    "TFLOP/s": (
        "TFLOP/s: the operations of the case over the cold time; % of peak (measured): over what the "
        "library's matmul of this dtype reached in the same run."
    ),
    "first call\nms": (
        "launch overhead: host time until the call returns, of 200 calls back to back; argument checks and "
        "the allocation of the output included. after idle: of one call by a process that has just woken. "
        "first call: compile or load, then run. The interval of a speedup holds the variance between "
        "processes. within noise: it includes 1."
    ),
    "multiplies by": (
        "multiplies by: the instruction in its machine code, and its shape; - for PyTorch's own kernels."
    ),
    "burst\nµs": (
        "burst: the first calls after a pause, before power and heat hold the clock down; sustained: calls "
        "without a pause, once their time has settled."
    ),
    "search\ns": (
        "tried: how many of the configurations that there are were timed; search: what that took, compiling "
        "them included, as part of the first call unless it is from the cache of an earlier run (--retune "
        "searches anew)."
    ),
    "which is": "default: what runs if nobody asks; within noise: of the fastest, cold.",
    "occupancy": "occupancy: resident warps per multiprocessor, as a share of the maximum (theoretical).",
    "all": (
        "all: the project's code that the default case needs, wherever it stands. own kernels: those that it "
        "launches. own host code: the function that launches them, and the binding of C++ by hand. op "
        "helpers, shared: what these use in the op's files, and in others; Triton's (tl.load, tl.sum) is its "
        "compiler's and not counted."
    ),
}
"""What columns are, by the header of one of them."""
_CHANGED = "*: its source has changed since."
_ARCHS = "a / b / c: one figure for each architecture, or one for all where they agree."


# --------------------------------------------------------------------------- one figure


def number(value: float | None, digits: int = 3) -> str:
    """``0.0123``, ``12.3``, ``1235``: three significant digits, never an exponent, whole from 1000 on."""
    if value is None or math.isnan(value):
        return NOTHING
    if value == 0 or abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def count(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def median(value: Estimate | None) -> str:
    """``45.3``: four significant digits."""
    return number(value.median if value else None, 4)


def spread(value: Estimate | None) -> str:
    """``45.3 ±0.2``: a median, and how far the further end of its interval lies; ``45.3 (n=2)`` has none."""
    if value is None or len(value.samples) < ENOUGH:
        return f"{median(value)} (n={len(value.samples)})" if value else NOTHING
    margin = max(value.high - value.median, value.median - value.low)
    places = len(median(value).partition(".")[2])
    return f"{median(value)} ±{margin:.{places}f}"


def times(value: Estimate | None, few: int = 0) -> str:
    """``1.25 (1.24-1.26)``: a ratio and its interval; ``1.25 (n=2)`` of ``few`` rounds has none."""
    return NOTHING if value is None else f"{value.median:.2f} ({_interval(value, 2, few)})"


def speedup(value: Estimate, few: int = 0) -> str:
    """`times` as ``1.25x (1.24-1.26)``, with a third decimal where it is near 1."""
    digits = 3 if 1 / 1.1 < value.median < 1.1 else 2
    return f"{value.median:.{digits}f}x ({_interval(value, digits, few)})"


def _interval(value: Estimate, digits: int, few: int) -> str:
    return f"n={few}" if few else f"{value.low:.{digits}f}-{value.high:.{digits}f}"


SAME = "within noise"


def lead(row: Row, other: Row) -> str:
    """`times`, or `SAME` where that would claim a difference that is none."""
    ratio, few = figures.ratio(row, other), figures.few(row, other)
    return times(ratio, few) if ratio is None or few or figures.differs(row, other) else SAME


def percent(share: float | None) -> str:
    if share is None or math.isnan(share):
        return NOTHING
    return f"{share:.0%}" if math.isfinite(share) else "inf"


def error(value: float | None) -> str:
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:.1e}" if math.isfinite(value) else str(value)


# --------------------------------------------------------------------------- which tables


def details(comparison: Comparison, *, every: bool = False) -> list[Block]:
    """All tables and notes, then the legends.

    Args:
        comparison: what was run.
        every: the tables of every timed case; else of many only those of the main one.
    """
    timed, main = figures.timed_cases(comparison), figures.main_case(comparison)
    swept = len(timed) > figures.LISTED_CASES
    listed = [case for case in timed if case is main] if swept and not every else timed
    blocks: list[Block | None] = [agreement(comparison)]
    for case in listed:
        blocks += [speed(case), side_by_side(case), endurance(case), card(case)]
    blocks += [sweep(timed) if swept else None, *map(configurations, listed or comparison.cases)]
    blocks += [*map(trials, comparison.cases), *map(resources, comparison.cases)]
    blocks += map(counters, comparison.cases)
    blocks += [code(comparison), "\n".join(f"  {way}: {words}" for way, words in concepts(comparison))]
    notes = [f"  {labels}: {' '.join(reason.split())}" for labels, reason in reasons(comparison)]
    blocks.append("\n".join(["Not run, failed, and notes", *notes]) if notes else None)
    shown = [block for block in blocks if block]
    legend: dict[str, None] = {}
    for block in (block for block in shown if isinstance(block, Table)):
        meanings = (_MEANINGS[header] for header in block.headers if header in _MEANINGS)
        legend |= dict.fromkeys((*meanings, *block.legend))
    return [*shown, *([" ".join(legend)] if legend else [])]


def added(comparison: Comparison) -> list[Block]:
    """What ``--sustained``, ``--matched`` and ``--tune`` have added."""
    rows = [row for case in comparison.cases for row in case.rows]
    matched = [row for row in rows if row.configuration.model]
    ran = any(row.timing for row in matched)
    blocks: list[Block | None] = []
    for case in comparison.cases:
        blocks += [endurance(case), configurations(case) if ran else None, trials(case)]
    blocks += dict.fromkeys(row.configuration.unmatched for row in rows)
    blocks += dict.fromkeys(f"--matched: {row.reason}" for row in matched if row.reason)
    return [block for block in blocks if block]


# --------------------------------------------------------------------------- speed


def agreement(comparison: Comparison) -> Table | None:
    """Every implementation against fp64, over the cases that were checked but not timed."""
    timed = {case.case for case in figures.timed_cases(comparison)}
    checked = [case for case in comparison.cases if any(row.agreement for row in case.rows)]
    if not checked or all(case.case in timed for case in checked):
        return None
    return table(
        f"Correctness against fp64 on {'; '.join(case.case for case in checked)}",
        figures.verdicts(comparison),
        {
            "implementation": lambda verdict: verdict.label,
            "level": lambda verdict: verdict.level,
            "correct": lambda verdict: correct(verdict.status),
            "max abs\nerror": lambda verdict: error(verdict.max_abs),
            "max rel\nerror": lambda verdict: error(verdict.max_rel),
            "% of\ntolerance": lambda verdict: percent(verdict.used),
            "cases\nchecked": lambda verdict: str(verdict.cases),
        },
        ("level", "correct"),
    )


def correct(status: str) -> str:
    """The cell of a column headed "correct"."""
    return "yes" if status == "ok" else WORDS[status]


LineColumns = dict[str, Callable[[Line], str]]


def speed(case: CaseComparison) -> Table:
    """Correctness and time of every implementation on one case."""
    every = lines.every(case)
    checked = any(row.agreement for row in case.rows)
    origins = lines.recorded_on(case.rows)
    return table(
        f"Speed on {case.case}" + (f", recorded on {'; '.join(origins)}" if origins else ""),
        every,
        {
            "implementation": _marked,
            "level": lambda line: line.row.shown_level,
            **(_ERROR_COLUMNS if checked else {}),
            "cold\nµs": lambda line: spread(line.timing.cold_us),
            "warm\nµs": lambda line: median(line.timing.warm_us),
            "graph\nµs": lambda line: median(line.timing.graph_us),
            **(_ARITHMETIC_COLUMNS if figures.compute_bound(case) else _TRAFFIC_COLUMNS),
            f"speedup vs\n{figures.baseline_of(case)}": _against,
            "launch\noverhead µs": lambda line: number(line.launch_us),
            "after idle\nµs": lambda line: median(line.timing.after_idle_us),
            "first call\nms": lambda line: number(line.timing.first_call_ms),
        },
        ("level", "correct"),
        (_CHANGED,) if any(line.stale for line in every) else (),
    )


_ERROR_COLUMNS: LineColumns = {
    "correct": lambda line: correct(line.row.status),
    "max abs\nerror": lambda line: error(line.row.agreement.max_abs if line.row.agreement else None),
    "max rel\nerror": lambda line: error(line.row.agreement.max_rel if line.row.agreement else None),
    # What is just over the limit does not read 100%.
    "% of\ntolerance": lambda line: percent(
        max(line.used, 1.01) if line.used and line.used > 1 else line.used
    ),
}
_ARITHMETIC_COLUMNS: LineColumns = {
    "TFLOP/s": lambda line: number(line.tflops),
    "% of peak\n(measured)": lambda line: percent(line.share_of_product),
}
_TRAFFIC_COLUMNS: LineColumns = {
    "GB/s": lambda line: number(line.gbs, 4),
    "% of copy\nbandwidth": lambda line: percent(line.share_of_copy),
}


def _marked(line: Line) -> str:
    return f"{line.label} *" if line.stale else line.label


def _against(line: Line) -> str:
    if line.us is None:
        return NOTHING
    if line.reference:
        return "1"
    if line.terms:
        return "unequal terms"
    return SAME if line.same else times(line.speedup, line.few)


def side_by_side(case: CaseComparison) -> Table | None:
    """What has one name in Triton, through cupy and through pybind11, a line each."""
    pairs = figures.same_variant(case).items()
    if not pairs:
        return None

    columns: dict[str, Callable[[tuple[str, dict[str, Row]]], str]] = {
        "name": lambda pair: pair[0],
        "level": lambda pair: " / ".join(sorted({row.shown_level for row in pair[1].values()})),
        "triton\nµs": lambda pair: _cold(pair[1].get("triton")),
        "cupy\nµs": lambda pair: _cold(pair[1].get("cupy")),
        "pybind\nµs": lambda pair: _cold(pair[1].get("pybind")),
        "speedup of Triton\nvs CUDA (cupy)": lambda pair: _pair(pair[1].get("triton"), pair[1].get("cupy")),
        "speedup of pybind\nvs cupy": lambda pair: _pair(pair[1].get("pybind"), pair[1].get("cupy")),
    }
    return table("Triton, cupy and pybind side by side, cold", pairs, columns, ("level",))


def _cold(row: Row | None) -> str:
    return median(row.timing.cold_us if row and row.timing else None)


def _pair(row: Row | None, other: Row | None) -> str:
    if row is None or other is None:
        return NOTHING
    if row.accumulator != other.accumulator or row.shown_level != other.shown_level:
        return "unequal terms"
    return lead(row, other)


def endurance(case: CaseComparison) -> Table | None:
    """Back to back: the first calls after a pause, and once their time has settled."""
    both = [
        (line, line.timing.burst_us, line.timing.sustained_us)
        for line in lines.every(case)
        if line.timing.burst_us and line.timing.sustained_us and line.timing.burst_us.median > 0
    ]
    if not both:
        return None
    return table(
        f"Back to back on {case.case}, warm",
        both,
        {
            "implementation": lambda entry: _marked(entry[0]),
            "burst\nµs": lambda entry: spread(entry[1]),
            "sustained\nµs": lambda entry: spread(entry[2]),
            "sustained\nover burst": lambda entry: f"{entry[2].median / entry[1].median:.2f}",
        },
    )


def configurations(case: CaseComparison) -> Table | None:
    """Configurations searched for, with cost and gain, and rows that were run with the one found."""
    rows: list[tuple[str, ...]] = []
    legend: dict[str, None] = {}
    for line in lines.every(case):
        row, configuration = line.row, line.row.configuration
        if configuration.parameters or not (configuration.tunings or configuration.text):
            continue
        searches = [
            (
                configured(each.found),
                f"{each.tried} of {len(each.space)}",
                number(each.search_s),
                f"{each.searched[:10]}{', kept' if each.kept else ''}",
            )
            for each in configuration.tunings
        ] or [(configuration.text, NOTHING, NOTHING, NOTHING)]
        others = (figures.row_of(case, label) for label in (configuration.default, configuration.model))
        leads = [(lead(row, other), other.label) for other in others if other] or [(NOTHING, NOTHING)]
        label = _marked(line)
        for search, speedup_of in zip_longest(searches, leads, fillvalue=("",) * 4):
            rows.append((label, *search, *speedup_of[:2]))
            label = ""
        for each in configuration.tunings:
            among = "; ".join(map(configured, each.space))
            legend[f"{row.label} chooses {each.kernel} from: {among}."] = None
    if not rows:
        return None
    return Table(
        f"Configurations on {case.case}",
        ("implementation", "configuration", "tried", "search\ns", "searched on", "speedup\ncold", "vs"),
        tuple(rows),
        ("configuration", "searched on", "vs"),
        tuple(legend),
    )


def card(case: CaseComparison) -> str:
    """Clock, power and temperature of the card during the run, in a line; empty where not measured."""
    if case.card is None:
        return ""
    held = [reason for reason in dict.fromkeys(case.card.throttle) if reason != "none"]
    facts = [
        _range(case.card.sm_mhz, "MHz"),
        _range(case.card.power_w, "W"),
        _range(case.card.temperature_c, "°C"),
        f"clock held down by {' / '.join(held)}" if held else "",
    ]
    return f"The card meanwhile: {', '.join(filter(None, facts))}."


def _range(values: Sequence[float], unit: str) -> str:
    if not values:
        return ""
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def sweep(cases: Sequence[CaseComparison]) -> Table:
    """One line a case: each implementation's share of the ceiling that binds."""
    labels = list(dict.fromkeys(row.label for case in cases for row in case.rows if row.timing))

    def share(label: str) -> Callable[[CaseComparison], str]:
        return lambda case: _swept(case, label)

    return table(
        f"Every case, cold: % of {' or '.join(dict.fromkeys(map(figures.share_of, cases)))}",
        cases,
        {"case": lambda case: case.case, **{label.replace(".", ".\n", 1): share(label) for label in labels}},
    )


def _swept(case: CaseComparison, label: str) -> str:
    row = figures.row_of(case, label)
    if row is None:
        return NOTHING
    return WORDS[row.status] if row.status in (*WRONG, "failed") else percent(figures.share(case, row))


# --------------------------------------------------------------------------- kernels


def resources(case: CaseComparison) -> Table | None:
    """Registers, shared memory, spills and occupancy, a line a kernel; ``a / b``: by architecture.

    Rows that ``--tune`` has added have a table of their own.
    """
    rows = [row for row in case.rows if row.resources and not figures.is_trial(row)]
    if not rows:
        return None
    instructed = any(kernel.instruction for row in rows for kernel in row.resources)
    columns = {**(_INSTRUCTION_COLUMN if instructed else {}), **_KERNEL_COLUMNS}
    title = f"Registers, shared memory and occupancy, {_how_known(rows)}, {case.case}"
    return _by_kernel(title, rows, {"implementation": lambda row: row.label}, columns)


def counters(case: CaseComparison) -> Table | None:
    """What Nsight Compute counted, a line a kernel."""
    entries = [(row, kernel) for row in case.rows for kernel in row.counters]
    columns: dict[str, Callable[[tuple[Row, KernelCounters]], str]] = {
        "implementation": lambda entry: entry[0].label,
        "kernel": lambda entry: figures.short_kernel(entry[1].kernel),
        "L2\nhit rate": lambda entry: percent(entry[1].l2_hit_rate),
        "bank\nconflicts": lambda entry: percent(entry[1].bank_conflicts),
        "warps wait for": lambda entry: ", ".join(
            f"{reason} {percent(share)}" for reason, share in [*entry[1].stalls.items()][:_STALLS]
        ),
    }
    texts, title = ("kernel", "warps wait for"), f"Nsight Compute, {case.case}"
    return table(title, entries, columns, texts, (_COUNTED,)) if entries else None


_STALLS = 3
_COUNTED = (
    "bank conflicts: the share of shared memory's wavefronts that they add; warps wait for: shares of the "
    "time of resident warps, by ncu's stall reasons."
)


def trials(case: CaseComparison) -> Table | None:
    """What ``--tune`` has tried: each value with its time, and a line for each of its kernels.

    None where nothing was tried, or nothing is known of it.
    """
    groups = {row.label: rows for rows in figures.trials(case) for row in rows}
    rows = [row for group in figures.trials(case) for row in group]
    if not any(row.resources or (row.timing and figures.is_trial(row)) for row in rows):
        return None
    how = f", {_how_known(rows)}" if figures.kernels(rows) else ""
    columns: dict[str, Callable[[Row], str]] = {
        "implementation": lambda row: (  # one column, as a narrow screen repeats the first
            f"{registered_as(row.label)} {values.worded(row.configuration.parameters)}"
        ),
        "which is": lambda row: ", ".join(_which(row, groups[row.label])) or NOTHING,
        "cold\nµs": lambda row: spread(row.timing.cold_us if row.timing else None),
        "speedup vs\nits default": lambda row: _against_default(row, groups[row.label]),
    }
    # Most have one kernel, which then needs no name.
    named = any(len(figures.kernels([row])) > 1 for row in rows)
    title = f"With other values on {case.case}{how}"
    return _by_kernel(title, rows, columns, _KERNEL_COLUMNS, named=named)


def _which(row: Row, rows: Sequence[Row]) -> list[str]:
    """``default``, ``fastest``, or ``within noise`` of it; or that it does not count."""
    words = [] if figures.is_trial(row) else ["default"]
    if row.status != "ok":
        return [*words, correct(row.status)]
    best = figures.fastest(rows)
    if best is None or not figures.timed_trials(rows) or not (row.timing and row.timing.cold_us):
        return words
    if row is best:
        return [*words, "fastest"]
    return words if figures.differs(best, row) else [*words, "within noise"]


def _against_default(row: Row, rows: Sequence[Row]) -> str:
    default = next((other for other in rows if not figures.is_trial(other)), None)
    if row is default and row.timing:
        return "1"
    return lead(row, default) if default else NOTHING


KernelColumns = dict[str, Callable[[KernelResources], str]]

_KERNEL_COLUMNS: KernelColumns = {
    "registers\n/thread": lambda k: str(k.registers),
    "shared B\nstatic": lambda k: str(k.static_shared_bytes),
    "shared B\ndynamic": lambda k: str(k.dynamic_shared_bytes),
    "spilled B\n/thread": lambda k: count(k.spilled_bytes),
    "occupancy": lambda k: percent(k.occupancy),
    "limited by": lambda k: k.limiter or NOTHING,
    "threads\n/block": lambda k: count(math.prod(k.block) if k.block else None),
    "blocks": lambda k: count(math.prod(k.grid) if k.grid else None),
}
_INSTRUCTION_COLUMN: KernelColumns = {"multiplies by": lambda k: k.instruction or NOTHING}


def _by_kernel(
    title: str,
    rows: Sequence[Row],
    of_row: dict[str, Callable[[Row], str]],
    of_kernel: KernelColumns,
    *,
    named: bool = True,
) -> Table:
    """A line for each kernel; what is of its row stands in the first of the row's lines only."""
    archs = _archs(rows)
    lines: list[tuple[str, ...]] = []
    for row in rows:
        cells = tuple(read(row) for read in of_row.values())
        for _, name, by_arch in figures.kernels([row]) or [(row, NOTHING, {})]:
            here = [arch for arch in archs if arch in by_arch]
            which = name if here in ([], archs) else f"{name} ({', '.join(here)})"
            values = ([read(by_arch[arch]) for arch in here] or [NOTHING] for read in of_kernel.values())
            # One figure for all architectures where they agree.
            merged = (" / ".join(each if len(set(each)) > 1 else each[:1]) for each in values)
            lines.append((*cells, *([which] if named else []), *merged))
            cells = ("",) * len(cells)
    return Table(
        title,
        (*of_row, *(["kernel"] if named else []), *of_kernel),
        tuple(lines),
        ("which is", "kernel", "multiplies by", "limited by"),
        (_ARCHS,) if len(archs) > 1 else (),
    )


def _archs(rows: Iterable[Row]) -> list[str]:
    """The architectures that there is a kernel for, oldest first."""
    archs = {arch for _, _, by_arch in figures.kernels(rows) for arch in by_arch}
    return sorted(archs, key=lambda arch: int(arch.removeprefix("sm_")))


def _how_known(rows: Sequence[Row]) -> str:
    """``as run on sm_90``, ``compiled here for sm_75 / sm_80``"""
    archs = _archs(rows)
    measured = any(kernel.reader == "profiler" for row in rows for kernel in row.resources)
    return f"{'as run on' if measured and len(archs) == 1 else 'compiled here for'} {' / '.join(archs)}"


# --------------------------------------------------------------------------- code


def code(comparison: Comparison) -> Table | None:
    """Lines and tokens: all code that a reader must read, and its parts."""
    if not comparison.code_sizes:
        return None
    sizes = comparison.code_sizes.items()
    fallbacks = [f"{label} ({', '.join(size.fallbacks)})" for label, size in sizes if size.fallbacks]
    uncounted = f"Not counted, as only other cases launch them: {'; '.join(fallbacks)}."
    return table(
        "Code size: lines / tokens, without comments and blank lines",
        sizes,
        {
            "implementation": lambda entry: entry[0],
            "all": lambda entry: _size(entry[1].whole),
            "own\nkernels": lambda entry: _size(entry[1].kernel),
            "own host\ncode": lambda entry: _size(entry[1].host),
            "op\nhelpers": lambda entry: _size(entry[1].helpers),
            "shared with\nother ops": lambda entry: _size(entry[1].shared),
            "concepts": lambda entry: str(len(entry[1].concepts)),
        },
        legend=(uncounted,) if fallbacks else (),
    )


def _size(size: RoleSize) -> str:
    return f"{size.lines} / {size.tokens}" if size.tokens else NOTHING


def concepts(comparison: Comparison) -> list[tuple[str, str]]:
    """``(way, concepts)``: what a reader of each way must know, and what some rows ask for besides."""
    ways = []
    for way in dict.fromkeys(map(way_of, comparison.code_sizes)):
        sizes = {label: size for label, size in comparison.code_sizes.items() if way_of(label) == way}
        askers = grouped((concept, label) for label, size in sizes.items() for concept in size.concepts)
        groups: dict[str, list[str]] = {"": []}
        for concept, labels in askers.items():
            who = "" if len(labels) == len(sizes) else _summed_up(labels, sizes)
            groups.setdefault(who, []).append(concept)
        common = ", ".join(groups.pop(""))
        extra = [f"{who} also {', '.join(words)}" for who, words in groups.items()]
        if askers:
            ways.append((way, "; ".join(filter(None, (common, *extra)))))
    return ways


def _summed_up(labels: Sequence[str], of: Iterable[str]) -> str:
    """``pybind`` for all of a route, ``split, ring`` for variants in every route, else the labels."""
    for part in (0, 2):
        names = dict.fromkeys(label.partition(".")[part] for label in labels)
        if set(labels) == {label for label in of if label.partition(".")[part] in names}:
            return ", ".join(names)
    return ", ".join(labels)


def reasons(comparison: Comparison) -> list[tuple[str, str]]:
    """``(labels, reason)`` of every row that has something to explain, equal reasons together."""
    every: list[tuple[str, str]] = []
    for row in (row for case in comparison.cases for row in case.rows):
        timing = None if row.recorded else row.timing
        notes = (timing.unverified, *timing.notes) if timing else ()
        every += [(note, row.label) for note in (row.reason, row.configuration.unmatched, *notes) if note]
    return [(", ".join(labels), reason) for reason, labels in grouped(every).items()]


def told_apart(comparison: Comparison) -> str:
    """What counts as a difference on this device, and how that is known; empty where nothing is timed."""
    environment = comparison.environment
    if environment.device_type != "cuda":
        return ""
    calibrated = environment.calibration or calibration.BUILT_IN
    limits, above = [], 0.0
    for size in calibrated.classes:
        reach = f"from {above:.0f} µs" if math.isinf(size.below_us) else f"below {size.below_us:.0f} µs"
        limits.append(f"{_share(size.share)} {reach}")
        above = size.below_us
    how = (
        f"calibrated on {calibrated.created[:10]}"
        if calibrated.created
        else "built in; 'python -m compare doctor --calibrate' finds this machine's own"
    )
    return f"between processes of equal code: {', '.join(limits)} ({how})"


def _share(share: float) -> str:
    return f"{share:.1%}".replace(".0%", "%")
