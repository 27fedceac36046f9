"""Figures derived from a comparison: bandwidth, shares, ratios.  Nothing here formats or prints."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from compare.model.op import ROUTES
from compare.model.result import CONDUCT, WRONG, CaseComparison, Comparison, Estimate, KernelResources, Row
from compare.timing import calibration, statistics
from compare.tuning.matching import registered_as

FAR = 0.6
"""Below this share of a ceiling, the ceiling does not bind."""
NEAR = 0.02
"""A difference of at most this share is measurable, yet of no weight: another run may find none."""
LISTED_CASES = 3
"""Up to this many timed cases get a table each; more get one table of the sweep, and one of the first."""


@dataclass(frozen=True)
class Verdict:
    """The result of one implementation over all checked cases."""

    label: str
    level: str
    status: str
    cases: int
    max_abs: float | None
    max_rel: float | None
    used: float | None
    """The largest share of the allowed error."""
    failed: tuple[str, ...] = ()
    """Names of its failed findings; empty where only timing refused it."""

    @property
    def off(self) -> bool:
        """Whether its output is wrong, and not only its conduct."""
        return self.status == "disagrees" and (not self.cases or not set(self.failed) <= set(CONDUCT))


def gbs(case: CaseComparison, row: Row) -> float | None:
    """GB/s of compulsory traffic, cold: each input read once and each output written once."""
    return case.cost.bytes / cold_us(row) / 1e3 if 0 < cold_us(row) < math.inf else None


def share_of_copy(case: CaseComparison, row: Row) -> float | None:
    """`gbs` over that of a plain copy in the same run."""
    rate, ceilings = gbs(case, row), row.ceilings or case.ceilings
    return rate / ceilings.copy_gbs if rate is not None and ceilings else None


def tflops(case: CaseComparison, row: Row) -> float | None:
    """TFLOP/s, cold: the case's operations, not the row's own number of them."""
    return case.cost.flops / cold_us(row) / 1e6 if 0 < cold_us(row) < math.inf else None


def share_of_product(case: CaseComparison, row: Row) -> float | None:
    """`tflops` over that of the library's matrix product of this dtype in the same run."""
    rate, ceilings = tflops(case, row), row.ceilings or case.ceilings
    best = ceilings.product_tflops if ceilings else None
    return rate / best if rate is not None and best else None


def ridge(case: CaseComparison) -> float | None:
    """FLOP/B at which arithmetic takes as long as memory, from the ceilings measured in this case's run.

    None where no matmul was measured.
    """
    ceilings = case.ceilings or next((row.ceilings for row in case.rows if row.ceilings), None)
    return ceilings.product_tflops * 1e3 / ceilings.copy_gbs if ceilings and ceilings.product_tflops else None


def intensity(case: CaseComparison) -> float:
    """FLOP/B: operations over compulsory bytes."""
    return case.cost.flops / case.cost.bytes if case.cost.bytes else 0.0


def compute_bound(case: CaseComparison) -> bool:
    """Whether the case lies beyond the measured ridge.  Memory binds where no matmul was measured."""
    limit = ridge(case)
    return limit is not None and intensity(case) > limit


def share(case: CaseComparison, row: Row) -> float | None:
    """The row's share of the ceiling that binds: of the measured peak or of copy bandwidth."""
    return share_of_product(case, row) if compute_bound(case) else share_of_copy(case, row)


def share_of(case: CaseComparison) -> str:
    """The ceiling of `share`, in words."""
    return "peak (measured)" if compute_bound(case) else "copy bandwidth"


def binding(case: CaseComparison) -> str | None:
    """What limits the fastest row: ``memory``, ``compute``, or ``neither``; None where none was timed."""
    best = fastest(case.rows)
    reached = share(case, best) if best else None
    if reached is None:
        return None
    return "neither" if reached < FAR else "compute" if compute_bound(case) else "memory"


def ratio(row: Row, other: Row) -> Estimate | None:
    """Speedup of ``row`` vs. ``other``, cold, from pairs of samples of the same round.

    Its interval holds the variance between processes too.  Where they were timed in different runs, the ratio
    is that of the medians.  None where one of them was not timed, or where their accumulators differ.
    """
    if not (row.timing and other.timing and row.accumulator == other.accumulator):
        return None
    mine, others = row.timing.cold_us, other.timing.cold_us
    if row.run != other.run:
        least = statistics.ACROSS * detectable(row, other)
        return statistics.widened(statistics.between(others, mine), least) if mine and others else None
    samples = statistics.paired(mine.samples, others.samples) if mine and others else []
    value = next((pair.value for pair in row.timing.ratios if pair.against == other.label), None)
    if value is not None:
        # A record has no samples of ratios: they follow from the cold times.
        value = replace(value, samples=value.samples or tuple(samples))
    elif samples:
        value = statistics.estimate(samples)
    return statistics.widened(value, detectable(row, other)) if value and row.label != other.label else value


