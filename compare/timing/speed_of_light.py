"""The floor: what a time cannot be below, whatever the kernel, on the ceilings measured in the same run.

Only what physics asks for counts against a row, so that no honest kernel is refused:

- A cold call finds none of its input in the L2, so all of it comes from memory.  Of what it writes, as much
  as the L2 holds may still lie there when the clock stops; only the rest must have gone to memory.
- Calls back to back (warm, and replayed as a graph) may find in the L2 as much as it holds of everything
  they read and write; only the rest passes through memory each time.
- The case's operations take as long as they would at the rate of the library's best matrix product, of fp16
  or of the case's own dtype, where that was measured.

Each is divided by the fastest that a copy, a read or that product reached here, plus `MARGIN`: those are
themselves measurements, and other mixes of reads and writes have been seen to go 3% faster than a copy.
Launching costs time as well, but how much is no law, so it counts for nothing: the floor says little of
small cases, and never anything wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compare.spec import CaseComparison, Ceilings, Cost, Estimate, Row

MARGIN = 0.10
"""By how much the best kernel may surpass the ceilings."""

RARE = 0.05
"""The share of a series that may lie below the floor before the median does.  None ever should: an answer
remembered now and then moves no median."""

_SUMMED_IN = "fp32"
"""The precision in which the matrix product sums; a coarser one may be faster."""


@dataclass(frozen=True)
class Floor:
    """The least time a call can take, and the arithmetic behind it."""

    least_us: float
    amount: float
    """What has to be moved or computed, in bytes or operations,"""
    ceiling: float
    """how much of it a second was reached here,"""
    unit: str
    work: str
    """and both in words: ``134 MB that must be read from memory``,"""
    reached: str
    """``a copy on this device reaches 3.01 TB/s``."""

    def against(self, name: str, time_us: float) -> str:
        """What a time below it comes to."""
        claimed = scaled(self.amount / time_us * 1e6, f"{self.unit}/s") if time_us > 0 else "without limit"
        return f"{time_us:.4g} us {name} for {self.work} would be {claimed}; {self.reached}"


def enforced(case: CaseComparison, l2_bytes: int | None) -> CaseComparison:
    """``case`` with every time that cannot be refused: the row shows none, says why, and nobody is held
    against it.  Rows replayed from a record were judged when they were made."""
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
    """Why the row's times cannot be, with the arithmetic; None where they can."""
    if row.timing is None or row.replayed or case.ceilings is None or l2_bytes is None:
        return None
    series = (
        ("cold", row.timing.cold_us, cold(case.cost, case.ceilings, l2_bytes)),
        ("warm", row.timing.warm_us, warm(case.cost, case.ceilings, l2_bytes)),
        ("replayed as a graph", row.timing.graph_us, warm(case.cost, case.ceilings, l2_bytes)),
    )
    for name, times, bounds in series:
        for floor in bounds:
            if floor.unit == "FLOP" and row.accumulator != _SUMMED_IN:
                continue
            time_us = _below(times, floor.least_us)
            if time_us is not None:
                return (
                    f"impossible: {floor.against(name, time_us)}. It skips its work, keeps what the clock "
                    "flushes, or works where the clock does not look"
                )
    return None


def cold(cost: Cost, ceilings: Ceilings, l2_bytes: int) -> Iterator[Floor]:
    """What bounds a call that finds nothing in the L2."""
    written = max(0, cost.written_bytes - l2_bytes)
    work = f"{scaled(cost.read_bytes, 'B')} that must be read from memory"
    if written:
        work = f"{scaled(cost.read_bytes + written, 'B')} that must be read from and written to memory"
    yield from _traffic(cost.read_bytes + written, work, ceilings)
    yield from _operations(cost.flops, ceilings)


def warm(cost: Cost, ceilings: Ceilings, l2_bytes: int) -> Iterator[Floor]:
    """What bounds a call among equal ones back to back."""
    most = max(0, cost.bytes - l2_bytes)
    yield from _traffic(most, f"{scaled(most, 'B')} more than the L2 holds", ceilings)
    yield from _operations(cost.flops, ceilings)


def scaled(amount: float, unit: str) -> str:
    """``134 MB``, ``11.1 TB/s``: three digits and the prefix that fits."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= 0.9995 * factor:
            digits = f"{amount / factor:.3g}" if amount < 999.5 * factor else f"{amount / factor:.0f}"
            return f"{digits} {prefix}{unit}"
    return f"{amount:.3g} {unit}"


def _traffic(amount: int, work: str, ceilings: Ceilings) -> Iterator[Floor]:
    if amount <= 0:
        return
    gbs, what = max((ceilings.copy_gbs, "a copy"), (ceilings.read_gbs, "reading"))
    least_us = amount / (gbs * 1e3 * (1 + MARGIN))
    reached = f"{what} on this device reaches {scaled(gbs * 1e9, 'B/s')}"
    yield Floor(least_us, amount, gbs * 1e9, "B", work, reached)


def _operations(flops: int, ceilings: Ceilings) -> Iterator[Floor]:
    if flops <= 0 or ceilings.matmul_tflops is None:
        return
    # Of fp16 matrices or of the case's own dtype: bf16 takes less power, and so goes a few percent faster.
    rate = max(ceilings.matmul_tflops, ceilings.product_tflops or 0.0) * 1e12
    reached = f"the library's matrix product on this device reaches {scaled(rate, 'FLOP/s')}"
    least_us = flops / (rate * (1 + MARGIN)) * 1e6
    yield Floor(least_us, flops, rate, "FLOP", f"{scaled(flops, 'FLOP')}", reached)


def _below(times: Estimate | None, least_us: float) -> float | None:
    """The time that shows a series to be impossible: its median, or the few samples that lie below."""
    if times is None:
        return None
    if times.median < least_us:
        return times.median
    low = sorted(sample for sample in times.samples if sample < least_us)
    return low[len(low) // 2] if len(low) > RARE * len(times.samples) else None
