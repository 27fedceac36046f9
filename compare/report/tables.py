"""The tables of a comparison, as words and figures: what the terminal, Markdown and the documents print."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from compare.model.op import way_of
from compare.model.result import WRONG, CaseComparison, Comparison, Estimate, KernelResources, RoleSize, Row
from compare.report import lines
from compare.report.lines import WORDS, Line, grouped
from compare.timing import calibration, figures
from compare.timing.statistics import ENOUGH
from compare.tuning.matching import configured

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
    """What its columns mean, a sentence or two each."""


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


_ERROR_LEGEND = "max abs and max rel error: against fp64; % of tolerance: the most that any element uses."
_SPEED_LEGEND = (
    "cold, warm: GPU time with the input out of, and left in, the L2 cache; graph: replayed as a CUDA graph. "
    "± and brackets: 95% interval; n: samples, where they are too few for one. {work} launch overhead: host "
    "time until the call returns. first call: compile or load, then run. The interval of a "
    "speedup holds the variance between processes. within noise: it includes 1."
)
_TRAFFIC_LEGEND = (
    "GB/s: compulsory bytes (every input read once, every output written once) over the cold time; % of copy "
    "bandwidth: over what a copy reached in the same run."
)
_ARITHMETIC_LEGEND = (
    "TFLOP/s: the operations of the case over the cold time; % of peak (measured): over what the library's "
    "matmul of this dtype reached in the same run."
)
_INSTRUCTION_LEGEND = (
    "multiplies by: the instruction in its machine code, and its shape; - for PyTorch's own kernels."
)
_ENDURANCE_LEGEND = (
    "burst: the first calls after a pause, before power and heat hold the clock down; sustained: calls "
    "without a pause, once their time has settled."
)
_TUNING_LEGEND = (
    "tried: how many of the configurations that there are were timed; search: what that took, compiling them "
    "included, as part of the first call unless it is from the cache of an earlier run (--retune searches "
    "anew)."
)
_OCCUPANCY_LEGEND = "occupancy: resident warps per multiprocessor, as a share of the maximum (theoretical)."
_ARCHS_LEGEND = "a / b / c: one figure for each architecture, or one for all where they agree."
_CODE_LEGEND = (
    "own: the kernels that the default case launches, and the function that launches them. op helpers: the "
    "op's other code that these use. shared: code for any op that they use; Triton's (tl.load, tl.sum) is "
    "the compiler's and not counted."
)
_CHANGED_LEGEND = "*: its source has changed since."


# --------------------------------------------------------------------------- one figure


def number(value: float | None, digits: int = 3) -> str:
    """``0.0123``, ``12.3``, ``1235``: three significant digits, never an exponent, whole from 1000 on."""
    if value is None or math.isnan(value):
        return NOTHING
    if value == 0 or abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def spread(value: Estimate | None) -> str:
    """``45.3 ±0.2``: a median, and how far the further end of its interval lies; ``45.3 (n=2)`` has none."""
    if value is None:
        return NOTHING
    margin = max(value.high - value.median, value.median - value.low)
    shown = number(value.median, 4)
    if count := _few(value):
        return f"{shown} (n={count})"
    places = len(shown.partition(".")[2])
    return f"{shown} ±{margin:.{places}f}"


def times(value: Estimate | None) -> str:
    """``1.25 (1.24-1.26)``: a ratio and its interval; ``1.25 (n=2)`` has none."""
    if value is None:
        return NOTHING
    interval = f"n={count}" if (count := _few(value)) else f"{value.low:.2f}-{value.high:.2f}"
    return f"{value.median:.2f} ({interval})"


def speedup(value: Estimate) -> str:
    """``1.25x (1.24-1.26)``, with a third decimal where it is near 1; ``1.25x (n=2)`` has no interval."""
    digits = 3 if 1 / 1.1 < value.median < 1.1 else 2
    few = _few(value)
    interval = f"n={few}" if few else f"{value.low:.{digits}f}-{value.high:.{digits}f}"
    return f"{value.median:.{digits}f}x ({interval})"


def _few(value: Estimate) -> int:
    """How many samples it has, where they are too few for an interval; 0 where not."""
    return len(value.samples) if len(value.samples) < ENOUGH else 0


SAME = "within noise"


def lead(row: Row, other: Row) -> str:
    """`times`, or `SAME` where that would claim a difference that is none."""
    found = figures.ratio(row, other)
    claims = found is None or figures.few(row, other) or figures.differs(row, other)
    return times(found) if claims else SAME


def percent(share: float | None) -> str:
    if share is None or math.isnan(share):
        return NOTHING
    return f"{share:.0%}" if math.isfinite(share) else "inf"


def error(value: float | None) -> str:
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:.1e}" if math.isfinite(value) else str(value)


def _median(value: Estimate | None) -> str:
    return number(value.median if value else None, 4)


# --------------------------------------------------------------------------- tables


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
        (_ERROR_LEGEND,),
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
    legends = (
        _ERROR_LEGEND if checked else "",
        _SPEED_LEGEND.format(work=_ARITHMETIC_LEGEND if figures.compute_bound(case) else _TRAFFIC_LEGEND),
        _CHANGED_LEGEND if any(line.stale for line in every) else "",
    )
    return table(
        f"Speed on {case.case}" + (f", recorded on {'; '.join(origins)}" if origins else ""),
        every,
        {
            "implementation": _marked,
            "level": lambda line: line.row.level,
            **(_ERROR_COLUMNS if checked else {}),
            "cold\nµs": lambda line: spread(line.timing.cold_us),
            "warm\nµs": lambda line: _median(line.timing.warm_us),
            "graph\nµs": lambda line: _median(line.timing.graph_us),
            **(_ARITHMETIC_COLUMNS if figures.compute_bound(case) else _TRAFFIC_COLUMNS),
            f"speedup vs\n{figures.baseline_of(case)}": _against,
            "launch\noverhead µs": lambda line: number(line.launch_us),
            "first call\nms": lambda line: number(line.timing.first_call_ms),
        },
        ("level", "correct"),
        tuple(filter(None, legends)),
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
    return SAME if line.same else times(line.speedup)


def side_by_side(case: CaseComparison) -> Table | None:
    """The same variant written in Triton and in CUDA, at the same level."""
    pairs = figures.same_variant(case).items()
    if not pairs:
        return None

    def us(route: str) -> Callable[[tuple[str, dict[str, Row]]], str]:
        return lambda pair: _cold(pair[1].get(route))

    return table(
        "The same variant by way and route, cold",
        pairs,
        {
            "variant": lambda pair: pair[0],
            "level": lambda pair: " / ".join(sorted({row.level for row in pair[1].values()})),
            **{f"{route}\nµs": us(route) for route in ("triton", "cupy", "pybind")},
            "speedup of Triton\nvs CUDA (cupy)": lambda pair: _pair(
                pair[1].get("triton"), pair[1].get("cupy")
            ),
            "speedup of pybind\nvs cupy": lambda pair: _pair(pair[1].get("pybind"), pair[1].get("cupy")),
        },
        ("level",),
    )


def _cold(row: Row | None) -> str:
    return _median(row.timing.cold_us if row and row.timing else None)


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
        legend=(_ENDURANCE_LEGEND,),
    )


def configurations(case: CaseComparison) -> Table | None:
    """Configurations searched for, with cost and gain, and rows that were run with the one found."""
    rows: list[tuple[str, ...]] = []
    spaces: dict[str, None] = {}
    for line in lines.every(case):
        row = line.row
        configuration = row.configuration
        if configuration.parameters or not (configuration.tunings or configuration.text):
            continue
        found = [
            (
                configured(each.found),
                f"{each.tried} of {len(each.space)}",
                number(each.search_s),
                f"{'cache' if each.kept else 'this run'}, {each.searched[:10]}",
            )
            for each in configuration.tunings
        ] or [(configuration.text, NOTHING, NOTHING, NOTHING)]
        others = [
            figures.row_of(case, label) for label in (configuration.default, configuration.model) if label
        ]
        held = [(lead(row, other), other.label) for other in others if other] or [(NOTHING, NOTHING)]
        pairs = zip_longest(found, held, fillvalue=("",) * 4)
        rows += [(_marked(line), *left, *right[:2]) for left, right in pairs]
        for each in configuration.tunings:
            among = "; ".join(map(configured, each.space))
            spaces[f"{row.label} chooses {each.kernel} from: {among}."] = None
    if not rows:
        return None
    return Table(
        f"Configurations on {case.case}",
        ("implementation", "configuration", "tried", "search\ns", "searched in", "speedup\ncold", "vs"),
        _blank_repeats(rows),
        ("configuration", "searched in", "vs"),
        (_TUNING_LEGEND, *spaces),
    )


def card(case: CaseComparison) -> str:
    """Clock, power and temperature of the card during the run, in a line; empty where not measured."""
    if case.card is None:
        return ""
    held = [reason for reason in dict.fromkeys(case.card.throttle) if reason != "none"]
    said = [
        _range(case.card.sm_mhz, "MHz"),
        _range(case.card.power_w, "W"),
        _range(case.card.temperature_c, "°C"),
        f"clock held down by {' / '.join(held)}" if held else "",
    ]
    return f"The card meanwhile: {', '.join(filter(None, said))}."


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


def resources(case: CaseComparison) -> Table | None:
    """Registers, shared memory, spills and occupancy, a line a kernel; ``a / b``: by architecture.

    Rows that ``--tune`` has added have a table of their own.
    """
    found = figures.kernels(row for row in case.rows if not figures.is_trial(row))
    if not found:
        return None
    archs = archs_of(found)
    readers = list(KERNEL_COLUMNS)
    instructed = any(k.instruction for _, _, by_arch in found for k in by_arch.values())
    if instructed:
        readers.insert(0, ("multiplies by", lambda k: k.instruction or NOTHING))
    rows = [
        (
            row.label,
            kernel_name(name, by_arch, archs),
            *(by_archs(by_arch, archs, read) for _, read in readers),
        )
        for row, name, by_arch in found
    ]
    return Table(
        f"Registers, shared memory and occupancy, {how_known(found)}, {case.case}",
        ("implementation", "kernel", *(header for header, _ in readers)),
        _blank_repeats(rows),
        ("kernel", "multiplies by", "limited by"),
        (*resources_legend(archs), *([_INSTRUCTION_LEGEND] if instructed else [])),
    )


KERNEL_COLUMNS: tuple[tuple[str, Callable[[KernelResources], str]], ...] = (
    ("registers\n/thread", lambda k: str(k.registers)),
    ("shared B\nstatic", lambda k: str(k.static_shared_bytes)),
    ("shared B\ndynamic", lambda k: str(k.dynamic_shared_bytes)),
    ("spilled B\n/thread", lambda k: _whole(k.spilled_bytes)),
    ("occupancy", lambda k: percent(k.occupancy)),
    ("limited by", lambda k: k.limiter or NOTHING),
    ("threads\n/block", lambda k: _whole(math.prod(k.block) if k.block else None)),
    ("blocks", lambda k: _whole(math.prod(k.grid) if k.grid else None)),
)

Kernels = Sequence[tuple[Row, str, dict[str, KernelResources]]]
"""As `figures.kernels` has them."""


def archs_of(found: Kernels) -> list[str]:
    """The architectures that there is something of, oldest first."""
    return sorted({arch for _, _, by_arch in found for arch in by_arch}, key=lambda a: int(a[3:]))


def by_archs(
    by_arch: dict[str, KernelResources], archs: Sequence[str], read: Callable[[KernelResources], str]
) -> str:
    """``32 / 40``: a figure for each architecture, or one for all where they agree."""
    values = [read(by_arch[arch]) for arch in archs if arch in by_arch] or [NOTHING]
    return values[0] if len(set(values)) == 1 else " / ".join(values)


def kernel_name(name: str, by_arch: dict[str, KernelResources], archs: Sequence[str]) -> str:
    """The kernel, and for which of the architectures it is, if not for all."""
    here = [arch for arch in archs if arch in by_arch]
    return name if here == list(archs) else f"{name} ({', '.join(here)})"


def how_known(found: Kernels) -> str:
    """``as run on sm_90``, ``compiled for sm_75 / sm_80``"""
    archs = archs_of(found)
    measured = any(k.reader == "profiler" for _, _, by_arch in found for k in by_arch.values())
    return f"{'as run on' if measured and len(archs) == 1 else 'compiled for'} {' / '.join(archs)}"


def resources_legend(archs: Sequence[str]) -> tuple[str, ...]:
    return (_OCCUPANCY_LEGEND, *([_ARCHS_LEGEND] if len(archs) > 1 else []))


def code(comparison: Comparison) -> Table | None:
    """Lines and tokens: own code, the op's helpers, both together, and what stands beside them."""
    if not comparison.code_sizes:
        return None
    sizes = comparison.code_sizes.items()
    fallbacks = [f"{label} ({', '.join(size.fallbacks)})" for label, size in sizes if size.fallbacks]
    modules = {_size(size.module) for label, size in sizes if label.startswith("pybind.")}
    legend = [
        _CODE_LEGEND,
        *(
            f"binding: the level's own statement in the op's C++ module, which has {each} besides."
            for each in modules
        ),
    ]
    if fallbacks:
        legend.append(f"Not counted, as only other cases launch them: {'; '.join(fallbacks)}.")
    return table(
        "Code size: lines / tokens, without comments and blank lines",
        sizes,
        {
            "implementation": lambda entry: entry[0],
            "own": lambda entry: _size(entry[1].own),
            "op\nhelpers": lambda entry: _size(entry[1].helpers),
            "own + op\nhelpers": lambda entry: _size(entry[1].own + entry[1].helpers),
            "shared": lambda entry: _size(entry[1].shared),
            "binding": lambda entry: _size(entry[1].binding),
            "concepts": lambda entry: str(len(entry[1].concepts)),
        },
        legend=tuple(legend),
    )


