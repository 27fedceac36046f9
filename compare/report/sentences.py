"""Why a comparison came out as it did: short sentences, each resting on figures in it.

Every rule below looks for one thing and says nothing where it does not find it.  A difference within noise
(its interval includes 1, or it is smaller than what equals show on this machine) is never claimed; one of at
most 2% is called that, as the next run may find none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compare.model.op import is_library, way_of
from compare.model.result import CaseComparison, Comparison, KernelResources, Row
from compare.report import lines
from compare.report.tables import number, percent, speedup
from compare.timing import figures
from compare.timing.speed_of_light import scaled

MOST = 4

_BEYOND = 1.05
"""Share of the peak from which a sentence says whose peak it is."""

_NEAR = f"within {figures.NEAR:.0%}"

CLOSE = 0.9
"""A kernel at this share of the ceiling has little left to gain."""


@dataclass(frozen=True)
class Sentence:
    """A sentence, its subject (one sentence per subject) and its weight, 0 to 1."""

    subject: str
    weight: float
    text: str
    in_table: bool = False
    """The table of the default screen shows it already."""


class _Facts:
    """What the rules look at: one case, its kernels of one architecture."""

    def __init__(self, comparison: Comparison, case: CaseComparison) -> None:
        self.case = case
        self.sizes = comparison.code_sizes
        self.any_timed = bool(figures.timed_cases(comparison))
        self.timed = sorted(filter(_is_timed, case.rows), key=figures.cold_us)
        """Fastest first."""
        self.best = {
            way: figures.fastest(row for row in case.rows if way_of(row.label) == way)
            for way in ("triton", "cuda")
        }
        self.baseline = figures.row_of(case, figures.baseline_of(case))
        device = next((row.recorded.device for row in case.rows if row.recorded), "")
        self.there = f" on the {device}" if device else ""
        """Replayed figures are not from here, and the sentence says so."""

    def name(self, row: Row) -> str:
        """As the table names it."""
        return figures.represented(self.case, row)[0]

    def is_same_job(self, one: Row, other: Row) -> bool:
        """Whether both declare the same algorithm, and run at the same level: then lines of code compare."""
        first, second = (self.sizes.get(row.label) for row in (one, other))
        same = first is not None and second is not None and first.has_algorithm_of(second)
        return same and one.shown_level == other.shown_level

    def share(self, row: Row) -> float | None:
        """Of the ceiling that binds, 0 to 1, of the row whose figures the table shows for this one."""
        return figures.share(self.case, figures.represented(self.case, row)[1])

    def reach(self, row: Row) -> str:
        """``95% of copy bandwidth``, as in the table; empty where it is not known."""
        share = self.share(row)
        return "" if share is None else f"{percent(share)} of {figures.share_of(self.case)}"


Rule = Callable[[_Facts], Iterator[Sentence]]


def sentences(comparison: Comparison) -> list[str]:
    """The most telling findings on the main case, at most four, most telling first."""
    case = figures.main_case(comparison)
    if case is None:
        return []
    narrowed, _ = lines.of_one_arch(comparison, case)
    return [each.text for each in _findings(comparison, narrowed)][:MOST]


def evidence(comparison: Comparison, case: CaseComparison) -> list[str]:
    """The findings on one case that the screen's table does not show, most telling first."""
    return [each.text for each in _findings(comparison, case) if not each.in_table]


def _findings(comparison: Comparison, case: CaseComparison) -> list[Sentence]:
    """One finding a subject."""
    facts = _Facts(comparison, case)
    chosen: dict[str, Sentence] = {}
    for each in sorted((each for rule in _RULES for each in rule(facts)), key=lambda each: -each.weight):
        chosen.setdefault(each.subject, each)
    return list(chosen.values())


def _is_timed(row: Row) -> bool:
    return row.timing is not None and row.timing.cold_us is not None


def _lead(row: Row | None, other: Row | None) -> str | None:
    """The speedup with its interval; `_NEAR`; empty within noise; None where the two cannot be compared."""
    ratio = figures.ratio(row, other) if row and other else None
    if row is None or other is None or ratio is None:
        return None
    if not figures.differs(row, other):
        return ""
    return _NEAR if figures.near(ratio.median) else speedup(ratio, figures.few(row, other))


def _ahead_of(lead: str, label: str) -> str:
    """``within 2% of torch.eager``, ``speedup 1.23x (1.20-1.26) vs torch.eager``."""
    return f"{lead} of {label}" if lead == _NEAR else f"speedup {lead} vs {label}"


