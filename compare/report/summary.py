"""What the default screen says of a comparison, as data: correct, how fast, why, at what cost, what next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compare import registry
from compare.records import archive
from compare.records.archive import Recorded
from compare.report.sentences import evidence
from compare.report.tables import number, percent
from compare.spec import (
    UNREAD,
    WAYS,
    WRONG,
    CaseComparison,
    CodeSize,
    Comparison,
    KernelResources,
    Mismatch,
    Row,
    is_yardstick,
    way_of,
)
from compare.timing import figures

_VERSIONS = {"torch": "torch", "triton": "triton", "cuda (torch)": "cuda"}


_NAMED = 3
"""So many rows that did not run are named; of more ``--details`` has the names."""


@dataclass(frozen=True)
class View:
    """What was asked for of the screen."""

    every: bool = False
    """A line for every row, not only for the best of each way."""
    explain: bool = False
    """How each column was taken."""
    details: bool = False
    """All further tables."""
    html: bool = False
    """The page of ``--html`` is written."""
    yours: frozenset[str] = frozenset()
    """Labels of the rows that a user's file has added: always on the screen."""


@dataclass(frozen=True)
class Failure:
    """Rows that are wrong or failed for the same reason."""

    labels: tuple[str, ...]
    wrong: bool
    """Else it failed: nothing was compared."""
    case: str
    reason: str
    mismatch: Mismatch | None = None


@dataclass(frozen=True)
class Line:
    """A line of the table: a row, or cupy and pybind together where they are within noise."""

    label: str
    us: float | None = None
    samples: int = 0
    speedup: float | None = None
    """Against the baseline; None where it was not timed or computes in another precision: see ``terms``."""
    noise: bool = False
    """The speedup is within noise of 1."""
    terms: str = ""
    """The precision it sums in, where that is not the baseline's."""
    share: float | None = None
    """Of the ceiling that binds, 0 to 1."""
    registers: int | None = None
    """Per thread, and shared memory per block: of the kernel of the row that takes most."""
    shared_bytes: int | None = None
    lines: int | None = None
    stale: bool = False
    """The source has changed since the time was recorded."""


@dataclass(frozen=True)
class Block:
    """One case: its table, and why it came out as it did."""

    case: str
    title: str
    baseline: str
    ceiling: str
    """``% of copy bandwidth`` or ``% of peak (measured)``."""
    lines: tuple[Line, ...]
    launch: str
    """Launch overheads, in a line; empty where nothing was timed."""
    notes: tuple[str, ...]
    yours: tuple[str, ...]
    why: tuple[str, ...]


_SWEPT = 10
"""A sweep shows this many cases, evenly spread over its list; ``--all`` shows each."""


@dataclass(frozen=True)
class Swept:
    """One case of a sweep: the best of each way."""

    case: str
    us: float | None
    """The baseline's."""
    speedups: tuple[float | None, ...]
    """Of the best of torch (compile and naive included), Triton and CUDA."""
    leaders: tuple[str, ...]
    """The fastest way, and ways within noise of it."""
    best: str
    """The label of the fastest."""
    share: float | None
    ceiling: str


@dataclass(frozen=True)
class Summary:
    """Everything on the default screen."""

    op: str
    formula: str
    """What is computed; the signature of an op that is not known here."""
    signature: str
    machine: tuple[tuple[str, ...], ...]
    """Lines of facts on where and with what the figures came about."""
    interrupted: bool
    failures: tuple[Failure, ...]
    correct: str
    not_run: tuple[str, ...]
    blocks: tuple[Block, ...]
    sweep: tuple[Swept, ...]
    swept: str
    """How often each way is the fastest over the whole sweep; empty without a sweep."""
    untimed: str
    """Why there is no time on the screen; empty where there is one."""
    next: tuple[str, ...]


def summarize(comparison: Comparison, view: View | None = None) -> Summary:
    """The default screen of a comparison.

    Args:
        comparison: what was run.
        view: what was asked for of the screen.
    """
    view = view or View()
    timed = figures.timed_cases(comparison)
    main = figures.main_case(comparison)
    shown = timed if 0 < len(timed) <= figures.LISTED_CASES else [main] if main else []
    records = {case.case: _recorded(comparison, case) for case in shown}
    archs = {case.case: _arch(comparison, case, records[case.case]) for case in shown}
    failures = _failures(comparison)
    sweep = tuple(map(_swept, timed)) if len(timed) > figures.LISTED_CASES else ()
    return Summary(
        op=comparison.op,
        formula=_formula(comparison),
        signature=comparison.signature,
        machine=tuple(_machine(comparison, shown, archs)),
        interrupted=comparison.interrupted,
        failures=failures,
        correct=correct(comparison),
        not_run=tuple(_not_run(comparison)),
        blocks=tuple(
            _block(comparison, _of_arch(case, records[case.case], archs[case.case]), view) for case in shown
        ),
        sweep=sweep if view.every else _spread(sweep),
        swept=_counted(sweep, figures.baseline_of(main) if main else ""),
        untimed="" if timed else no_speed(comparison, main),
        next=tuple(_next(comparison, failures, view)),
    )


