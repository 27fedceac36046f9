"""The screen of an op of several GPUs: latency of small cases, bus bandwidth of large ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from compare import registry
from compare.collectives.results import RankedCase, RankedComparison, RankedRow, changed
from compare.report.layout import Column, fitted, paragraph
from compare.report.screen import WIDEST
from compare.report.tables import NOTHING, count, number

LATENCY_BYTES = 1 << 20
"""Up to so many bytes of x a case's time is shown, beyond its bandwidth."""
_SHOWN = 3
"""Cases of each kind, evenly spread; ``--all`` shows each."""
_LEGEND = (
    "µs: of a call in a CUDA graph; no graph: of calls back to back, launch overhead included. GB/s: bus "
    "bandwidth as NCCL's tests have it, 2 (D - 1) / D of x's bytes over the time. regs: registers per "
    "thread; smem: shared memory per block. *: its source has changed since."
)
_WORDS = {"ok": "correct", "wrong": "WRONG", "failed": "FAILED", "not run": "not run"}


def render(
    comparison: RankedComparison, records: Sequence[RankedComparison], width: int, *, every: bool = False
) -> str:
    """The screen.

    Args:
        comparison: of this run.
        records: on record, shown where this run timed nothing.
        width: of the terminal.
        every: all cases, not six.
    """
    width = min(width, WIDEST)
    op = registry.get_op(comparison.op)
    head = f"{op.name}  {op.formula}"
    blocks = [f"{head}\n{_machine(comparison, width)}", "\n".join(_verdict(comparison, width))]
    for one in (comparison, *records):
        tables = ["\n".join(table(one, dtype, width, every)) for dtype in dtypes(one)]
        if one is not comparison and tables:
            tables.insert(0, _machine(one, width, f"RECORDED {one.created[:10]}: "))
        blocks += tables
    if len(blocks) > 2:
        blocks.append(paragraph(_LEGEND, width, hanging="  "))
    return "\n\n".join(blocks)


def _machine(comparison: RankedComparison, width: int, before: str = "") -> str:
    where = comparison.environment
    facts = [f"{before}{comparison.gpus} x {where.device}"]
    if comparison.peer_copy_gbs:
        facts.append(f"peer copy {comparison.peer_copy_gbs:.0f} GB/s each way")
    facts += [f"{name} {where.versions[name]}" for name in ("torch", "triton") if name in where.versions]
    return paragraph(" · ".join(facts), width, hanging="  ")


def dtypes(comparison: RankedComparison) -> list[str]:
    """Of the cases that have times."""
    return list(dict.fromkeys(map(_dtype, _timed(comparison))))


def _timed(comparison: RankedComparison) -> list[RankedCase]:
    return [case for case in comparison.cases if any(row.graph_us for row in case.rows)]


def _dtype(case: RankedCase) -> str:
    return case.case.split(",")[2]


def _verdict(comparison: RankedComparison, width: int) -> list[str]:
    rows = [(case.case, row) for case in comparison.cases for row in case.rows]
    bad = [(case, row) for case, row in rows if row.status in ("wrong", "failed")]
    text = [f"{_WORDS[row.status]}  {row.label} on {case}: {row.reason}" for case, row in bad]
    ran = {row.label for _, row in rows if row.status != "not run"}
    right = ran - {row.label for _, row in bad}
    ranks = "on all GPUs" if comparison.environment.device_type == "cuda" else "in all processes"
    where = f"{ranks}, on {len(comparison.cases)} case" + "s" * (len(comparison.cases) != 1)
    text.append(f"CORRECT  {len(right)} of {len(ran)} match{'es' * (len(ran) == 1)} fp64 {where}")
    not_run: dict[str, dict[str, None]] = {}
    for _, row in rows:
        if row.status == "not run":
            not_run.setdefault(row.reason, {})[row.label] = None
    reasons = [f"not run: {', '.join(each)}: {reason}" for reason, each in not_run.items()]
    if comparison.interrupted:
        text.insert(0, "NOT FINISHED: results so far")
    return [paragraph(line, width, hanging="  ") for line in (*text, *reasons)]


def table(comparison: RankedComparison, dtype: str, width: int, every: bool, whole: bool = True) -> list[str]:
    """A line for each implementation: its cases of one dtype, registers, shared memory and code size.

    ``whole``: with the last three.
    """
    others = changed(comparison)
    cases = [case for case in _timed(comparison) if _dtype(case) == dtype]
    small = [case for case in cases if case.x_bytes <= LATENCY_BYTES]
    large = [case for case in cases if case.x_bytes > LATENCY_BYTES]
    if not every:
        small, large = _spread(small), _spread(large)
    labels = list(dict.fromkeys(row.label for case in cases for row in case.rows))
    first = tuple(label + "*" * (label in others) for label in labels)
    columns = [Column(f"x in {dtype} on\neach of {comparison.gpus}", first, left=True)]
    columns += [_column(case, "µs", labels, latency) for case in small]
    columns += [_column(case, "GB/s", labels, partial(bandwidth, case)) for case in large]
    if small:
        columns.insert(1 + len(small), _column(small[0], "no graph", labels, _launched))
    if whole:
        columns += _taken(comparison, labels)
    return fitted([(columns, 2), (columns, 1)], width)


def _spread(cases: Sequence[RankedCase]) -> list[RankedCase]:
    if len(cases) <= _SHOWN:
        return [*cases]
    return [cases[round(i * (len(cases) - 1) / (_SHOWN - 1))] for i in range(_SHOWN)]


def _column(case: RankedCase, unit: str, labels: Sequence[str], read: Callable[[RankedRow], str]) -> Column:
    rows: Mapping[str, RankedRow] = {row.label: row for row in case.rows}
    cells = (read(rows[label]) if label in rows else NOTHING for label in labels)
    return Column(f"{size(case.x_bytes)}\n{unit}", tuple(cells))


def size(nbytes: int) -> str:
    """``4 KB``, in powers of 1024."""
    unit = min(3, max(0, nbytes.bit_length() - 1) // 10)
    return f"{nbytes / 1024**unit:.4g} {('B', 'KB', 'MB', 'GB')[unit]}"


def latency(row: RankedRow) -> str:
    return number(row.graph_us.median) if row.graph_us else _WORDS[row.status]


def _launched(row: RankedRow) -> str:
    return number(row.back_to_back_us.median) if row.back_to_back_us else NOTHING


def bandwidth(case: RankedCase, row: RankedRow) -> str:
    if not row.graph_us:
        return _WORDS[row.status]
    return number(case.bus_bytes / row.graph_us.median / 1e3)


def _taken(comparison: RankedComparison, labels: Sequence[str]) -> list[Column]:
    kernels = [comparison.resources.get(label, ()) for label in labels]
    sizes = [comparison.code_sizes.get(label) for label in labels]
    shared = [[k.static_shared_bytes + k.dynamic_shared_bytes for k in each] for each in kernels]
    return [
        Column("\nregs", tuple(count(max((k.registers for k in each), default=None)) for each in kernels)),
        Column("\nsmem", tuple(size(max(each)) if each else NOTHING for each in shared)),
        Column("\nlines", tuple(count(each.lines if each else None) for each in sizes)),
    ]
