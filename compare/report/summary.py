"""What the default screen says of a comparison in words: correct or not, on what machine, what next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compare import registry
from compare.model.op import WAYS, way_of
from compare.model.result import (
    HARD_INPUTS,
    SANITIZER,
    UNREAD,
    WRONG,
    Agreement,
    CaseComparison,
    Comparison,
    Row,
)
from compare.report import lines
from compare.report.lines import Line, grouped
from compare.report.tables import number, percent
from compare.timing import figures

_VERSIONS = {"torch": "torch", "triton": "triton", "cuda (torch)": "cuda", "driver": "driver"}
_RECORDED = "µs, regs, smem"
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
    shapes: bool = False
    """A sweep shows every case, each way's variant, and geometric means."""


def formula(comparison: Comparison) -> str:
    """What is computed; the signature of an op that is not known here."""
    known = comparison.op in registry.op_names()
    return registry.get_op(comparison.op).formula if known else comparison.signature


# --------------------------------------------------------------------------- correctness


def correct(comparison: Comparison) -> str:
    """How many implementations match the fp64 reference, on what, and how close the worst is."""
    checked = [v for v in figures.verdicts(comparison) if v.cases or v.status in WRONG]
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
    elif not any(case.cost.written_bytes for case in cases):
        how = ": no elements, shape and dtype checked"
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


def failures(comparison: Comparison) -> list[tuple[str, list[Row]]]:
    """``(case, rows)``, wrong ones first: each row on its first such case, equal reasons together."""
    groups: dict[tuple[bool, str, str], list[Row]] = {}
    seen: set[str] = set()
    for case in comparison.cases:
        for row in case.rows:
            if row.status in (*WRONG, "failed") and row.label not in seen:
                seen.add(row.label)
                groups.setdefault((row.status == "failed", row.reason, case.case), []).append(row)
    return [(case, rows) for (_, _, case), rows in sorted(groups.items(), key=lambda entry: entry[0][0])]


def not_run(comparison: Comparison, yours: Collection[str] = ()) -> Iterator[str]:
    """Which rows ran nowhere, and which an architecture does not have: the user's with their reasons; the
    others with theirs where they share one, else how many they are."""
    ran = {v.label for v in figures.verdicts(comparison) if v.status != "unavailable"}

    def reasons() -> Iterator[tuple[tuple[str, bool], str]]:
        for row in (row for case in comparison.cases for row in case.rows):
            if row.status == "unavailable" and row.label not in ran:
                yield (f"not run: {row.reason}", row.label in yours), row.label
            elif row.reason.startswith(UNREAD):
                yield (f"not compiled{row.reason.removeprefix(UNREAD)}", row.label in yours), row.label

    lines = {reason: labels for (reason, own), labels in grouped(reasons()).items() if not own}
    own = {reason: labels for (reason, own), labels in grouped(reasons()).items() if own}
    yield from (_not_run(reason, labels) for reason, labels in own.items())
    if len(lines) < 2:
        yield from (_not_run(reason, labels) for reason, labels in lines.items())
        return
    counts = Counter[str]()
    for reason, labels in lines.items():
        counts[reason.partition(": ")[0]] += len(labels)
    rows = ", ".join(f"{what}: {count} row{'s' * (count > 1)}" for what, count in counts.items())
    yield f"{rows} ({len(lines)} reasons: --details)"


def _not_run(reason: str, labels: Sequence[str]) -> str:
    what, _, why = reason.partition(": ")
    named = f" ({', '.join(labels)})" if len(labels) <= _NAMED else ""
    return f"{what}: {labels[0]}: {why}" if len(labels) == 1 else f"{reason}: {len(labels)} rows{named}"


# --------------------------------------------------------------------------- where and with what


def machine(comparison: Comparison, shown: Sequence[tuple[CaseComparison, str]]) -> Iterator[tuple[str, ...]]:
    """Lines of facts on where and with what the figures came about.

    Args:
        comparison: what was run.
        shown: the cases on the screen, each with the architecture of its kernels.
    """
    environment = comparison.environment
    # Of several cases the first's: the others differ in the last digit.
    ceilings = {fact.split()[0]: fact for case, _ in reversed(shown) for fact in _ceilings(case)}.values()
    if environment.device_type == "cuda":
        yield environment.device, *ceilings, _versions(environment.versions)
        return
    here = {key: text for key, text in environment.versions.items() if key in ("torch", "triton")}
    yield f"checked on {environment.device} (CPU)", f"{_versions(here)} interpreted, CUDA by g++"
    recorded = [row.recorded for case, _ in shown for row in case.rows if row.recorded]
    compiled = " and ".join(dict.fromkeys(arch for _, arch in shown if arch))
    if recorded:
        versions = dict.fromkeys(_versions(origin.versions) for origin in recorded)
        origins = "; ".join(dict.fromkeys(origin.device_and_date for origin in recorded))
        what = "µs" if all(_all_compiled_here(comparison, case) for case, _ in shown) else _RECORDED
        yield f"{what} recorded on {origins}", *ceilings, *filter(None, versions)
    if compiled and all(_all_compiled_here(comparison, case) for case, _ in shown):
        yield (f"regs, smem compiled here for {compiled}",)