# --------------------------------------------------------------------------- rules


def _bound(facts: _Facts) -> Iterator[Sentence]:
    """Which ceiling binds by the measured ridge, and what share of it the fastest row reaches."""
    share = facts.share(facts.timed[0]) if facts.timed else None
    if share is None:
        return
    ridge, name = figures.ridge(facts.case), facts.name(facts.timed[0])
    at = f" ({number(figures.intensity(facts.case), 2)} FLOP/B, ridge {ridge:.0f})" if ridge else ""
    reach = facts.reach(facts.timed[0]).removesuffix(" (measured)")
    if share < figures.FAR:
        kind = "compute" if figures.compute_bound(facts.case) else "memory"
        text = f"Not {kind} bound at this size{at}: {name} at {reach}."
    elif figures.compute_bound(facts.case):
        whose = ", which is PyTorch's own product" if share > _BEYOND else ""
        text = f"Compute bound{at}: {name} at {reach}{whose}."
    else:
        moved = scaled(facts.case.cost.bytes, "B")
        what = f"{moved} at" if ridge else f"{moved} compulsory, {name} at"
        text = f"Memory bound{at}: {what} {reach}."
    yield Sentence("bound", 1.0, text)


def _fastest(facts: _Facts) -> Iterator[Sentence]:
    """Whether anything beats the baseline."""
    timed = [row for row in facts.timed if not is_library(row.label)]
    if len(timed) < 2 or facts.baseline is None or not _is_timed(facts.baseline):
        return
    best, second = timed[:2]
    if best is facts.baseline:
        if lead := _lead(best, second):
            text = f"{best.label} is the fastest{facts.there}: {_ahead_of(lead, second.label)}, the next."
            yield Sentence("fastest", 0.95, text)
            return
        best = second
    ratio, lead = figures.ratio(best, facts.baseline), _lead(best, facts.baseline)
    if ratio and lead and lead != _NEAR and ratio.median > 1:
        ties = [row.label for row in timed if row is not best and _lead(best, row) == ""]
        level = f", within noise of {' and '.join(ties[:2])}" if ties else ""
        text = f"{best.label} is the fastest{facts.there}{level}: speedup {lead} vs {facts.baseline.label}."
        yield Sentence("fastest", 0.98, text, in_table=True)
    elif lead is not None:
        its = f" {facts.name(best)} is {'' if lead == _NEAR else 'at '}{lead}." if lead else ""
        faster = f"more than {figures.NEAR:.0%}" if lead == _NEAR else "measurably"
        text = f"Nothing is {faster} faster than {facts.baseline.label}{facts.there}.{its}"
        yield Sentence("fastest", 0.95, text)


def _triton_and_cuda(facts: _Facts) -> Iterator[Sentence]:
    """The best of each against the other, with the code that each takes."""
    triton, cuda = facts.best["triton"], facts.best["cuda"]
    if triton is None or cuda is None:
        return
    cuda = figures.represented(facts.case, cuda)[1]
    rows = {"Triton": triton, "CUDA": cuda}
    longer, effort = "", ""
    if facts.is_same_job(triton, cuda):
        shorter, longer = sorted(rows, key=lambda way: facts.sizes[rows[way].label].lines)
        few, many = (facts.sizes[rows[way].label].lines for way in (shorter, longer))
        effort = f"takes {many / few:.1f}x the lines of code to read" if many > few else ""
    ratio = figures.ratio(triton, cuda)
    if ratio is None:
        return
    ahead, behind = ("Triton", "CUDA") if ratio.median > 1 else ("CUDA", "Triton")
    lead = _lead(rows[ahead], rows[behind])
    if lead in ("", _NEAR):
        text = f"Triton and CUDA are {lead or 'within noise'}" + (f"; {longer} {effort}" if effort else "")
    else:
        text = f"{ahead}: speedup {lead} vs {behind}"
        if effort:
            text += f", and {effort}" if longer == ahead else f", which {effort}"
    yield Sentence("triton and cuda", 0.97, f"{text}.")


def _beside_a_library(facts: _Facts) -> Iterator[Sentence]:
    """The best CUDA of this project against a library's kernels."""
    own = facts.best["cuda"]
    for row in (row for row in facts.timed if is_library(row.label)):
        lead = _lead(own, row)
        if own and lead is not None:
            its = f" is {lead or 'within noise'} of" if lead in ("", _NEAR) else f": speedup {lead} vs"
            yield Sentence("library", 0.75, f"{facts.name(own)}{facts.there}{its} {row.label}.")