def _formula(comparison: Comparison) -> str:
    known = comparison.op in registry.op_names()
    return registry.get_op(comparison.op).formula if known else comparison.signature


# --------------------------------------------------------------------------- correctness


def correct(comparison: Comparison) -> str:
    """How many implementations match the fp64 reference, on what, and how close the worst is."""
    verdicts = figures.verdicts(comparison)
    checked = [v for v in verdicts if v.cases or v.status in WRONG]
    if not checked:
        return "nothing was checked"
    good = [v for v in checked if v.status == "ok"]
    cases = [case for case in comparison.cases if any(row.agreement for row in case.rows)]
    where = _where([v.cases for v in checked if v.cases], cases)
    if comparison.environment.device_type == "cpu":
        where = where.replace(" cases", " CPU cases") if " cases" in where else f"{where} on this CPU"
    used = [v.used for v in good if v.used is not None]
    if not good:
        how = ""
    elif used and max(used) > 0:
        most = percent(max(used)) if max(used) >= 0.005 else "less than 1%"
        how = f" (worst uses {most} of its tolerance)"
    else:
        how = " (within the last rounding)" if any(v.max_abs for v in good) else " (exact)"
    match = "matches" if len(good) == len(checked) == 1 else "match"
    return f"{len(good)} of {len(checked)} {match} fp64{where}{how}"


def _where(counts: Sequence[int], cases: Sequence[CaseComparison]) -> str:
    """The cases checked: none is named where it is the only one and the table's own."""
    if not counts or len(cases) < 2:
        return f" on {cases[0].case}" if cases and not any(row.timing for row in cases[0].rows) else ""
    least, most = min(counts), max(counts)
    if least == most == 1:
        return f" on {cases[0].case}"
    if least == len(cases):
        return f" on {least} cases"
    return f" on {least if least == most else f'{least} to {most}'} of {len(cases)} cases each"


def _failures(comparison: Comparison) -> tuple[Failure, ...]:
    """Wrong rows first, then failed ones: each on its first such case, equal reasons together."""
    found: dict[tuple[bool, str, str], list[Row]] = {}
    seen: set[str] = set()
    for case in comparison.cases:
        for row in case.rows:
            if row.status in (*WRONG, "failed") and row.label not in seen:
                seen.add(row.label)
                found.setdefault((row.status in WRONG, row.reason, case.case), []).append(row)
    made = [
        Failure(
            tuple(row.label for row in rows),
            wrong,
            case,
            reason,
            next((row.agreement.mismatch for row in rows if row.agreement), None),
        )
        for (wrong, reason, case), rows in found.items()
    ]
    return tuple(sorted(made, key=lambda failure: not failure.wrong))


def _not_run(comparison: Comparison) -> Iterable[str]:
    """``not run: label: reason`` of rows that ran nowhere, and ``not compiled: ...`` of those that an
    architecture does not have; equal reasons together."""
    ran = {v.label for v in figures.verdicts(comparison) if v.status != "unavailable"}
    groups: dict[str, list[str]] = {}
    for case in comparison.cases:
        for row in case.rows:
            if row.status == "unavailable" and row.label not in ran:
                reason = f"not run: {row.reason}"
            elif row.reason.startswith(UNREAD):
                reason = f"not compiled{row.reason.removeprefix(UNREAD)}"
            else:
                continue
            labels = groups.setdefault(reason, [])
            if row.label not in labels:
                labels.append(row.label)
    for reason, labels in groups.items():
        what, _, why = reason.partition(": ")
        named = f" ({', '.join(labels)})" if len(labels) <= _NAMED else ""
        yield f"{what}: {labels[0]}: {why}" if len(labels) == 1 else f"{reason}: {len(labels)} rows{named}"


# --------------------------------------------------------------------------- where and with what