def _all_compiled_here(comparison: Comparison, case: CaseComparison) -> bool:
    """Whether no registers of the case are recorded ones."""
    with_kernels = [row.label for row in case.rows if row.resources]
    recorded = any(row.recorded for row in case.rows)
    return not recorded or lines.compiled_here(comparison, case) == with_kernels


def _versions(versions: Mapping[str, str]) -> str:
    """``torch 2.11.0 triton 3.6.0 cuda 13.0``."""
    known = {name: versions[key].partition("+")[0] for key, name in _VERSIONS.items() if key in versions}
    return " ".join(f"{name} {version}" for name, version in known.items())


def _ceilings(case: CaseComparison) -> Iterator[str]:
    """What binds here, measured in the case's run."""
    if case.ceilings:
        yield f"copy {case.ceilings.copy_gbs:.0f} GB/s"
        if case.ceilings.product_tflops and figures.compute_bound(case):
            yield f"peak {number(case.ceilings.product_tflops)} TFLOP/s"


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


def next_steps(comparison: Comparison, view: View) -> list[str]:
    """What to type next."""
    failed = failures(comparison)
    options = {
        f"--only {failed[0][1][0].label}" if failed else "": False,
        "--all rows": view.every,
        "--explain columns": view.explain,
        "--details": view.details,
        "--html report.html": view.html,
        f"pipeline {comparison.op}": False,
    }
    return [option for option, given in options.items() if option and not given]


# --------------------------------------------------------------------------- below a case's table


def launch(case: CaseComparison) -> str:
    """``launch overhead: triton 62 µs, cupy 39, pybind 27 (torch.eager 18)``: of the best of each route."""
    best = [row for way in ("triton", "cuda") for row in lines.best_variant(case, way, case.rows)]
    reference = figures.row_of(case, figures.baseline_of(case))
    us = {
        row.label: number(row.timing.hot_launch_us.median, 2)
        for row in (*best, reference)
        if row and row.timing and row.timing.hot_launch_us
    }
    words = [f"{row.label.partition('.')[0]} {us[row.label]}" for row in best if row.label in us]
    if not words:
        return ""
    theirs = f" ({reference.label} {us[reference.label]})" if reference and reference.label in us else ""
    return f"launch overhead: {', '.join([f'{words[0]} µs', *words[1:]])}{theirs}"


def about_registers(comparison: Comparison, case: CaseComparison, shown: Sequence[Line]) -> Iterator[str]:
    """Which lines have registers of this machine's compilers beside recorded ones, or none as they copy."""
    labels = lines.compiled_here(comparison, case)
    own = [line.label for line in shown if line.row.label in labels]
    if own and not _all_compiled_here(comparison, case):
        yield f"regs, smem compiled here, not recorded: {', '.join(own)}"
    profiled = any(kernel.reader == "profiler" for row in case.rows for kernel in row.resources)
    copies = [
        line.label
        for line in shown
        if line.us is not None and way_of(line.row.label) == "torch" and not line.kernels
    ]
    if profiled and copies and case.cost.flops == 0:
        yield f"no regs, smem: {', '.join(copies)} runs the driver's copy (cudaMemcpy), not a kernel"


