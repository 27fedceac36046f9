"""What was built and ran of an op's programs, as text for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from compare.aot.programs import ProgramOutcome, ProgramReport
from compare.model.result import Estimate
from compare.report import terminal
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


def put(report: ProgramReport) -> None:
    """Print it."""
    terminal.put(lambda width: render(report, width))


def render(report: ProgramReport, width: int) -> str:
    """What was built, what was not and why, and the runs; no line is wider than ``width``."""
    prose = min(width, PROSE_WIDTH)
    archs = ", ".join(dict.fromkeys(one.arch for one in report.outcomes))
    tables = [table for table in (_built(report), _ran(report)) if table.rows]
    blocks = [f"{report.op}  {report.signature}\n{report.case}, built for {archs}"]
    blocks += [laid_out(table, width) for table in tables]
    reasons = {
        "Not possible": [(one, one.cannot) for one in report.outcomes],
        "Failed": [(one, one.failed) for one in report.outcomes],
        "Wrong": [
            (one, one.ran.agreement.reason)
            for one in report.outcomes
            if one.ran and not one.ran.agreement.passed
        ],
    }
    for title, pairs in reasons.items():
        if lines := _reasons(pairs, prose):
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
            correct = "yes" if ran.agreement.passed else "NO"
            times = map(_with_range, (ran.cold_ms, ran.launch_us, ran.graph_us))
            rows.append((one.label, correct, *times))
    headers = ("implementation", "correct", "cold\nms", "launch\nµs", "graph\nµs")
    title = f"From start to first result, on {report.device}"
    return Table(title, headers, tuple(rows), ("correct",), (_RAN_LEGEND,))


def _with_range(value: Estimate) -> str:
    return f"{number(value.median)} ({number(value.low)}-{number(value.high)})"


def _reasons(pairs: Sequence[tuple[ProgramOutcome, str]], width: int) -> list[str]:
    """Each reason once, after the programs it applies to."""
    whose: dict[str, dict[str, list[str]]] = {}
    for one, why in pairs:
        if why:
            whose.setdefault(why, {}).setdefault(one.label, []).append(one.arch)
    lines = []
    for why, labels in whose.items():
        who = ", ".join(f"{label} for {', '.join(archs)}" for label, archs in labels.items())
        first, *rest = why.splitlines()
        lines += [paragraph(f"{who}: {first}", width, "  "), *(f"    {line}" for line in rest)]
    return lines