def _machine(
    comparison: Comparison, shown: Sequence[CaseComparison], archs: Mapping[str, str]
) -> Iterable[tuple[str, ...]]:
    environment = comparison.environment
    versions = " ".join(
        f"{name} {environment.versions[key].partition('+')[0]}"
        for key, name in _VERSIONS.items()
        if key in environment.versions
    )
    # Of several cases the first's: the others differ in the last digit.
    ceilings = tuple({fact.split()[0]: fact for case in reversed(shown) for fact in _ceilings(case)}.values())
    if environment.device_type == "cuda":
        yield environment.device, *ceilings, versions
        return
    yield f"{environment.device} (no GPU)", "Triton interpreted, CUDA by g++", versions
    origins = dict.fromkeys(
        row.replayed.removesuffix(f", {archive.CHANGED}")
        for case in shown
        for row in case.rows
        if row.replayed
    )
    compiled = " and ".join(dict.fromkeys(filter(None, archs.values())))
    target = (f"regs, smem: {compiled}",) if compiled else ()
    if origins:
        yield f"times recorded on {'; '.join(origins)}", *ceilings, *target
    elif target:
        yield target


def _ceilings(case: CaseComparison) -> Iterable[str]:
    """What binds here, measured in the case's run."""
    found = case.ceilings
    if not found:
        return
    yield f"copy {found.copy_gbs:.0f} GB/s"
    if found.product_tflops and figures.compute_bound(case):
        yield f"peak {number(found.product_tflops)} TFLOP/s"


def _recorded(comparison: Comparison, case: CaseComparison) -> dict[str, Recorded]:
    """The records behind the replayed rows of a case; none where all was measured now."""
    if comparison.environment.device_type == "cuda" or not any(row.replayed for row in case.rows):
        return {}
    return archive.find(comparison.op, case.case)


def _arch(comparison: Comparison, case: CaseComparison, recorded: Mapping[str, Recorded]) -> str:
    """The architecture of the registers: that of the times; without times the newest compiled."""
    if comparison.environment.device_type == "cuda":
        return (comparison.environment.arch or "").rstrip("af")
    if any(row.replayed for row in case.rows):
        return next((r.run.environment.arch or "" for r in recorded.values()), "").rstrip("af")
    found = {kernel.arch.rstrip("af") for row in case.rows for kernel in row.resources}
    return max(found, key=lambda arch: int(arch.removeprefix("sm_")), default="")


def no_speed(comparison: Comparison, main: CaseComparison | None) -> str:
    """Why there is no time to show."""
    if main is None:
        return "Nothing was run."
    if comparison.environment.device_type == "cuda":
        return f"No speed: nothing on {main.case} was timed."
    if all(row.status in (*WRONG, "failed") for row in main.rows):
        return "No speed: no row is correct here, and a wrong one shows no recorded time either."
    known = comparison.op in registry.op_names()
    usual = known and main.case == str(registry.get_op(comparison.op).cases.default)
    command = f"python -m compare {comparison.op}{'' if usual else f' --case {main.case}'} --record"
    return f"No speed: there is no GPU here, and results/ holds no times. On a machine with one: {command}"


def _next(comparison: Comparison, failures: Sequence[Failure], view: View) -> Iterable[str]:
    if failures:
        yield f"--only {failures[0].labels[0]}"
    if not view.every:
        yield "--all rows"
    if not view.explain:
        yield "--explain columns"
    if not view.details:
        yield "--details"
    if not view.html:
        yield "--html report.html"
    yield f"pipeline {comparison.op}"


# --------------------------------------------------------------------------- a case


def _block(
    comparison: Comparison,
    case: CaseComparison,
    view: View,
) -> Block:
    baseline = figures.baseline_of(case)
    timed = any(row.timing and row.timing.cold_us for row in case.rows)
    groups = _groups(case, view, baseline, timed)
    lines = tuple(
        _line(case, label, row, baseline, comparison.code_sizes.get(row.label)) for label, row in groups
    )
    return Block(
        case=case.case,
        title="every row" if view.every or not timed else "best of each way",
        baseline=baseline,
        ceiling=f"% of {figures.share_of(case)}",
        lines=lines,
        launch=_launch(case, baseline),
        notes=tuple(_notes(case, lines, [row for _, row in groups], baseline)),
        yours=tuple(_yours(case, view, baseline)),
        why=tuple(evidence(comparison, case)),
    )


