"""The tables of a comparison, as words and figures: what the terminal, Markdown and the documents print."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from compare.records.archive import CHANGED, changed_since
from compare.spec import (
    WRONG,
    CaseComparison,
    Comparison,
    Estimate,
    KernelResources,
    RoleSize,
    Row,
    way_of,
)
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


Column = tuple[str, Callable[[Row], str]]

CORRECT = {
    "ok": "yes",
    "disagrees": "WRONG",
    "impossible": "impossible",
    "failed": "failed",
    "unavailable": "not run",
}


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
    rows = [
        (
            v.label,
            v.level,
            CORRECT[v.status],
            error(v.max_abs),
            error(v.max_rel),
            percent(v.used),
            str(v.cases),
        )
        for v in figures.verdicts(comparison)
    ]
    return Table(
        f"Correctness against fp64 on {'; '.join(case.case for case in checked)}",
        (
            "implementation",
            "level",
            "correct",
            "max abs\nerror",
            "max rel\nerror",
            "% of\ntolerance",
            "cases\nchecked",
        ),
        tuple(rows),
        ("level", "correct"),
        (_ERROR_LEGEND,),
    )


def speed(case: CaseComparison) -> Table:
    """Correctness and time of every implementation on one case."""
    baseline = figures.baseline_of(case)
    columns: list[Column] = [("level", lambda row: row.level)]
    if any(row.agreement for row in case.rows):
        columns += [
            ("correct", lambda row: CORRECT[row.status]),
            ("max abs\nerror", lambda row: error(row.agreement.max_abs if row.agreement else None)),
            ("max rel\nerror", lambda row: error(row.agreement.max_rel if row.agreement else None)),
            ("% of\ntolerance", lambda row: percent(_used(row))),
        ]
    columns += [
        ("cold\nµs", lambda row: spread(row.timing.cold_us if row.timing else None)),
        ("warm\nµs", lambda row: _median(row.timing.warm_us if row.timing else None)),
        ("graph\nµs", lambda row: _median(row.timing.graph_us if row.timing else None)),
        *_work_columns(case),
        (f"speedup vs\n{baseline}", lambda row: _against(case, row, baseline)),
        ("launch\noverhead µs", lambda row: number(_launch(row))),
        ("first call\nms", lambda row: number(row.timing.first_call_ms if row.timing else None)),
    ]
    legends = [
        _ERROR_LEGEND if any(row.agreement for row in case.rows) else "",
        _SPEED_LEGEND.format(work=_ARITHMETIC_LEGEND if figures.compute_bound(case) else _TRAFFIC_LEGEND),
        _CHANGED_LEGEND if any(map(changed_since, case.rows)) else "",
    ]
    return Table(
        _speed_title(case),
        ("implementation", *(header for header, _ in columns)),
        tuple((_marked(row), *(cell(row) for _, cell in columns)) for row in case.rows),
        ("level", "correct"),
        tuple(filter(None, legends)),
    )


def _work_columns(case: CaseComparison) -> list[Column]:
    """How much a row gets done, and of what that is a share: what binds decides."""
    if figures.compute_bound(case):
        return [
            ("TFLOP/s", lambda row: number(figures.tflops(case, row))),
            ("% of peak\n(measured)", lambda row: percent(figures.share_of_product(case, row))),
        ]
    return [
        ("GB/s", lambda row: number(figures.gbs(case, row), 4)),
        ("% of copy\nbandwidth", lambda row: percent(figures.share_of_copy(case, row))),
    ]


def side_by_side(case: CaseComparison) -> Table | None:
    """The same variant written in Triton and in CUDA, at the same level."""
    rows = []
    for variant, routes in figures.same_variant(case).items():
        triton, cupy, pybind = (routes.get(route) for route in ("triton", "cupy", "pybind"))
        levels = {row.level for row in routes.values()}
        rows.append(
            (
                variant,
                " / ".join(sorted(levels)),
                *(
                    _median(row.timing.cold_us if row and row.timing else None)
                    for row in (triton, cupy, pybind)
                ),
                _pair(triton, cupy),
                _pair(pybind, cupy),
            )
        )
    if not rows:
        return None
    return Table(
        "The same variant by way and route, cold",
        (
            "variant",
            "level",
            "triton\nµs",
            "cupy\nµs",
            "pybind\nµs",
            "speedup of Triton\nvs CUDA (cupy)",
            "speedup of pybind\nvs cupy",
        ),
        tuple(rows),
        ("level",),
    )


def endurance(case: CaseComparison) -> Table | None:
    """Back to back: the first calls after a pause, and once their time has settled."""
    rows = [
        (
            _marked(row),
            spread(row.timing.burst_us),
            spread(row.timing.sustained_us),
            f"{row.timing.sustained_us.median / row.timing.burst_us.median:.2f}",
        )
        for row in case.rows
        if row.timing and row.timing.burst_us and row.timing.sustained_us and row.timing.burst_us.median > 0
    ]
    if not rows:
        return None
    return Table(
        f"Back to back on {case.case}, warm",
        ("implementation", "burst\nµs", "sustained\nµs", "sustained\nover burst"),
        tuple(rows),
        legend=(_ENDURANCE_LEGEND,),
    )


def configurations(case: CaseComparison) -> Table | None:
    """Configurations searched for, with cost and gain, and rows that were run with the one found."""
    rows: list[tuple[str, ...]] = []
    spaces: dict[str, None] = {}
    for row in case.rows:
        if row.parameters or not (row.tunings or row.configuration):
            continue
        found = [
            (
                configured(each.found),
                f"{each.tried} of {len(each.space)}",
                number(each.search_s),
                f"{'cache' if each.kept else 'this run'}, {each.searched[:10]}",
            )
            for each in row.tunings
        ] or [(row.configuration, NOTHING, NOTHING, NOTHING)]
        others = [figures.row_of(case, label) for label in (row.default, row.model) if label]
        held = [(lead(row, other), other.label) for other in others if other] or [(NOTHING, NOTHING)]
        for i in range(max(len(found), len(held))):
            left = found[i] if i < len(found) else ("",) * 4
            right = held[i] if i < len(held) else ("",) * 2
            rows.append((_marked(row), *left, *right))
        for each in row.tunings:
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
    return Table(
        f"Every case, cold: % of {' or '.join(dict.fromkeys(map(figures.share_of, cases)))}",
        ("case", *(label.replace(".", ".\n", 1) for label in labels)),
        tuple((case.case, *(_swept(case, label) for label in labels)) for case in cases),
    )


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
    rows = [
        (
            label,
            *map(_size, (size.own, size.helpers, size.own + size.helpers, size.shared, size.binding)),
            str(len(size.concepts)),
        )
        for label, size in sizes
    ]
    fallbacks = [f"{label} ({', '.join(size.fallbacks)})" for label, size in sizes if size.fallbacks]
    modules = {_size(size.module) for label, size in sizes if label.startswith("pybind.")}
    return Table(
        "Code size: lines / tokens, without comments and blank lines",
        ("implementation", "own", "op\nhelpers", "own + op\nhelpers", "shared", "binding", "concepts"),
        tuple(rows),
        legend=(
            _CODE_LEGEND,
            *(
                f"binding: the level's own statement in the op's C++ module, which has {each} besides."
                for each in modules
            ),
            *(
                [f"Not counted, as only other cases launch them: {'; '.join(fallbacks)}."]
                if fallbacks
                else []
            ),
        ),
    )


def _size(size: RoleSize) -> str:
    return f"{size.lines} / {size.tokens}" if size.tokens else NOTHING


def concepts(comparison: Comparison) -> list[tuple[str, str]]:
    """``(way, concepts)``: what a reader of each way must know, and what some variants ask for besides."""
    lines = []
    for way in dict.fromkeys(map(way_of, comparison.code_sizes)):
        sizes = {label: size for label, size in comparison.code_sizes.items() if way_of(label) == way}
        askers: dict[str, list[str]] = {}
        for label, size in sizes.items():
            for concept in size.concepts:
                askers.setdefault(concept, []).append(label)
        groups: dict[str, list[str]] = {"": []}
        for concept, labels in askers.items():
            who = "" if len(labels) == len(sizes) else _summed_up(labels, sizes)
            groups.setdefault(who, []).append(concept)
        common = ", ".join(groups.pop(""))
        extra = [f"{who} also {', '.join(words)}" for who, words in groups.items()]
        if askers:
            lines.append((way, "; ".join(filter(None, (common, *extra)))))
    return lines


def _summed_up(labels: Sequence[str], of: Iterable[str]) -> str:
    """``pybind`` for all of a route, ``split, ring`` for variants in every route, else the labels."""
    for part in (0, 2):
        names = dict.fromkeys(label.partition(".")[part] for label in labels)
        if set(labels) == {label for label in of if label.partition(".")[part] in names}:
            return ", ".join(names)
    return ", ".join(labels)


def reasons(comparison: Comparison) -> list[tuple[str, str]]:
    """``(labels, reason)`` of every row that has something to explain, equal reasons together."""
    groups: dict[str, list[str]] = {}
    for case in comparison.cases:
        for row in case.rows:
            timing = None if row.replayed else row.timing
            notes = (timing.unverified, *timing.notes) if timing else ()
            for reason in filter(None, (row.reason, row.unmatched, *notes)):
                labels = groups.setdefault(reason, [])
                if row.label not in labels:
                    labels.append(row.label)
    return [(", ".join(labels), reason) for reason, labels in groups.items()]


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


def _speed_title(case: CaseComparison) -> str:
    sources = dict.fromkeys(row.replayed.removesuffix(f", {CHANGED}") for row in case.rows if row.replayed)
    return f"Speed on {case.case}" + (f", recorded on {'; '.join(sources)}" if sources else "")


def _marked(row: Row) -> str:
    return f"{row.label} *" if changed_since(row) else row.label


def _used(row: Row) -> float | None:
    if row.agreement is None or row.agreement.limit <= 0:
        return None
    used = row.agreement.error / row.agreement.limit
    return max(used, 1.01) if used > 1 else used  # what is just over the limit does not read 100%


def _launch(row: Row) -> float | None:
    return row.timing.launch_us.median if row.timing and row.timing.launch_us else None


def _against(case: CaseComparison, row: Row, baseline: str) -> str:
    reference = figures.row_of(case, baseline)
    if reference is None or not (row.timing and row.timing.cold_us):
        return NOTHING
    if row.label == baseline:
        return "1"
    if row.accumulator != reference.accumulator:
        return "unequal terms"
    return lead(row, reference)


def _pair(row: Row | None, other: Row | None) -> str:
    if row is None or other is None:
        return NOTHING
    if row.accumulator != other.accumulator or row.level != other.level:
        return "unequal terms"
    return lead(row, other)


def _swept(case: CaseComparison, label: str) -> str:
    row = figures.row_of(case, label)
    if row is None:
        return NOTHING
    if row.status in (*WRONG, "failed"):
        return CORRECT[row.status]
    return percent(figures.share(case, row))


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