def detectable(*rows: Row) -> float:
    """The largest difference that equals show in two processes at these rows' times, as a share."""
    shares = [0.0]
    for row in rows:
        if row.timing and row.timing.cold_us:
            own = row.timing.detectable
            shares.append(calibration.detectable(row.timing.cold_us.median) if own is None else own)
    return max(shares)


def differs(row: Row, other: Row) -> bool:
    """Whether one row is faster than the other by more than noise."""
    value = ratio(row, other)
    if value is not None and few(row, other):
        value = statistics.widened(value, statistics.FEW * detectable(row, other))
    return value is not None and statistics.differs(value)


def near(ratio: float) -> bool:
    """Whether a speedup, as shown with two decimals, is within `NEAR` of 1."""
    return abs(round(ratio, 2) - 1) <= NEAR + 1e-9


def launch_bound(row: Row) -> bool:
    """Whether the host limits calls back to back: they take longer than their GPU work, by more than noise.

    Where the host launches in less time than the GPU works, the cause is another: a large product draws so
    much power that the clocks fall. A user's row has no warm time: its cold one, which is longer, counts.
    """
    timing = row.timing
    gpu_us = (timing.warm_us or timing.cold_us) if timing else None
    if timing is None or timing.back_to_back_us is None or gpu_us is None:
        return False
    launch_us = timing.hot_launch_us
    if launch_us is not None and launch_us.high < gpu_us.low:
        return False
    return timing.back_to_back_us.low > gpu_us.high * (1 + detectable(row))


def few(*rows: Row) -> int:
    """The number of rounds that timed all rows if that is too small for an interval, else 0."""
    count = min(row.timing.rounds if row.timing else 0 for row in rows)
    return count if count < statistics.ENOUGH else 0


def row_of(case: CaseComparison, label: str) -> Row | None:
    return next((row for row in case.rows if row.label == label), None)


def is_trial(row: Row) -> bool:
    """Whether ``--tune`` added the row."""
    return bool(row.configuration.parameters) and registered_as(row.label) != row.label


def trials(case: CaseComparison) -> list[list[Row]]:
    """For each tuned implementation its rows, with the default's, sorted by value."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in case.rows:
        if row.configuration.parameters:
            groups[registered_as(row.label)].append(row)
    if not any(map(is_trial, case.rows)):
        return []
    return [sorted(rows, key=lambda row: row.configuration.parameters) for rows in groups.values()]


def timed_trials(rows: Iterable[Row]) -> bool:
    """Whether a value other than the default was timed."""
    return any(is_trial(row) and row.timing and row.timing.cold_us for row in rows)


def cold_us(row: Row) -> float:
    """The cold median in us; infinite where the row was not timed."""
    return row.timing.cold_us.median if row.timing and row.timing.cold_us else math.inf


def stands(row: Row) -> bool:
    """Whether its time counts: the row is correct, or replayed from a record and not run here."""
    return row.status == "ok" or (row.status == "unavailable" and bool(row.recorded))


def fastest(rows: Iterable[Row]) -> Row | None:
    """The fastest row, cold, of those whose time counts; None where none was timed."""
    best = min(filter(stands, rows), key=cold_us, default=None)
    return None if best is None or cold_us(best) == math.inf else best


def timed_cases(comparison: Comparison) -> list[CaseComparison]:
    return [case for case in comparison.cases if any(row.timing for row in case.rows)]


def main_case(comparison: Comparison) -> CaseComparison | None:
    """The case of the sentences and the resources: an inspected one, else a timed one, else the last."""
    inspected = [case for case in comparison.cases if any(row.resources for row in case.rows)]
    timed = timed_cases(comparison)
    both = [case for case in inspected if case in timed]
    return next(iter([*both, *inspected, *timed, *reversed(comparison.cases)]), None)


def verdicts(comparison: Comparison) -> list[Verdict]:
    """One verdict an implementation, over all checked cases; the worst status wins."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for case in comparison.cases:
        for row in case.rows:
            if row.agreement or row.status != "ok":
                rows[row.label].append(row)
    return [_verdict(label, own) for label, own in rows.items()]


