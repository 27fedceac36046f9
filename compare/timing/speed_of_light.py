"""The lower bound on a time, from the ceilings measured in the same run.

The bound is conservative, so that no honest kernel is refused:

- A cold call reads all of its input from memory.  Of its output, as much as the L2 may hold dirty can still
  be there when the clock stops (`DIRTY`); only the rest must have been written to memory.
- Calls back to back (warm, or replayed as a graph) may keep as much of their inputs and outputs in the L2 as
  it holds; only the rest passes through memory each time.
- The case's operations take at least their time at the rate of the library's matrix product, in fp16 or in
  the case's dtype, where that was measured.  On int8 and fp8 that is at least `QUANTIZED_RATE` of fp16: the
  library's product of int8 reaches far less.

The rates are the fastest copy, read or product of this run plus a margin: they are measurements too, and
other kernels and mixes of reads and writes run up to 3% faster.  Launch overhead counts as 0, so the bound is
loose for small cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compare.model.op import QUANTIZED, Cost
from compare.model.result import CaseComparison, Ceilings, Estimate, Row

MARGIN = 0.10
"""How far a kernel may exceed the ceilings,"""
NARROW, LARGE = 0.05, 4
"""and where it moves this many times what the L2 holds, which then matters little.  The fastest kernel here
reads 2.8% faster than PyTorch's reductions, which give the ceiling."""

QUANTIZED_RATE = 2.5
"""Rate of int8 and fp8 as a multiple of fp16: tensor cores do twice the operations in a clock cycle, and as
these need less power each, at higher clocks (on an H100 2.2 times the rate of fp16 was measured)."""

DIRTY = 0.5
"""Share of the L2 that may hold dirty lines when the clock stops.  Input passes through it as well: no
recorded kernel keeps any of its output there."""

RARE = 0.05
"""Share of samples that may lie below the floor.  A kernel that returns cached results now and then moves no
median, but more samples than these."""

_SUMMED_IN = ("fp32", "int32", "fp22")
"""Accumulators of the tensor cores; a narrower one may be faster."""


@dataclass(frozen=True)
class Floor:
    """The least time of a call, and the arithmetic behind it."""

    least_us: float
    amount: float
    """Bytes to move or operations to compute."""
    unit: str
    """``B`` or ``FLOP``."""
    work: str
    """The amount in words: ``134 MB that must be read from memory``."""
    reached: str
    """The ceiling in words: ``a copy on this device reaches 3.01 TB/s``."""

    def against(self, name: str, time_us: float) -> str:
        """The rate that a time below the floor would mean, beside the ceiling."""
        claimed = scaled(self.amount / time_us * 1e6, f"{self.unit}/s") if time_us > 0 else "without limit"
        return f"{time_us:.4g} us {name} for {self.work} would be {claimed}; {self.reached}"


def reject_below_floor(case: CaseComparison, l2_bytes: int | None) -> CaseComparison:
    """``case`` with every impossible row refused: it shows the reason, no time, and no ratio refers to it.

    Replayed rows stay as they were recorded.
    """
    refused = {row.label: why for row in case.rows if (why := impossible(case, row, l2_bytes))}
    if not refused:
        return case

    def judged(row: Row) -> Row:
        if row.label in refused:
            return replace(row, status="impossible", reason=refused[row.label], timing=None)
        if row.timing is None:
            return row
        ratios = tuple(ratio for ratio in row.timing.ratios if ratio.against not in refused)
        lost = [ratio.against for ratio in row.timing.ratios if ratio.against in refused]
        notes = (*row.timing.notes, *(f"no ratio to {label}: its time is impossible" for label in lost))
        return replace(row, timing=replace(row.timing, ratios=ratios, notes=notes))

    return replace(case, rows=tuple(map(judged, case.rows)))