def _size(size: RoleSize) -> str:
    return f"{size.lines} / {size.tokens}" if size.tokens else NOTHING


def concepts(comparison: Comparison) -> list[tuple[str, str]]:
    """``(way, concepts)``: what a reader of each way must know, and what some variants ask for besides."""
    found = []
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
            found.append((way, "; ".join(filter(None, (common, *extra)))))
    return found


def _summed_up(labels: Sequence[str], of: Iterable[str]) -> str:
    """``pybind`` for all of a route, ``split, ring`` for variants in every route, else the labels."""
    for part in (0, 2):
        names = dict.fromkeys(label.partition(".")[part] for label in labels)
        if set(labels) == {label for label in of if label.partition(".")[part] in names}:
            return ", ".join(names)
    return ", ".join(labels)


def reasons(comparison: Comparison) -> list[tuple[str, str]]:
    """``(labels, reason)`` of every row that has something to explain, equal reasons together."""

    def said() -> Iterator[tuple[str, str]]:
        for row in (row for case in comparison.cases for row in case.rows):
            timing = None if row.recorded else row.timing
            notes = (timing.unverified, *timing.notes) if timing else ()
            yield from (
                (reason, row.label) for reason in (row.reason, row.configuration.unmatched, *notes) if reason
            )

    return [(", ".join(labels), reason) for reason, labels in grouped(said()).items()]