def _groups(case: CaseComparison, view: View, baseline: str, timed: bool) -> list[tuple[str, Row]]:
    """The lines of the table: a name, and the row whose figures it shows."""
    if view.every:
        return [(row.label, row) for row in case.rows]
    rows = [row for row in case.rows if figures.stands(row) and not figures.is_trial(row)]
    own = [row for row in rows if row.label not in view.yours]
    if not timed:
        found = _merged(case, own)
    else:
        have = [row for row in own if row.timing and row.timing.cold_us]
        chosen = [row for row in have if way_of(row.label) == "torch"]
        for way in ("triton", "cuda"):
            chosen += _variant(case, way, have, baseline)
        fastest = figures.fastest(have)
        chosen += [row for row in have if row is fastest and is_yardstick(row.label)]
        found = _merged(case, chosen)
    return found + [(row.label, row) for row in rows if row.label in view.yours]


def _best(case: CaseComparison, rows: Sequence[Row], baseline: str) -> Row | None:
    """The fastest that computes in the baseline's precision, else the fastest."""
    unequal = {row.label for row in figures.unequal_terms(case, baseline)}
    return figures.fastest(row for row in rows if row.label not in unequal) or figures.fastest(rows)


def _variant(case: CaseComparison, way: str, rows: Iterable[Row], baseline: str) -> list[Row]:
    """The fastest row of a way; of CUDA its variant by both routes."""
    own = [row for row in rows if way_of(row.label) == way]
    best = _best(case, own, baseline)
    if best is None or way != "cuda":
        return [best] if best else []
    variant = best.label.partition(".")[2]
    return [row for row in own if row.label.partition(".")[2] == variant and figures.stands(row)]


