"""What `compare.toolchain.aot` built and ran, as text for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from compare.report.tables import NOTHING, Table, number
from compare.report.terminal import PROSE_WIDTH, laid_out, paragraph
from compare.spec import Estimate
from compare.toolchain.aot.records import Outcome, Report, Started

_BUILT_LEGEND = (
    "code B: the image that the program carries and the driver loads, a cubin or nvcc's fat binary. "
    "program B: the whole executable."
)
_RAN_LEGEND = (
    "cold: from the start of the process until the first result is in the host's memory, inputs read from "
    "files; compiling: the same with empty caches of compiled kernels. launch: host time of one launch, of "
    "many in a row; from Python with its checks and the allocation of its output. graph: the same as a CUDA "
    "graph. brackets: 95% interval of a median, and of fewer than six samples their range."
)


def render(report: Report, width: int) -> str:
    """What was built, what was not and why, and the runs; no line is wider than ``width``."""
    prose = min(width, PROSE_WIDTH)
    archs = ", ".join(dict.fromkeys(one.arch for one in report.outcomes))
    blocks = [f"{report.op}  {report.signature}\n{report.case}, built for {archs}"]
    built = [one for one in report.outcomes if one.program]
    legends = []
    if built:
        blocks.append(laid_out(_built(built), width))
        legends.append(_BUILT_LEGEND)
    ran = [one for one in report.outcomes if one.ran]
    agreements = [(one, one.ran.agreement) for one in ran if one.ran]
    if ran:
        blocks.append(laid_out(_ran(ran, report.device), width))
        legends.append(_RAN_LEGEND)
    said = {
        "Not possible": [(one, one.cannot) for one in report.outcomes],
        "Failed": [(one, one.failed) for one in report.outcomes],
        "Wrong": [(one, "" if a.passed else a.reason) for one, a in agreements],
    }
    for title, every in said.items():
        reasons = [(one, why) for one, why in every if why]
        if reasons:
            blocks.append("\n".join([title, *_said(reasons, prose)]))
    if legends:
        blocks.append(paragraph(" ".join(legends), prose))
    if built and built[0].program:
        folder = shlex.quote(str(built[0].program.folder))
        files = " ".join(built[0].program.files)
        blocks.append(f"To build and run one again:\n  make -C {folder}\n  {folder}/program {files}")
    if report.why_not_run and built:
        blocks.append(paragraph(report.why_not_run, prose))
    return "\n\n".join(blocks)


def _built(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for one in outcomes:
        program = one.program
        assert program is not None
        kernel = program.kernel
        figures = (number(kernel.code_bytes), number(program.program_bytes))
        rows.append((one.label, one.arch, kernel.name, kernel.tool, *figures))
    headers = ("implementation", "for", "kernel", "made by", "code B", "program B")
    return Table("Programs that run without Python", headers, tuple(rows), ("for", "kernel", "made by"))


def _ran(outcomes: Sequence[Outcome], device: str) -> Table:
    rows = []
    for one in outcomes:
        ran = one.ran
        assert ran is not None
        correct = "yes" if ran.agreement.passed else "NO"
        rows.append((one.label, "without Python", correct, *_started(ran.ahead)))
        rows.append(("", f"Python: {ran.jit_label}", NOTHING, *_started(ran.jit)))
    headers = ("implementation", "started", "correct", "compiling\nms", "cold\nms", "launch\nµs", "graph\nµs")
    return Table(f"From start to first result, on {device}", headers, tuple(rows), ("started", "correct"))


def _started(found: Started) -> tuple[str, ...]:
    return tuple(map(_with_range, (found.compiling_ms, found.cold_ms, found.launch_us, found.graph_us)))


def _with_range(value: Estimate | None) -> str:
    if value is None:
        return NOTHING
    return f"{number(value.median)} ({number(value.low)}-{number(value.high)})"


def _said(reasons: Sequence[tuple[Outcome, str]], width: int) -> list[str]:
    """Each reason once, after the programs it applies to."""
    whose: dict[str, dict[str, list[str]]] = {}
    for one, why in reasons:
        whose.setdefault(why, {}).setdefault(one.label, []).append(one.arch)
    lines = []
    for why, labels in whose.items():
        who = ", ".join(f"{label} for {', '.join(archs)}" for label, archs in labels.items())
        first, *rest = why.splitlines()
        lines += [paragraph(f"{who}: {first}", width, "  "), *(f"    {line}" for line in rest)]
    return lines
