"""The tables of docs/where-triton-ends.md: what limits cost, and each level's speed beside a library's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare import registry
from compare.history.recorded import case_of, most_recorded, recorded
from compare.model.result import CaseComparison, Comparison, Row
from compare.records import archive
from compare.records.archive import changed_since
from compare.report import markdown
from compare.report.tables import NOTHING, Table
from compare.timing import figures
from tools.docs.triton_probes import NEWEST, SINCE


@dataclass(frozen=True)
class Limit:
    """What ``triton.language`` does not say, where it shows, and what lifts it."""

    name: str
    symptom: str
    op: str
    triton: str
    cuda: str
    gluon: str = ""
    """Its row; empty: none is written here."""
    lifted_by: str = ""
    """A name of `SINCE`; empty: nothing."""
    case: str = ""
    """Empty: the op's default."""


LIMITS = (
    Limit(
        "sizes are powers of two",
        "ValueError: arange's range must be a power of 2",
        *("batched_matmul", "triton.tiled", "cupy.tiled"),
        lifted_by="gluon size that is no power of two",
    ),
    Limit(
        "access width follows from a proof",
        "16 in the column `load` of `pipeline`",
        *("batched_matmul", "triton.tensor_core", "cupy.tensor_core"),
        case="B=65536,N=47,fp16",
    ),
    Limit(
        "shared memory is the compiler's",
        "VOTE and POPC, where CUDA has ATOMS",
        *("histogram", "triton.shared", "cupy.lanes", "triton.gluon"),
        lifted_by="gluon shared memory",
    ),
    Limit(
        "no lanes: no ballot, no shuffle",
        "many BAR and STS, where CUDA has VOTE",
        *("compact", "triton.onepass", "cupy.onepass", "triton.gluon"),
        lifted_by="gluon layouts",
    ),
    Limit(
        "warps do the same work",
        "no USETMAXREG in SASS: all warps are alike",
        *("attention", "triton.pipelined", "cupy.persistent", "triton.gluon"),
        lifted_by="gluon warp specialization",
    ),
    Limit(
        "blocks share nothing but global memory",
        "one launch more, which zeroes words to poll",
        *("softmax", "triton.split", "cupy.cluster", "triton.gluon_cluster"),
        lifted_by="gluon exchange in a cluster",
        case="M=1024,N=131072,bf16",
    ),
    Limit(
        "one block loads for itself",
        "UTMALDG without .MULTICAST in SASS",
        *("fp8_matmul", "triton.persistent", "cupy.multicast"),
        lifted_by="gluon multicast",
    ),
    Limit(
        "the accumulator is `tl.dot`'s",
        "all warps wait at WARPGROUP.DEPBAR, then add",
        *("fp8_block_matmul", "triton.persistent", "cupy.prefetched", "triton.gluon"),
        lifted_by="gluon warp specialization",
    ),
    Limit(
        "the schedule of a long loop",
        "255 registers and spills in `--details`",
        *("attention_backward", "triton.pipelined", "cupy.overlapped"),
        lifted_by="gluon warp specialization",
    ),
)


def block(results: Path) -> str:
    """A line for each limit: CUDA's speedup over Triton on record, and what lifts it since when."""
    device = _device(results)
    rows = tuple(_line(limit, recorded(registry.get_op(limit.op), results, device)) for limit in LIMITS)
    headers = (
        *("limit of `triton.language`", "symptom on the screen", "op and rows", "CUDA's speedup"),
        *("Gluon's here", "does Gluon lift it"),
    )
    title = f"Limits, and what they cost: cold times, recorded on {device or 'no device yet'}"
    return markdown.table(Table(title, headers, rows, text_columns=headers))


def _device(results: Path) -> str:
    return most_recorded([run for op in registry.op_names() for run in archive.runs_of(op, results)])


def _line(limit: Limit, found: Comparison | None) -> tuple[str, ...]:
    case_name = limit.case or str(registry.get_op(limit.op).cases.default)
    case = case_of(found, case_name)
    where = f"[{limit.op}](ops/{limit.op}.md): `{limit.triton}`, `{limit.cuda}`"
    where += f", `{limit.gluon}`" if limit.gluon not in ("", "triton.gluon") else ""
    where += f", {limit.case}" if limit.case else ""
    return (
        limit.name,
        limit.symptom,
        where,
        _ratio(case, limit.triton, limit.cuda),
        _ratio(case, limit.triton, limit.gluon),
        lifted(limit.lifted_by),
    )


def lifted(name: str) -> str:
    """Since which version Gluon has something, or that it has it in none."""
    since = SINCE[name] if name else None
    return f"since {since}" if since else f"no, to {NEWEST}"


def _ratio(case: CaseComparison | None, slower: str, faster: str) -> str:
    """How many times faster, from the cold medians; ``*``: of another source than today's."""
    rows = [figures.row_of(case, label) if case and label else None for label in (slower, faster)]
    times = [figures.cold_us(row) if row else None for row in rows]
    if times[0] is None or times[1] is None:
        return NOTHING
    changed = " *" if any(row and changed_since(row) for row in rows) else ""
    return f"{times[0] / times[1]:.2f}x{changed}"


# --------------------------------------------------------------------------- effort

EFFORT = {
    "matmul": (
        *("triton.tiled", "triton.autotuned", "triton.persistent", "triton.gluon"),
        *("cupy.tensor_core", "cupy.specialized", "cupy.tma_store"),
    ),
    "attention": ("triton.pipelined", "triton.gluon", "cupy.tensor_core", "cupy.speculative"),
    "fp8_matmul": ("triton.tiled", "triton.persistent", "triton.gluon", "cupy.multicast"),
}
"""By op the rows that are compared with its library's."""


def effort(results: Path) -> str:
    """Each row's share of its op's library's speed, and the lines of code that a reader must read."""
    device = _device(results)
    rows = []
    for name, labels in EFFORT.items():
        found = recorded(registry.get_op(name), results, device)
        default = str(registry.get_op(name).cases.default)
        case = case_of(found, default)
        if found is None or case is None:
            continue
        baseline = figures.row_of(case, figures.baseline_of(case))
        rows += [_effort_line(found, case, baseline, label) for label in labels]
    headers = ("op", "row", "speed, as a share of the library's", "lines of code", "tokens")
    title = (
        f"Speed and code beside the library that PyTorch calls, on the default cases, recorded on {device}"
    )
    return markdown.table(Table(title, headers, tuple(rows), text_columns=("row",)))


def _effort_line(
    found: Comparison, case: CaseComparison, baseline: Row | None, label: str
) -> tuple[str, ...]:
    row = figures.row_of(case, label)
    times = [figures.cold_us(each) if each else None for each in (baseline, row)]
    size = found.code_sizes.get(label)
    share = f"{times[0] / times[1]:.0%}" if times[0] and times[1] else NOTHING
    changed = " *" if row and changed_since(row) else ""
    name = f"{found.op} vs {baseline.label if baseline else NOTHING}"
    sizes: Sequence[str] = (str(size.lines), str(size.tokens)) if size else (NOTHING, NOTHING)
    return name, f"`{label}`{changed}", share, *sizes