def _merged(case: CaseComparison, rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows by name, cupy and pybind of one variant as one where they are within noise."""
    found = [(*figures.represented(case, row), row) for row in rows]
    return [(name, stands) for name, stands, row in found if row is stands or stands not in rows]


def _line(
    case: CaseComparison,
    label: str,
    row: Row,
    baseline: str,
    size: CodeSize | None,
) -> Line:
    cold = row.timing.cold_us if row.timing else None
    reference = figures.row_of(case, baseline)
    ratio = figures.ratio(row, reference) if reference and cold else None
    unequal = reference is not None and cold is not None and row.accumulator != reference.accumulator
    kernels = [kernel for _, _, by_arch in figures.kernels([row]) for kernel in by_arch.values()]
    return Line(
        label=label,
        us=cold.median if cold else None,
        samples=len(cold.samples) if cold else 0,
        speedup=1.0 if cold and row is reference else ratio.median if ratio else None,
        noise=bool(ratio and reference and row is not reference and not figures.differs(row, reference)),
        terms=row.accumulator if unequal else "",
        share=figures.share(case, row),
        registers=max((kernel.registers for kernel in kernels), default=None),
        shared_bytes=max((k.static_shared_bytes + k.dynamic_shared_bytes for k in kernels), default=None),
        lines=size.lines if size else None,
        stale=archive.changed_since(row),
    )


def _of_arch(case: CaseComparison, recorded: Mapping[str, Recorded], arch: str) -> CaseComparison:
    """``case`` with one architecture's kernels: compiled or profiled here, else recorded with the times."""

    def kept(row: Row) -> tuple[KernelResources, ...]:
        return tuple(kernel for kernel in row.resources if kernel.arch.rstrip("af") == arch)

    def narrowed(row: Row) -> Row:
        known = kept(row) or (kept(recorded[row.label].row) if row.label in recorded else ())
        return replace(row, resources=known)

    return replace(case, rows=tuple(map(narrowed, case.rows)))


def _launch(case: CaseComparison, baseline: str) -> str:
    """``launch overhead: triton 62 µs, cupy 39, pybind 27 (torch.eager 18)``: of the best of each route."""
    found = []
    for way in ("triton", "cuda"):
        for row in _variant(case, way, case.rows, baseline):
            if row.timing and row.timing.launch_us:
                found.append((row.label.partition(".")[0], row.timing.launch_us.median))
    reference = figures.row_of(case, baseline)
    theirs = reference.timing.launch_us if reference and reference.timing else None
    beside = f" ({baseline} {number(theirs.median, 2)})" if theirs else ""
    said = [f"{name} {number(us, 2)}{' µs' if i == 0 else ''}" for i, (name, us) in enumerate(found)]
    return f"launch overhead: {', '.join(said)}{beside}" if said else ""


def _notes(case: CaseComparison, lines: Sequence[Line], rows: Sequence[Row], baseline: str) -> Iterable[str]:
    reference = figures.row_of(case, baseline)
    unequal = [line for line in lines if line.terms]
    if unequal and reference:
        by_terms: dict[str, list[str]] = defaultdict(list)
        for line in unequal:
            by_terms[line.terms].append(line.label)
        theirs = "; ".join(
            f"{', '.join(labels)} compute{'s' * (len(labels) == 1)} in {terms}"
            for terms, labels in by_terms.items()
        )
        yield f"UNEQUAL TERMS: {theirs}, {baseline} in {reference.accumulator}: no speedup between them."
    for line, row in zip(lines, rows, strict=True):
        if row.timing and row.timing.unverified:
            yield f"UNVERIFIED: {line.label} was timed by its own process: {row.timing.unverified}"
    few: dict[int, list[str]] = defaultdict(list)
    for line, row in zip(lines, rows, strict=True):
        if line.us is not None and (count := figures.few(row)):
            few[count].append(line.label)
    for count, labels in sorted(few.items()):
        who = "every row" if len(labels) == len(lines) else ", ".join(labels)
        yield f"n={count}, too few for an interval: {who}"
    unchecked = [line.label for line, row in zip(lines, rows, strict=True) if row.status == "unavailable"]
    if unchecked:
        yield f"not run here, correct when recorded: {', '.join(unchecked)}"
    if any(row.replayed for row in rows):
        left = Counter(way_of(row.label) for row in case.rows if row.status in ("ok", "unavailable"))
        for way in sorted({*WAYS} & left.keys() - {way_of(row.label) for row in rows}):
            yield f"no time on record: {way} ({left[way]} {'row' if left[way] == 1 else 'rows'})"
    if any(line.stale for line in lines):
        yield "*: source changed since its time was recorded"


def _yours(case: CaseComparison, view: View, baseline: str) -> Iterable[str]:
    """A user's rows: verdict, speedup and place among all timed rows."""
    timed = sorted(
        (row for row in case.rows if figures.stands(row) and row.timing and row.timing.cold_us),
        key=figures.cold_us,
    )
    reference = figures.row_of(case, baseline)
    for row in case.rows:
        if row.label not in view.yours or row.status != "ok":
            continue
        if row not in timed:
            yield f"{row.label}: correct, not timed"
            continue
        ratio = figures.ratio(row, reference) if reference else None
        place = timed.index(row)
        beside = [
            f"{word} {timed[at].label}"
            for word, at in (("behind", place - 1), ("ahead of", place + 1))
            if 0 <= at < len(timed)
        ]
        speed = f", speedup {ratio.median:.2f}x vs {baseline}" if ratio and row is not reference else ""
        yield (
            f"{row.label}: correct{speed}, {_ordinal(place + 1)} of {len(timed)} rows"
            f"{' (' + ', '.join(beside) + ')' if beside else ''}"
        )


def _ordinal(place: int) -> str:
    teen = place % 100 in (11, 12, 13)
    return f"{place}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th')}"


def _spread(sweep: tuple[Swept, ...]) -> tuple[Swept, ...]:
    """At most `_SWEPT` cases: the first, the last, and others evenly between them."""
    last = min(len(sweep), _SWEPT) - 1
    return tuple(sweep[round(i * (len(sweep) - 1) / last)] for i in range(last + 1)) if sweep else ()


def _counted(sweep: Sequence[Swept], baseline: str) -> str:
    """``Speedup vs torch.eager. Fastest over 46 cases: cuda 14, triton 3, torch 0; within noise 29.``"""
    if not sweep:
        return ""
    alone = Counter(case.leaders[0] for case in sweep if len(case.leaders) == 1)
    counts = ", ".join(f"{way} {alone[way]}" for way in sorted(WAYS, key=lambda way: -alone[way]))
    noise = len(sweep) - alone.total()
    return f"Speedup vs {baseline}. Fastest over {len(sweep)} cases: {counts}; within noise {noise}."


def _swept(case: CaseComparison) -> Swept:
    baseline = figures.baseline_of(case)
    reference = figures.row_of(case, baseline)
    best = {way: _best(case, [r for r in case.rows if way_of(r.label) == way], baseline) for way in WAYS}
    ratios = (figures.ratio(row, reference) if row and reference else None for row in best.values())
    speedups = tuple(
        1.0 if row and row is reference else ratio.median if ratio else None
        for row, ratio in zip(best.values(), ratios, strict=True)
    )
    leader = figures.fastest(filter(None, best.values()))
    fastest = figures.fastest(case.rows)
    return Swept(
        case=case.case,
        us=reference.timing.cold_us.median
        if reference and reference.timing and reference.timing.cold_us
        else None,
        speedups=speedups,
        leaders=tuple(
            way for way, row in best.items() if leader and row and not figures.differs(leader, row)
        ),
        best=figures.represented(case, fastest)[0] if fastest else "",
        share=figures.share(case, fastest) if fastest else None,
        ceiling="peak" if figures.compute_bound(case) else "copy",
    )
