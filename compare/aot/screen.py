"""What was built and ran of an op's programs, as text for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from compare.aot.running import ProgramOutcome, ProgramReport
from compare.report.tables import Table, number
from compare.report.terminal import PROSE_WIDTH, laid_out, paragraph

_BUILT_LEGEND = (
    "code B: the image that the program carries and the driver loads, a cubin or nvcc's fat binary. "
    "program B: the whole executable."
)
_RAN_LEGEND = (
    "cold: from the start of the process until the first result is in the host's memory, inputs read from "
    "files. launch: host time of one launch, of many in a row. graph: the same as a CUDA graph. brackets: "
    "95% interval of a median, and of fewer than six samples their range."
)


def render(report: ProgramReport, width: int) -> str:
    """What was built, what was not and why, and the runs; no line is wider than ``width``."""
    prose = min(width, PROSE_WIDTH)
    archs = ", ".join(dict.fromkeys(one.arch for one in report.outcomes))
    tables = [table for table in (_built(report), _ran(report)) if table.rows]
    blocks = [f"{report.op}  {report.signature}\n{report.case}, built for {archs}"]
    blocks += [laid_out(table, width) for table in tables]
    reasons: dict[str, Callable[[ProgramOutcome], str]] = {
        "Not possible": lambda one: one.cannot,
        "Failed": lambda one: one.failed,
        "Wrong": lambda one: "" if one.ran is None or one.ran.agreement.passed else one.ran.agreement.reason,
    }
    for title, why in reasons.items():
        if lines := _reasons(report.outcomes, why, prose):
            blocks.append("\n".join([title, *lines]))
    if tables:
        blocks.append(paragraph(" ".join(line for table in tables for line in table.legend), prose))
        program = next(one.program for one in report.outcomes if one.program)
        folder, files = shlex.quote(str(program.folder)), " ".join(program.files)
        blocks.append(f"To build and run one again:\n  make -C {folder}\n  {folder}/program {files}")
        blocks += [paragraph(report.why_not_run, prose)] if report.why_not_run else []
    return "\n\n".join(blocks)


def _built(report: ProgramReport) -> Table:
    rows = []
    for one in report.outcomes:
        if program := one.program:
            sizes = number(program.code_bytes), number(program.program_bytes)
            rows.append((one.label, one.arch, program.kernel, program.tool, *sizes))
    headers = ("implementation", "for", "kernel", "made by", "code B", "program B")
    flush = ("for", "kernel", "made by")
    return Table("Programs that run without Python", headers, tuple(rows), flush, (_BUILT_LEGEND,))


def _ran(report: ProgramReport) -> Table:
    rows = []
    for one in report.outcomes:
        if ran := one.ran:
            values = (ran.cold_ms, ran.launch_us, ran.graph_us)
            times = (f"{number(t.median)} ({number(t.low)}-{number(t.high)})" for t in values)
            rows.append((one.label, "yes" if ran.agreement.passed else "NO", *times))
    headers = ("implementation", "correct", "cold\nms", "launch\nµs", "graph\nµs")
    title = f"From start to first result, on {report.device}"
    return Table(title, headers, tuple(rows), ("correct",), (_RAN_LEGEND,))


def _reasons(
    outcomes: Sequence[ProgramOutcome], why: Callable[[ProgramOutcome], str], width: int
) -> list[str]:
    """Each reason once, after the programs it applies to."""
    whose: dict[str, dict[str, list[str]]] = {}
    for one in outcomes:
        if why(one):
            whose.setdefault(why(one), {}).setdefault(one.label, []).append(one.arch)
    lines = []
    for reason, labels in whose.items():
        who = ", ".join(f"{label} for {', '.join(archs)}" for label, archs in labels.items())
        first, *rest = reason.splitlines()
        lines += [paragraph(f"{who}: {first}", width, "  "), *(f"    {line}" for line in rest)]
    return lines
