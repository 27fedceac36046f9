"""Why a comparison came out as it did: short sentences, each resting on figures in it.

Every rule below looks for one thing and says nothing where it does not find it.  A difference within noise
(its interval includes 1, or it is smaller than what equals show on this machine) is never claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compare.model.op import is_library, way_of
from compare.model.result import CaseComparison, Comparison, KernelResources, Row
from compare.report.tables import number, percent, speedup
from compare.timing import figures
from compare.timing.speed_of_light import scaled

MOST = 4

_BEYOND = 1.05
"""Share of the peak from which a sentence says whose peak it is."""

CLOSE = 0.9
"""A kernel at this share of the ceiling has little left to gain."""
_TENSOR_CORES = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "BMMA", "DMMA", "UTCHMMA")


@dataclass(frozen=True)
class Said:
    """A sentence, its subject (one sentence per subject) and its weight, 0 to 1."""

    subject: str
    weight: float
    text: str
    in_table: bool = False
    """The table of the default screen shows it already."""


Rule = Callable[[Comparison, CaseComparison], Iterator[Said]]


def sentences(comparison: Comparison) -> list[str]:
    """The most telling findings on the main case, at most four, most telling first."""
    case = figures.main_case(comparison)
    return [] if case is None else [said.text for said in _found(comparison, case)][:MOST]


def evidence(comparison: Comparison, case: CaseComparison) -> list[str]:
    """The findings on one case that the screen's table does not show, most telling first."""
    return [said.text for said in _found(comparison, case) if not said.in_table]


def _found(comparison: Comparison, case: CaseComparison) -> list[Said]:
    """One finding a subject."""
    found = [said for rule in _RULES for said in rule(comparison, case)]
    chosen: dict[str, Said] = {}
    for said in sorted(found, key=lambda said: -said.weight):
        chosen.setdefault(said.subject, said)
    return list(chosen.values())


# --------------------------------------------------------------------------- rules


