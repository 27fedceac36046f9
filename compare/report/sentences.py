"""Two or three sentences on what a comparison shows, each resting on figures in it.

Every rule below looks for one thing and says nothing where it does not find it.  A difference whose
interval includes 1, or that is smaller than what equals show on this machine, is never claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compare.report.tables import number, percent, times
from compare.spec import ROUTES, CaseComparison, Comparison, Row, is_yardstick
from compare.timing import figures
from compare.timing.figures import Verdict

MOST = 3

CLOSE_TO_COPY = 0.9
"""A kernel that moves this share of what a copy moves has little left to gain."""


@dataclass(frozen=True)
class Said:
    """A sentence, what it is about (one sentence a subject) and how telling it is, 0 to 1."""

    subject: str
    weight: float
    text: str


Rule = Callable[[Comparison, CaseComparison], Iterator[Said]]


def sentences(comparison: Comparison) -> list[str]:
    """The most telling findings, at most three, most telling first."""
    case = figures.main_case(comparison)
    if case is None:
        return []
    found = [said for rule in _RULES for said in rule(comparison, case)]
    chosen: dict[str, Said] = {}
    for said in sorted(found, key=lambda said: -said.weight):
        chosen.setdefault(said.subject, said)
    return [said.text for said in list(chosen.values())[:MOST]]


# --------------------------------------------------------------------------- rules


def _agreement(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    verdicts = figures.verdicts(comparison)
    wrong = [v for v in verdicts if v.off]
    refused = [v for v in verdicts if v.status == "disagrees" and not v.off]
    impossible = [v for v in verdicts if v.status == "impossible"]
    broken = [v for v in verdicts if v.status == "failed"]
    checked = [v for v in verdicts if v.status == "ok" and v.max_abs is not None]
    if wrong:
        names = _names([v.label for v in wrong])
        verb = "disagrees" if len(wrong) == 1 else "disagree"
        used = max((v.used for v in wrong if v.used is not None), default=None)
        by = f", by up to {percent(used)} of the error allowed" if used is not None and used > 1 else ""
        yield Said("agreement", 1.0, f"{names} {verb} with the fp64 result{by}; no speed counts before that.")
    elif refused:
        labels = _names([v.label for v in refused])
        do = ("agrees", "fails") if len(refused) == 1 else ("agree", "fail")
        failed = ", ".join(dict.fromkeys(name for v in refused for name in v.failed))
        which = f" ({failed})" if failed else ""
        yield Said(
            "agreement",
            1.0,
            f"{labels} {do[0]} with the fp64 result and {do[1]} another check{which}; no speed counts before "
            "that.",
        )
    elif impossible:
        names = _names([v.label for v in impossible])
        are = "is" if len(impossible) == 1 else "are"
        yield Said("agreement", 1.0, f"{names} {are} faster than this device can be; no such time counts.")
    elif checked and not broken:
        worst = max(checked, key=lambda v: v.used or 0.0)
        labels = _names([v.label for v in checked])
        who = {1: f"{labels} agrees", 2: f"{labels} agree"}.get(
            len(checked), f"All {len(checked)} implementations that ran here agree"
        )
        how = (
            f"the largest error, that of {worst.label}, is {percent(worst.used)} of what is allowed"
            if worst.used and worst.used >= 0.005
            else "every digit is right"
            if not any(v.max_abs for v in checked)
            else f"none is off by more than its last rounding, {number(worst.ulp_max)} ulp at most"
        )
        weight = 0.35 if figures.timed_cases(comparison) else 0.8
        yield Said("agreement", weight, f"{who} with fp64 on {_where(comparison, checked)}: {how}.")


def _fastest(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    timed = [row for row in _timed(case) if not is_yardstick(row.label)]
    baseline = figures.row_of(case, figures.baseline_of(case))
    if len(timed) < 2 or baseline is None or not _timed_row(baseline):
        return
    best, second = timed[0], timed[1]
    there = _there(case)
    if best is baseline:
        lead = figures.ratio(best, second)
        if figures.differs(best, second):
            yield Said(
                "fastest",
                0.9,
                f"{best.label} is the fastest{there} at {_cold(best)} µs cold, {times(lead)} times as fast "
                f"as the next, {second.label}.",
            )
        return
    gain = figures.ratio(best, baseline)
    if gain is None:
        return
    if not figures.differs(best, baseline) or gain.median < 1:
        its = (
            f"runs at {times(gain)} times its speed"
            if figures.differs(best, baseline)
            else "is indistinguishable from it"
        )
        yield Said(
            "fastest",
            0.9,
            f"Nothing is measurably faster than {baseline.label}{there} ({_cold(baseline)} µs cold): the "
            f"best of the rest, {best.label}, {its}.",
        )
        return
    ties = [row.label for row in timed[1:] if _ties(best, row)]
    level = f", level with {_names(ties[:3])}," if ties else ""
    share = figures.share(case, best)
    ceiling = "the TFLOP/s of the library's product" if case.cost.busy else "a plain copy's GB/s"
    reach = f" and at {percent(share)} of {ceiling}" if share is not None else ""
    yield Said(
        "fastest",
        0.9,
        f"{best.label}{level} is the fastest{there}: {_cold(best)} µs cold, {times(gain)} times as fast as "
        f"{baseline.label}{reach}.",
    )


def _beside_a_library(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """The best CUDA of this project against a library's kernels, which are a yardstick and no contestant."""
    own = next((row for row in _timed(case) if row.label.startswith(ROUTES)), None)
    for row in (row for row in _timed(case) if is_yardstick(row.label)):
        lead = figures.ratio(own, row) if own else None
        if own is None or lead is None or own.accumulator != row.accumulator:
            continue
        its = (
            f"runs at {times(lead)} times the speed of {row.label}"
            if figures.differs(own, row)
            else f"is level with {row.label}"
        )
        yield Said("library", 0.89, f"{own.label}, the fastest CUDA here{_there(case)}, {its}.")