def _trials(facts: _Facts) -> Iterator[Sentence]:
    """What the best of other values buys over the default."""
    for rows in figures.trials(facts.case):
        best = figures.fastest(rows)
        default = next((row for row in rows if not figures.is_trial(row)), None)
        if not figures.timed_trials(rows) or best is None or default is None or not _is_timed(default):
            continue
        name, values = default.label, default.configuration.text
        lead = None if best is default else _lead(best, default)
        if lead == _NEAR:
            text = f"{name} is {_NEAR}{facts.there} of its default, {values}, with any other value."
        elif lead:
            text = (
                f"{name} is the fastest with {best.configuration.text}{facts.there}: speedup {lead} vs its "
                f"default, {values}."
            )
        else:
            slowest = max(filter(_is_timed, rows), key=figures.cold_us)
            behind = _lead(slowest, default)
            at = behind if behind == _NEAR else f"at {behind}"
            loss = f"; the slowest, {slowest.configuration.text}, is {at}" if behind else ""
            than = f"than the default of {name}, {values}{loss}"
            text = f"No other value is measurably faster{facts.there} {than}."
        yield Sentence(f"trials of {name}", 1.1, text)


def _naive(facts: _Facts) -> Iterator[Sentence]:
    """How many kernels the naive PyTorch launches."""
    naive = next((r for r in facts.case.rows if r.level == "naive" and r.label.startswith("torch.")), None)
    if naive is None or facts.baseline is None or not figures.differs(facts.baseline, naive):
        return
    many, few = (
        sum(k.launches for k in row.resources if k.reader == "profiler") for row in (naive, facts.baseline)
    )
    if many > few > 0:
        passes = f"{naive.label} launches {many} kernels ({facts.baseline.label}: {few})"
        yield Sentence("naive", 0.6, f"{passes}; each passes over memory.")


def _launch(facts: _Facts) -> Iterator[Sentence]:
    """Launch-bound rows: back to back, the host is the limit."""
    bound = [
        (row, row.timing.back_to_back_us.median, row.timing.warm_us.median)
        for row in facts.case.rows
        if row.timing and row.timing.back_to_back_us and row.timing.warm_us and figures.launch_bound(row)
    ]
    if bound:
        best = facts.best.values()
        row, call, warm = max(bound, key=lambda entry: (entry[0] in best, entry[1] / max(entry[2], 1e-9)))
        rows = f"{len(bound)} of {len(facts.timed)} rows"
        times = f"{row.label} {number(call, 2)} µs a call back to back, GPU {number(warm, 2)} µs"
        yield Sentence("launch", 0.85, f"Launch bound: {rows} ({times}).")


def _instruction(facts: _Facts) -> Iterator[Sentence]:
    """What the best of each way multiplies with, where the machine code was read for it."""
    used: dict[str, str] = {}
    cores: list[bool] = []
    for best in filter(None, facts.best.values()):
        if read := [(k.level != "naive", k.instruction) for k in _kernels(best) if k.instruction]:
            on_cores, used[facts.name(best)] = max(read, key=lambda each: each[0])
            cores.append(on_cores)
    if used:
        kind = "Tensor cores" if all(cores) else "No tensor cores" if not any(cores) else "Multiplies by"
        same = len(set(used.values())) == 1
        each = ", ".join(used if same else map(" ".join, used.items()))
        yield Sentence(
            "instruction", 0.7, f"{kind}{f' ({next(iter(used.values()))})' if same else ''}: {each}."
        )


def _kernels(row: Row) -> list[KernelResources]:
    return [kernel for _, _, by_arch in figures.kernels([row]) for kernel in by_arch.values()]


def _resources(facts: _Facts) -> Iterator[Sentence]:
    """Spills first, then low occupancy of the best of each way."""
    for row in facts.case.rows:
        for kernel in (kernel for kernel in _kernels(row) if kernel.spilled_bytes):
            where = f"{kernel.spilled_bytes} bytes per thread on {kernel.arch.rstrip('af')}"
            cost = f", {reach}" if (reach := facts.reach(row)) else ""
            yield Sentence("spills", 0.65, f"{facts.name(row)} spills registers: {where}{cost}.")
    for best in (facts.best["cuda"], facts.best["triton"]):
        for kernel in _kernels(best) if best and facts.reach(best) else ():
            if kernel.occupancy is not None and kernel.occupancy <= 0.5 and kernel.limiter and best:
                enough = (figures.share(facts.case, best) or 0.0) >= CLOSE
                low = f"occupancy {percent(kernel.occupancy)}, limited by {kernel.limiter}"
                at = f"{facts.reach(best)}{': enough work in flight' if enough else ''}"
                yield Sentence("occupancy", 0.5, f"{facts.name(best)}: {low}, at {at}.")


