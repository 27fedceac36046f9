"""The table of docs/results.md: each op on its default case, with the best of each way."""

from __future__ import annotations

from pathlib import Path

from compare import registry
from compare.history.crossover import best_of_ways
from compare.history.recorded import case_of, most_recorded, recorded
from compare.model.op import Op
from compare.model.result import CaseComparison, Comparison, Row
from compare.records import archive
from compare.records.archive import changed_since
from compare.report import markdown, tables
from compare.report.tables import NOTHING, Table
from compare.timing import figures

_HEADERS = (
    *("op", "default case", "PyTorch µs"),
    *("Triton", "Triton µs", "speedup", "lines"),
    *("CUDA", "CUDA µs", "speedup", "lines", "% of ceiling"),
)


def block(results: Path) -> str:
    """A line for each op: one table of the device with the most ops, and one of each that has others.

    An op of which nothing is recorded has ``-``, in the first table.
    """
    every = [run for op in registry.op_names() for run in archive.runs_of(op, results)]
    first = most_recorded(every)
    tables_of: dict[str, list[tuple[str, ...]]] = {first: []}
    for op in map(registry.get_op, registry.op_names()):
        run = recorded(op, results, first) or recorded(op, results)
        device = run.environment.device if run else first
        tables_of.setdefault(device, []).append(_line(op, run))
    return "\n\n".join(
        markdown.table(Table(_title(device), _HEADERS, tuple(rows), ("default case", "Triton", "CUDA")))
        for device, rows in tables_of.items()
    )


def _title(device: str) -> str:
    return f"Each op on its default case, cold, on {device or 'no device yet'}"


def _line(op: Op, run: Comparison | None) -> tuple[str, ...]:
    name, default = f"[{op.name}](ops/{op.name}.md)", str(op.cases.default)
    case = case_of(run, default)
    if run is None or case is None:
        return name, default, *[NOTHING] * (len(_HEADERS) - 2)
    best = best_of_ways(case)
    baseline = figures.row_of(case, figures.baseline_of(case))
    first = next(iter(best.values()), None)
    library = "" if baseline is None or baseline.label == "torch.eager" else f" ({baseline.label})"
    of_peak = " p" if figures.compute_bound(case) else ""
    return (
        name,
        default,
        _us(baseline) + library,
        *_of_a_way(run, case, best.get("triton"), baseline),
        *_of_a_way(run, case, best.get("cuda"), baseline),
        tables.percent(figures.share(case, first) if first else None) + of_peak,
    )


def _of_a_way(
    run: Comparison, case: CaseComparison, row: Row | None, baseline: Row | None
) -> tuple[str, ...]:
    """The name of its fastest variant, µs, speedup and lines."""
    if row is None:
        return (NOTHING,) * 4
    name, row = figures.represented(case, row)
    size = run.code_sizes.get(row.label)
    return (
        f"`{name}`{' *' if changed_since(row) else ''}",
        _us(row),
        tables.lead(row, baseline) if baseline else NOTHING,
        str(size.lines) if size else NOTHING,
    )


def _us(row: Row | None) -> str:
    """The cold median."""
    cold = row.timing.cold_us if row and row.timing else None
    return tables.number(cold.median if cold else None, 4)