def _same_algorithm(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Triton against CUDA where both say the same thing, with what it takes to say it."""
    for variant, routes in figures.same_variant(case).items():
        triton, cuda = routes.get("triton"), routes.get("cupy") or routes.get("pybind")
        if triton is None or cuda is None or triton.rung != cuda.rung:
            continue
        lead = figures.ratio(triton, cuda)
        if lead is None:
            continue
        sizes = comparison.code_sizes.get(triton.label), comparison.code_sizes.get(cuda.label)
        effort = (
            f" It is {sizes[0].tokens} tokens of code in Triton and {sizes[1].tokens} in CUDA."
            if sizes[0] and sizes[1] and sizes[1].tokens
            else ""
        )
        speed = figures.share(case, triton) or 0.0
        # Of several variants, the one that matters is a fast one.
        weight = 0.6 + 0.1 * min(speed, 1.0) + (0.1 if effort else 0.0)
        if not figures.differs(triton, cuda):
            text = f"As the same algorithm ({variant}), Triton and CUDA cannot be told apart."
        else:
            faster = lead.median > 1
            text = (
                f"As the same algorithm ({variant}), Triton runs at {times(lead)} times CUDA's speed"
                f"{'' if faster else ', so the extra control buys something here'}."
            )
        yield Said("same algorithm", weight, text + effort)


def _trials(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """What the best of other values buys over the default."""
    for rows in figures.trials(case):
        best = figures.fastest(rows)
        default = next((row for row in rows if not figures.is_trial(row)), None)
        if not figures.timed_trials(rows) or best is None or default is None or not _timed_row(default):
            continue
        lead = figures.ratio(best, default)
        if best is not default and lead is not None and figures.differs(best, default):
            text = (
                f"{default.label} is the fastest with {best.configuration}{_there(case)}: {times(lead)} "
                f"times as fast as with its default, {default.configuration}."
            )
        else:
            slowest = max(filter(_timed_row, rows), key=figures.cold_us)
            behind = figures.ratio(default, slowest)
            loss = (
                f"; the worst, {slowest.configuration}, is {times(behind)} times as slow"
                if behind is not None and figures.differs(default, slowest)
                else ""
            )
            text = (
                f"No other value is measurably faster{_there(case)} than the default of {default.label}, "
                f"{default.configuration}{loss}."
            )
        yield Said(f"trials of {default.label}", 0.95, text)


def _naive(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    baseline = figures.row_of(case, figures.baseline_of(case))
    naive = next((r for r in case.rows if r.rung == "naive" and r.label.startswith("torch.")), None)
    if naive is None or baseline is None:
        return
    lead = figures.ratio(baseline, naive)
    if lead is None or not figures.differs(baseline, naive) or lead.median < 1.2:
        return
    launches = [sum(k.launches for k in row.resources if k.reader == "profiler") for row in (naive, baseline)]
    why = (
        f": it launches {launches[0]} kernels where {baseline.label} launches {launches[1]}, and each passes "
        "over memory again"
        if launches[1] and launches[0] > launches[1]
        else ""
    )
    yield Said("naive", 0.5, f"{baseline.label} is {times(lead)} times as fast as {naive.label}{why}.")


def _launch(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Where a call costs the host more than the kernel takes, the host is what is being timed."""
    bound = [
        (row, row.timing.launch_us.median, row.timing.warm_us.median)
        for row in case.rows
        if row.timing
        and row.timing.launch_us
        and row.timing.warm_us
        # Both intervals must clear each other.
        and row.timing.launch_us.low > row.timing.warm_us.high
    ]
    if not bound:
        return
    row, call, warm = max(bound, key=lambda entry: entry[1] / max(entry[2], 1e-9))
    graph = row.timing.graph_us if row.timing else None
    cure = f"; replayed in a CUDA graph it takes {number(graph.median)} µs" if graph else ""
    yield Said(
        "launch",
        0.85,
        f"At this size the host is slower than the GPU for {len(bound)} of "
        f"{len(_timed(case))} implementations: calling {row.label} takes "
        f"{number(call)} µs, its GPU work {number(warm)} µs{cure}.",
    )


def _resources(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Spills first, then occupancy: of the row that loses most to its neighbour."""
    for row, _, by_arch in figures.kernels(case.rows):
        spilled = {arch: kernel.spilled_bytes for arch, kernel in by_arch.items() if kernel.spilled_bytes}
        if spilled:
            where = " / ".join(f"{count} bytes on {arch}" for arch, count in sorted(spilled.items()))
            share = figures.share(case, row)
            cost = f"; it reaches {percent(share)} of {figures.share_of(case)}" if share is not None else ""
            yield Said(
                "resources",
                0.65,
                f"{row.label} needs more registers than there are and spills {where} a thread{cost}.",
            )
    low = [
        (kernel.occupancy, row, kernel)
        for row, _, by_arch in figures.kernels(case.rows)
        for kernel in by_arch.values()
        if kernel.occupancy is not None
        and kernel.occupancy <= 0.5
        and kernel.limiter
        and row.rung != "vendor"
    ]
    if low:
        occupancy, row, kernel = min(low, key=lambda entry: entry[0])
        takes = {
            "registers": f" ({kernel.registers} a thread)",
            "shared memory": f" ({kernel.static_shared_bytes + kernel.dynamic_shared_bytes} bytes a block)",
        }.get(kernel.limiter, "")
        share = figures.share(case, row)
        yet = (
            f", and still reaches {percent(share)} of {figures.share_of(case)}: enough is in flight without "
            "more warps"
            if share is not None and share >= CLOSE_TO_COPY
            else ""
        )
        yield Said(
            "resources",
            0.55,
            f"{row.label} holds {percent(occupancy)} of the warps a multiprocessor could ({kernel.arch}), "
            f"limited by {kernel.limiter}{takes}{yet}.",
        )


def _first_call(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """What compiling costs, and after how many calls it is earned back against the baseline."""
    baseline = figures.row_of(case, figures.baseline_of(case))
    if baseline is None or not baseline.timing or not baseline.timing.cold_us:
        return
    for row in case.rows:
        timing = row.timing
        gain = figures.ratio(row, baseline)
        if not (timing and timing.cold_us and timing.first_call_ms and gain and gain.median > 1):
            continue
        if timing.first_call_ms < 500 or not figures.differs(row, baseline):
            continue
        saved_us = baseline.timing.cold_us.median - timing.cold_us.median
        if saved_us <= 0:
            continue
        calls = timing.first_call_ms * 1e3 / saved_us
        yield Said(
            "first call",
            0.4 + min(0.1, timing.first_call_ms / 1e5),
            f"{row.label}'s first call takes {timing.first_call_ms / 1e3:.1f} s and is earned back "
            f"after about {calls:,.0f} calls: each saves {number(saved_us)} µs against {baseline.label}.",
        )


def _cache(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    for row in _timed(case)[:1]:
        timing = row.timing
        if timing and timing.cold_us and timing.warm_us and timing.cold_us.low > 1.5 * timing.warm_us.high:
            yield Said(
                "cache",
                0.45,
                f"With its input still in the L2 cache {row.label} takes {number(timing.warm_us.median)} µs "
                f"instead of {_cold(row)}: the {case.cost.bytes / 1e6:.0f} MB of this case fit there, so "
                "which of the two you see in your program depends on what ran before.",
            )


def _effort(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Where nothing was timed there is still something to say: what it takes to write and to run."""
    if figures.timed_cases(comparison):
        return
    sizes = {label: size for label, size in comparison.code_sizes.items() if size.kernel.tokens}
    variants = [label.partition(".")[2] for label in sizes if label.startswith("triton.")]
    shared = [variant for variant in variants if f"cupy.{variant}" in sizes]
    if not shared:
        return
    variant = min(shared, key=lambda variant: sizes[f"triton.{variant}"].tokens)
    labels = f"triton.{variant}", f"cupy.{variant}"
    registers = [_registers(case, label) for label in labels]
    on = next(iter(registers[0]), "")
    takes = (
        f", and takes {registers[0][on]} and {registers[1][on]} registers a thread on {on}"
        if on and on in registers[1]
        else ""
    )
    yield Said(
        "effort",
        0.6,
        f"The same algorithm ({variant}) is {sizes[labels[0]].tokens} tokens in Triton and "
        f"{sizes[labels[1]].tokens} in CUDA{takes}.",
    )


def _registers(case: CaseComparison, label: str) -> dict[str, int]:
    """Registers a thread by architecture, the newest first, of the row's first kernel."""
    row = figures.row_of(case, label)
    for _, _, by_arch in figures.kernels([row] if row else []):
        return {arch: by_arch[arch].registers for arch in sorted(by_arch, key=_generation, reverse=True)}
    return {}


def _generation(arch: str) -> int:
    return int(arch.removeprefix("sm_"))


_RULES: tuple[Rule, ...] = (
    _agreement,
    _fastest,
    _beside_a_library,
    _same_algorithm,
    _trials,
    _naive,
    _launch,
    _resources,
    _first_call,
    _cache,
    _effort,
)


# --------------------------------------------------------------------------- words


def _timed_row(row: Row) -> bool:
    return row.timing is not None and row.timing.cold_us is not None


def _timed(case: CaseComparison) -> list[Row]:
    """Timed rows, fastest first."""
    return sorted(filter(_timed_row, case.rows), key=figures.cold_us)


def _cold(row: Row) -> str:
    return number(row.timing.cold_us.median if row.timing and row.timing.cold_us else None, 4)


def _ties(best: Row, row: Row) -> bool:
    lead = figures.ratio(best, row)
    return lead is not None and not figures.differs(best, row)


def _there(case: CaseComparison) -> str:
    """Replayed figures are not from here, and the sentence says so."""
    device = next((row.replayed.partition(",")[0] for row in case.rows if row.replayed), "")
    return f" on the {device}" if device else ""


def _where(comparison: Comparison, checked: list[Verdict]) -> str:
    """The cases that these were checked on: one, of which each took some, or all."""
    cases = [case.case for case in comparison.cases if any(row.agreement for row in case.rows)]
    least, most = (of(verdict.cases for verdict in checked) for of in (min, max))
    if least == len(cases):
        return cases[0] if least == 1 else f"{least} cases"
    return f"{least if least == most else f'{least} to {most}'} of {len(cases)} cases each"


def _names(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