def notes(case: CaseComparison, shown: Sequence[Line]) -> Iterator[str]:
    """What a reader has to know of the lines of a case's table."""
    reference = figures.row_of(case, figures.baseline_of(case))
    unequal = grouped((line.terms, line.label) for line in shown if line.terms)
    if unequal and reference:
        theirs = "; ".join(
            f"{', '.join(labels)} compute{'s' * (len(labels) == 1)} in {terms}"
            for terms, labels in unequal.items()
        )
        base = f"{reference.label} in {reference.accumulator}"
        yield f"UNEQUAL TERMS: {theirs}, {base}: no speedup between them."
    for line in shown:
        if line.timing.unverified:
            yield f"UNVERIFIED: {line.label} was timed by its own process: {line.timing.unverified}"
    if reference and any(line.speedup and line.same and not (line.terms or line.reference) for line in shown):
        yield f"~: within noise of {reference.label}"
    if above := _above_the_ceiling(case, shown):
        yield above
    few = grouped(
        (count, line.label) for line in shown if line.us is not None and (count := figures.few(line.row))
    )
    for count, labels in sorted(few.items()):
        who = "every row" if len(labels) == len(shown) else ", ".join(labels)
        yield f"n={count}, too few for an interval: {who}"
    unchecked = [line.label for line in shown if line.row.status == "unavailable"]
    if unchecked:
        yield f"not run here, correct when recorded: {', '.join(unchecked)}"
    if any(line.row.recorded for line in shown):
        left = Counter(way_of(row.label) for row in case.rows if row.status in ("ok", "unavailable"))
        for way in sorted({*WAYS} & left.keys() - {way_of(line.row.label) for line in shown}):
            yield f"no time on record: {way} ({left[way]} {'row' if left[way] == 1 else 'rows'})"
    if any(line.stale for line in shown):
        yield "*: source changed since its figures were recorded"


def _above_the_ceiling(case: CaseComparison, shown: Sequence[Line]) -> str:
    """How a row can reach more than 100%; empty where none does."""
    if all(line.share is None or round(line.share, 2) <= 1 for line in shown):
        return ""
    if figures.compute_bound(case):
        return "above 100%: the ceiling is PyTorch's product of 4096-cubed matrices, not the hardware's peak"
    if case.cost.read_bytes > 2 * case.cost.written_bytes and case.ceilings:
        rate = f"{case.ceilings.read_gbs:.0f} GB/s"
        return f"above 100%: the ceiling is a copy, and this mostly reads: reads reach {rate}"
    return (
        "above 100%: the ceiling is PyTorch's copy in the same run; a kernel may move as much a little faster"
    )


def yours(comparison: Comparison, case: CaseComparison, labels: frozenset[str]) -> Iterator[str]:
    """A user's rows: verdict, on how many inputs, speedup and place among all timed rows."""
    every = lines.every(case)
    correct = {v.label for v in figures.verdicts(comparison) if v.status in ("ok", "ordinary")}
    timed = sorted(
        (line for line in every if line.us and figures.stands(line.row)), key=lambda line: line.us or 0
    )
    for line in every:
        # One that is unavailable here, as its compiler cannot be asked, may be correct on other cases.
        stands = line.row.status in ("ok", "ordinary", "unavailable")
        if not stands or line.label not in labels & correct:
            continue
        words = [f"{line.label}: {_on_inputs(comparison, line.row)}"]
        if line.speedup and not line.reference:
            words.append(f"speedup {line.speedup.median:.2f}x vs {figures.baseline_of(case)}")
        if line in timed:
            place = timed.index(line)
            beside = [f"behind {ahead.label}" for ahead in timed[:place][-1:]]
            beside += [f"ahead of {behind.label}" for behind in timed[place + 1 :][:1]]
            where = f" ({', '.join(beside)})" if beside else ""
            words.append(f"{_ordinal(place + 1)} of {len(timed)} rows{where}")
        elif not line.us:
            words.append("not timed")
        yield ", ".join(words)
        yield from (f"{line.label}: {note}" for note in _notes(comparison, line.row))


def _notes(comparison: Comparison, row: Row) -> list[str]:
    """What its author should know of a correct row, each once."""
    agreements = _agreements(comparison, row)
    sanitized = [f.detail for each in agreements for f in each.findings if f.name == SANITIZER and f.passed]
    return list(dict.fromkeys((*(note for each in agreements for note in each.notes), *sanitized)))


def _agreements(comparison: Comparison, row: Row) -> list[Agreement]:
    """Those of its label on all cases."""
    rows = (each for case in comparison.cases for each in case.rows if each.label == row.label)
    return [each.agreement for each in rows if each.agreement]


def _on_inputs(comparison: Comparison, row: Row) -> str:
    """``correct on 37 inputs (5 layouts, 6 fills)``; ``correct on ordinary inputs only``."""
    if row.status == "ordinary":
        return "correct on ordinary inputs only"
    findings = (finding for each in _agreements(comparison, row) for finding in each.findings)
    tried = next((finding.detail for finding in findings if finding.name == HARD_INPUTS), "")
    return f"correct on {tried}" if tried else "correct"


def _ordinal(place: int) -> str:
    teen = place % 100 in (11, 12, 13)
    return f"{place}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th')}"