def impossible(case: CaseComparison, row: Row, l2_bytes: int | None) -> str | None:
    """Why the row's times are impossible, with the arithmetic; None where they are not."""
    if row.timing is None or row.recorded or case.ceilings is None or l2_bytes is None:
        return None
    ceilings = of_dtype(case.case, case.ceilings)
    series = (
        ("cold", row.timing.cold_us, cold(case.cost, ceilings, l2_bytes)),
        ("warm", row.timing.warm_us, warm(case.cost, ceilings, l2_bytes)),
        ("replayed as a graph", row.timing.graph_us, warm(case.cost, ceilings, l2_bytes)),
    )
    for name, times, bounds in series:
        for floor in bounds:
            if floor.unit == "FLOP" and row.accumulator not in _SUMMED_IN:
                continue
            time_us = _below(times, floor.least_us)
            if time_us is not None:
                return (
                    f"impossible: {floor.against(name, time_us)}. It skips work, reuses a cached result, or "
                    "leaves work to another stream"
                )
    return None


def of_dtype(case: str, ceilings: Ceilings) -> Ceilings:
    """``ceilings`` with the rate of products that a case's dtype allows."""
    if ceilings.matmul_tflops is None or set(QUANTIZED).isdisjoint(case.split(",")):
        return ceilings
    return replace(ceilings, matmul_tflops=QUANTIZED_RATE * ceilings.matmul_tflops)


def cold(cost: Cost, ceilings: Ceilings, l2_bytes: int) -> Iterator[Floor]:
    """The lower bounds of a call with a cold L2."""
    written = max(0, cost.written_bytes - int(DIRTY * l2_bytes))
    work = f"{scaled(cost.read_bytes, 'B')} that must be read from memory"
    if written:
        work = f"{scaled(cost.read_bytes + written, 'B')} that must be read from and written to memory"
    yield from _traffic(cost.read_bytes + written, work, ceilings, l2_bytes)
    yield from _operations(cost.flops, ceilings)


def warm(cost: Cost, ceilings: Ceilings, l2_bytes: int) -> Iterator[Floor]:
    """The lower bounds of a call among calls back to back."""
    most = max(0, cost.bytes - l2_bytes)
    yield from _traffic(most, f"{scaled(most, 'B')} more than the L2 holds", ceilings, l2_bytes)
    yield from _operations(cost.flops, ceilings)


def scaled(amount: float, unit: str) -> str:
    """An amount with three digits and an SI prefix: ``134 MB``, ``11.1 TB/s``."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= 0.9995 * factor:
            digits = f"{amount / factor:.3g}" if amount < 999.5 * factor else f"{amount / factor:.0f}"
            return f"{digits} {prefix}{unit}"
    return f"{amount:.3g} {unit}"


def _traffic(amount: int, work: str, ceilings: Ceilings, l2_bytes: int) -> Iterator[Floor]:
    if amount <= 0:
        return
    gbs = ceilings.best_gbs or max(ceilings.copy_gbs, ceilings.read_gbs)
    narrow = ceilings.best_gbs is not None and amount >= LARGE * l2_bytes
    least_us = amount / (gbs * 1e3 * (1 + (NARROW if narrow else MARGIN)))
    reached = f"a copy or a read on this device reaches {scaled(gbs * 1e9, 'B/s')}"
    yield Floor(least_us, amount, "B", work, reached)


def _operations(flops: int, ceilings: Ceilings) -> Iterator[Floor]:
    if flops <= 0 or ceilings.matmul_tflops is None:
        return
    # fp16 or the case's dtype, whichever is faster: bf16 needs less power and is a few percent faster.
    rate = max(ceilings.matmul_tflops, ceilings.product_tflops or 0.0) * 1e12
    reached = f"a matrix product on this device reaches {scaled(rate, 'FLOP/s')}"
    least_us = flops / (rate * (1 + MARGIN)) * 1e6
    yield Floor(least_us, flops, "FLOP", scaled(flops, "FLOP"), reached)


def _below(times: Estimate | None, least_us: float) -> float | None:
    """The series' median if it is below ``least_us``, else that of its low samples if they are not rare."""
    if times is None:
        return None
    if times.median < least_us:
        return times.median
    low = sorted(sample for sample in times.samples if sample < least_us)
    return low[len(low) // 2] if len(low) > RARE * len(times.samples) else None