def _counted(facts: _Facts) -> Iterator[Sentence]:
    """What warps wait for, and bank conflicts, where Nsight Compute counted them and one stands out."""
    for row in facts.case.rows:
        for kernel in row.counters:
            reason, share = next(iter(kernel.stalls.items()), ("", 0.0))
            causes = []
            if share >= _OFTEN:
                waits = f"warps wait {percent(share)} of their time for {_STALLS.get(reason, reason)}"
                hits = (
                    f", L2 hit rate {percent(kernel.l2_hit_rate)}" if kernel.l2_hit_rate is not None else ""
                )
                causes.append(f"{waits}{hits if reason == 'long_scoreboard' else ''}")
            if (kernel.bank_conflicts or 0.0) >= _MANY_CONFLICTS:
                causes.append(
                    f"bank conflicts are {percent(kernel.bank_conflicts)} of shared memory's wavefronts"
                )
            if causes:
                yield Sentence(f"counters of {row.label}", 0.99, f"{row.label}: {'; '.join(causes)}.")
                break


_OFTEN, _MANY_CONFLICTS = 0.4, 0.1
_STALLS = {
    "long_scoreboard": "global memory (long scoreboard)",
    "short_scoreboard": "shared memory (short scoreboard)",
    "barrier": "a barrier",
    "math_pipe_throttle": "arithmetic units (math pipe throttle)",
    "mio_throttle": "the queue of shared memory (MIO throttle)",
    "lg_throttle": "the queue of global memory (LG throttle)",
    "wait": "the latency of arithmetic (wait)",
    "not_selected": "other warps (not selected)",
}
"""Stall reasons of ncu."""


def _first_call(facts: _Facts) -> Iterator[Sentence]:
    """What compiling costs, and after how many calls it is earned back against the baseline."""
    row = figures.fastest(facts.case.rows)
    first_ms = row.timing.first_call_ms if row and row.timing else None
    if row is None or facts.baseline is None or first_ms is None or first_ms < 500:
        return
    saved_us = figures.cold_us(facts.baseline) - figures.cold_us(row)
    if 0 < saved_us < math.inf and figures.differs(row, facts.baseline):
        cost = f"first call (compile + run) {first_ms / 1e3:.1f} s"
        calls = f"{first_ms * 1e3 / saved_us:,.0f} calls"
        weight = 0.35 + min(0.1, first_ms / 1e5)
        yield Sentence("first call", weight, f"{row.label}: {cost}, earned back after {calls}.")


def _cache(facts: _Facts) -> Iterator[Sentence]:
    """Whether the case fits into the L2 cache, by the fastest row's warm time."""
    for row in facts.timed[:1]:
        timing = row.timing
        if timing and timing.cold_us and timing.warm_us and timing.cold_us.low > 1.5 * timing.warm_us.high:
            times = f"{number(timing.warm_us.median)} µs, not {number(timing.cold_us.median, 4)}"
            size = scaled(facts.case.cost.bytes, "B")
            text = f"With its input in the L2 cache {row.label} takes {times}: the case's {size} fit there."
            yield Sentence("cache", 0.45, text)


def _effort(facts: _Facts) -> Iterator[Sentence]:
    """Where nothing was timed: code size and registers of the same algorithm in Triton and CUDA."""
    mine = [row for row in facts.case.rows if row.label.startswith("triton.")]
    pairs = [(row, figures.row_of(facts.case, f"cupy.{row.label.partition('.')[2]}")) for row in mine]
    same = [(one, other) for one, other in pairs if other and facts.is_same_job(one, other)]
    if facts.any_timed or not same:
        return
    rows = min(same, key=lambda pair: facts.sizes[pair[0].label].tokens)
    triton, cuda = (facts.sizes[row.label] for row in rows)
    takes = ""
    if all(row.resources for row in rows):
        first, second = (max(kernel.registers for kernel in _kernels(row)) for row in rows)
        on = rows[0].resources[0].arch.rstrip("af")
        takes = f"; {first} and {second} registers/thread on {on}"
    text = f"{triton.lines} lines of code to read in Triton and {cuda.lines} in CUDA{takes}."
    yield Sentence("effort", 0.6, f"The same algorithm ({triton.algorithm}) is {text}")


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
    _counted,
    _first_call,
    _cache,
    _effort,
)