def _verdict(label: str, rows: Sequence[Row]) -> Verdict:
    checked = [row.agreement for row in rows if row.agreement]
    statuses = {row.status for row in rows}
    # A variant that refuses one case is still correct on the others.
    worst = next((s for s in (*WRONG, "failed") if s in statuses), "ok" if checked else "unavailable")
    return Verdict(
        label,
        " / ".join(dict.fromkeys(row.shown_level for row in rows)),
        worst,
        len(checked),
        max((a.max_abs for a in checked if not math.isnan(a.max_abs)), default=None),
        max((a.max_rel for a in checked if not math.isnan(a.max_rel)), default=None),
        max((a.error / a.limit for a in checked if a.limit > 0), default=None),
        tuple(dict.fromkeys(f.name for a in checked for f in a.findings if not f.passed)),
    )


def unequal_terms(case: CaseComparison, baseline: str) -> list[Row]:
    """Rows with another accumulator than the baseline."""
    reference = row_of(case, baseline)
    if reference is None:
        return []
    return [row for row in case.rows if row.accumulator != reference.accumulator]


def baseline_of(case: CaseComparison) -> str:
    """The label of the row that most ratios are taken against.

    A recorded CUDA row also has a ratio against Triton's, which may not be among the rows shown.
    """
    labels, timed = {row.label for row in case.rows}, [row.timing for row in case.rows if row.timing]
    against = [pair.against for timing in timed for pair in timing.ratios if pair.against in labels]
    return max(dict.fromkeys(against), key=against.count, default="torch.eager")


def same_variant(case: CaseComparison) -> dict[str, dict[str, Row]]:
    """Timed rows by variant and route, for variants with two routes or more of Triton and CUDA."""
    timed: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in case.rows:
        route, _, variant = row.label.partition(".")
        if route != "torch" and row.timing and row.timing.cold_us:
            timed[variant][route] = row
    return {variant: routes for variant, routes in timed.items() if len(routes) > 1}


def represented(case: CaseComparison, row: Row) -> tuple[str, Row]:
    """A row's name and the row whose figures stand for it.

    cupy and pybind run the same kernel: while the two are within noise they are ``cuda.VARIANT``, with
    cupy's figures.
    """
    route, _, variant = row.label.partition(".")
    cupy, pybind = (row_of(case, f"{route}.{variant}") for route in ROUTES)
    if route in ROUTES and cupy and pybind and cupy.status == pybind.status and not differs(cupy, pybind):
        return f"cuda.{variant}", cupy
    return row.label, row


def short_kernel(name: str) -> str:
    """A kernel's bare name: without ``void``, namespaces, template arguments and parameters.  Of one whose
    name is the same for all of a library, ``Kernel2<...>``, it is the first template argument."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", name).removeprefix("void ")
    name = re.sub(r"^[\w:]*\b(?:Kernel2?|device_kernel)<(?=[A-Za-z_])", "", name)
    head = re.match(r"[\w:~$]+", name)
    bare = head[0].rpartition("::")[2] if head else name
    return bare if len(bare) <= 32 else f"{bare[:29]}..."


def kernels(rows: Iterable[Row]) -> list[tuple[Row, str, dict[str, KernelResources]]]:
    """Every kernel of every row, by architecture.

    Where both readers saw a kernel, the profiler's figures count; the cubin adds spills, stack and code size.
    """
    merged = []
    for row in rows:
        by_name: dict[str, dict[str, KernelResources]] = defaultdict(dict)
        for kernel in sorted(row.resources, key=lambda k: k.reader, reverse=True):  # profiler first
            name, arch = short_kernel(kernel.kernel), kernel.arch.rstrip("af")
            seen = by_name[name].get(arch)
            by_name[name][arch] = kernel if seen is None else _merged(seen, kernel)
        merged += [(row, name, by_arch) for name, by_arch in by_name.items()]
    return merged


def _merged(seen: KernelResources, other: KernelResources) -> KernelResources:
    """``seen``, with what only the other reader of the kernel knows."""
    known = ("spilled_bytes", "local_bytes", "code_bytes", "occupancy", "limiter", "instruction", "load_bits")
    return replace(
        seen, **{name: getattr(other, name) for name in known if getattr(seen, name) in (None, "")}
    )