def told_apart(comparison: Comparison) -> str:
    """What counts as a difference on this device, and how that is known; empty where nothing is timed."""
    environment = comparison.environment
    if environment.device_type != "cuda":
        return ""
    found = environment.calibration or calibration.BUILT_IN
    limits, above = [], 0.0
    for size in found.classes:
        reach = f"from {above:.0f} µs" if math.isinf(size.below_us) else f"below {size.below_us:.0f} µs"
        limits.append(f"{_share(size.share)} {reach}")
        above = size.below_us
    how = (
        f"calibrated on {found.created[:10]}"
        if found.created
        else "built in; 'python -m compare doctor --calibrate' finds this machine's own"
    )
    return f"between processes of equal code: {', '.join(limits)} ({how})"


def _share(share: float) -> str:
    return f"{share:.1%}".replace(".0%", "%")


def _pair(row: Row | None, other: Row | None) -> str:
    if row is None or other is None:
        return NOTHING
    if row.accumulator != other.accumulator or row.level != other.level:
        return "unequal terms"
    return lead(row, other)


def _whole(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def _blank_repeats(rows: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """The label only in the first of the lines that share it."""
    shown: list[tuple[str, ...]] = []
    last = None
    for row in rows:
        shown.append(("", *row[1:]) if row[0] == last else row)
        last = row[0]
    return tuple(shown)