def _bound(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Which ceiling binds by the measured ridge, and what share of it the fastest row reaches."""
    best = next(iter(_timed(case)), None)
    share = figures.share(case, best) if best else None
    if best is None or share is None:
        return
    ridge, name = figures.ridge(case), figures.represented(case, best)[0]
    at = f" ({number(figures.intensity(case), 2)} FLOP/B, ridge {ridge:.0f})" if ridge else ""
    reach = f"{percent(share)} of {figures.share_of(case).removesuffix(' (measured)')}"
    if share < figures.FAR:
        kind = "compute" if figures.compute_bound(case) else "memory"
        text = f"Not {kind} bound at this size{at}: {name} at {reach}."
    elif figures.compute_bound(case):
        whose = ", which is PyTorch's own product" if share > _BEYOND else ""
        text = f"Compute bound{at}: {name} at {reach}{whose}."
    else:
        moved = scaled(case.cost.bytes, "B")
        what = f"{moved} at" if ridge else f"{moved} compulsory, {name} at"
        text = f"Memory bound{at}: {what} {reach}."
    yield Said("bound", 1.0, text)


def _fastest(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Whether anything beats the baseline."""
    timed = [row for row in _timed(case) if not is_library(row.label)]
    baseline = figures.row_of(case, figures.baseline_of(case))
    if len(timed) < 2 or baseline is None or not _timed_row(baseline):
        return
    best, second = timed[0], timed[1]
    there = _there(case)
    if best is baseline:
        lead = figures.ratio(best, second)
        if lead is not None and figures.differs(best, second):
            text = f"{best.label} is the fastest{there}: speedup {speedup(lead)} vs {second.label}, the next."
            yield Said("fastest", 0.95, text)
            return
        best = second
    gain = figures.ratio(best, baseline)
    if gain is None:
        return
    if figures.differs(best, baseline) and gain.median > 1:
        ties = [row.label for row in timed if row is not best and _ties(best, row)]
        level = f", within noise of {_names(ties[:2])}" if ties else ""
        text = f"{best.label} is the fastest{there}{level}: speedup {speedup(gain)} vs {baseline.label}."
        yield Said("fastest", 0.98, text, in_table=True)
        return
    name = figures.represented(case, best)[0]
    its = f" {name} is at {speedup(gain)}." if figures.differs(best, baseline) else ""
    text = f"Nothing is measurably faster than {baseline.label}{there}.{its}"
    yield Said("fastest", 0.95, text)


def _triton_and_cuda(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """The best of each against the other, with the code that each takes."""
    triton, cuda = (_fastest_of(case, way) for way in ("triton", "cuda"))
    if triton is None or cuda is None:
        return
    cuda = figures.represented(case, cuda)[1]
    lead = figures.ratio(triton, cuda)
    if lead is None:
        return
    sizes = comparison.code_sizes
    code = {
        way: sizes[row.label].lines for way, row in (("Triton", triton), ("CUDA", cuda)) if row.label in sizes
    }
    longer = max(code, key=lambda way: code[way], default="")
    more = (
        max(code.values(), default=0) / min(code.values()) if len(code) == 2 and all(code.values()) else 1.0
    )
    effort = f"takes {more:.1f}x the lines"
    if not figures.differs(triton, cuda):
        text = "Triton and CUDA are within noise" + (f"; {longer} {effort}" if more > 1 else "")
    else:
        ahead, behind = (triton, cuda) if lead.median > 1 else (cuda, triton)
        names = ("Triton", "CUDA") if ahead is triton else ("CUDA", "Triton")
        text = f"{names[0]}: speedup {speedup(figures.ratio(ahead, behind) or lead)} vs {names[1]}"
        if more > 1:
            text += f", and {effort}" if longer == names[0] else f", which {effort}"
    yield Said("triton and cuda", 0.97, f"{text}.")


def _beside_a_library(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """The best CUDA of this project against a library's kernels."""
    own = _fastest_of(case, "cuda")
    for row in (row for row in _timed(case) if is_library(row.label)):
        lead = figures.ratio(own, row) if own else None
        if own is None or lead is None:
            continue
        its = f": speedup {speedup(lead)} vs" if figures.differs(own, row) else " is within noise of"
        yield Said("library", 0.75, f"{figures.represented(case, own)[0]}{_there(case)}{its} {row.label}.")


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
                f"{default.label} is the fastest with {best.configuration.text}{_there(case)}: speedup "
                f"{speedup(lead)} vs its default, {default.configuration.text}."
            )
        else:
            slowest = max(filter(_timed_row, rows), key=figures.cold_us)
            behind = figures.ratio(slowest, default)
            loss = (
                f"; the slowest, {slowest.configuration.text}, is at {speedup(behind)}"
                if behind is not None and figures.differs(default, slowest)
                else ""
            )
            text = (
                f"No other value is measurably faster{_there(case)} than the default of {default.label}, "
                f"{default.configuration.text}{loss}."
            )
        yield Said(f"trials of {default.label}", 1.1, text)


def _naive(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """How many kernels the naive PyTorch launches."""
    baseline = figures.row_of(case, figures.baseline_of(case))
    naive = next((r for r in case.rows if r.level == "naive" and r.label.startswith("torch.")), None)
    if naive is None or baseline is None or not figures.differs(baseline, naive):
        return
    many, few = (
        sum(k.launches for k in row.resources if k.reader == "profiler") for row in (naive, baseline)
    )
    if many > few > 0:
        text = f"{naive.label} launches {many} kernels ({baseline.label}: {few}); each passes over memory."
        yield Said("naive", 0.6, text)


def _launch(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Rows whose launch overhead exceeds their GPU time: back to back, the host is the limit."""
    bound = [
        (row, row.timing.launch_us.median, row.timing.warm_us.median)
        for row in case.rows
        if row.timing and row.timing.launch_us and row.timing.warm_us
        # Both intervals must clear each other.
        if row.timing.launch_us.low > row.timing.warm_us.high
    ]
    if not bound:
        return
    best = [_fastest_of(case, way) for way in ("triton", "cuda")]
    row, launch, warm = max(bound, key=lambda entry: (entry[0] in best, entry[1] / max(entry[2], 1e-9)))
    rows = f"{len(bound)} of {len(_timed(case))} rows"
    times = f"{row.label} {number(launch, 2)} > {number(warm, 2)} µs"
    yield Said("launch", 0.85, f"Launch overhead > GPU time in {rows}: {times}.")


def _instruction(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """What the best of each way multiplies with, where the machine code was read for it."""
    said: dict[str, str] = {}
    for way in ("triton", "cuda"):
        best = _fastest_of(case, way)
        kernels = [k for _, _, by_arch in figures.kernels([best] if best else []) for k in by_arch.values()]
        used = next(
            (k.instruction for k in sorted(kernels, key=_tensor_core, reverse=True) if k.instruction), ""
        )
        if best and used:
            said[figures.represented(case, best)[0]] = used
    if said:
        cores = [used.startswith(_TENSOR_CORES) for used in said.values()]
        kind = "Tensor cores" if all(cores) else "No tensor cores" if not any(cores) else "Multiplies by"
        same = len(set(said.values())) == 1
        each = ", ".join(said if same else (f"{name} {used}" for name, used in said.items()))
        yield Said("instruction", 0.7, f"{kind}{f' ({used})' if same else ''}: {each}.")


def _tensor_core(kernel: KernelResources) -> bool:
    return kernel.instruction.startswith(_TENSOR_CORES)


def _resources(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Spills first, then low occupancy of the best of each way."""
    for row, _, by_arch in figures.kernels(case.rows):
        spilled = {arch: kernel.spilled_bytes for arch, kernel in by_arch.items() if kernel.spilled_bytes}
        if spilled:
            where = " / ".join(
                f"{count} bytes per thread on {arch}" for arch, count in sorted(spilled.items())
            )
            share = figures.share(case, row)
            cost = f", {percent(share)} of {figures.share_of(case)}" if share is not None else ""
            name = figures.represented(case, row)[0]
            yield Said("spills", 0.65, f"{name} spills registers: {where}{cost}.")
    for way in ("cuda", "triton"):
        best = _fastest_of(case, way)
        for row, _, by_arch in figures.kernels([best] if best else []):
            kernel = next(iter(by_arch.values()))
            share = figures.share(case, row)
            if kernel.occupancy is None or kernel.occupancy > 0.5 or not kernel.limiter or share is None:
                continue
            enough = ": enough work in flight" if share >= CLOSE else ""
            text = (
                f"{figures.represented(case, row)[0]}: occupancy {percent(kernel.occupancy)}, limited by "
                f"{kernel.limiter}, at {percent(share)} of {figures.share_of(case)}{enough}."
            )
            yield Said("occupancy", 0.5, text)


def _first_call(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """What compiling costs, and after how many calls it is earned back against the baseline."""
    row, baseline = figures.fastest(case.rows), figures.row_of(case, figures.baseline_of(case))
    first_ms = row.timing.first_call_ms if row and row.timing else None
    if row is None or baseline is None or first_ms is None or first_ms < 500:
        return
    saved_us = figures.cold_us(baseline) - figures.cold_us(row)
    if 0 < saved_us < math.inf and figures.differs(row, baseline):
        cost = f"first call (compile + run) {first_ms / 1e3:.1f} s"
        calls = f"{first_ms * 1e3 / saved_us:,.0f} calls"
        weight = 0.35 + min(0.1, first_ms / 1e5)
        yield Said("first call", weight, f"{row.label}: {cost}, earned back after {calls}.")


def _cache(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Whether the case fits into the L2 cache, by the fastest row's warm time."""
    for row in _timed(case)[:1]:
        timing = row.timing
        if timing and timing.cold_us and timing.warm_us and timing.cold_us.low > 1.5 * timing.warm_us.high:
            times = f"{number(timing.warm_us.median)} µs, not {number(timing.cold_us.median, 4)}"
            size = scaled(case.cost.bytes, "B")
            text = f"With its input in the L2 cache {row.label} takes {times}: the case's {size} fit there."
            yield Said("cache", 0.45, text)


def _effort(comparison: Comparison, case: CaseComparison) -> Iterator[Said]:
    """Where nothing was timed: code size and registers of the same variant in Triton and CUDA."""
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
        f"; {registers[0][on]} and {registers[1][on]} registers/thread on {on}"
        if on and on in registers[1]
        else ""
    )
    triton, cuda = (sizes[label] for label in labels)
    what = f"The same algorithm ({triton.algorithm})" if triton.has_algorithm_of(cuda) else variant
    text = f"{what} is {triton.lines} lines in Triton and {cuda.lines} in CUDA{takes}."
    yield Said("effort", 0.6, text)


def _registers(case: CaseComparison, label: str) -> dict[str, int]:
    """Registers/thread by architecture, the newest first, of the kernel that takes most, as the table has."""
    row = figures.row_of(case, label)
    found: dict[str, int] = {}
    for _, _, by_arch in figures.kernels([row] if row else []):
        for arch, kernel in by_arch.items():
            found[arch] = max(kernel.registers, found.get(arch, 0))
    return {arch: found[arch] for arch in sorted(found, key=lambda arch: -int(arch.removeprefix("sm_")))}


_RULES: tuple[Rule, ...] = (
    _bound,
    _fastest,
    _triton_and_cuda,
    _beside_a_library,
    _trials,
    _naive,
    _launch,
    _instruction,
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


def _fastest_of(case: CaseComparison, way: str) -> Row | None:
    return figures.fastest(row for row in case.rows if way_of(row.label) == way)


def _ties(best: Row, row: Row) -> bool:
    lead = figures.ratio(best, row)
    return lead is not None and not figures.differs(best, row)


def _there(case: CaseComparison) -> str:
    """Replayed figures are not from here, and the sentence says so."""
    device = next((row.recorded.device for row in case.rows if row.recorded), "")
    return f" on the {device}" if device else ""


def _names(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
