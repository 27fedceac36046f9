"""Comparisons as one HTML page: the lines of `compare.report.lines`, set by the templates."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from compare.model.op import way_of
from compare.model.result import WRONG, CaseComparison, Comparison, Row
from compare.report import lines, tables
from compare.report.html import figures as plots
from compare.report.html import palette, sources
from compare.report.html.figures import Json
from compare.report.html.sources import Code
from compare.report.kernel_names import shortened
from compare.report.lines import WORDS, Line, grouped
from compare.report.sentences import sentences
from compare.report.tables import NOTHING, number, percent, spread
from compare.timing import figures
from compare.tuning.matching import registered_as

_HERE = Path(__file__).parent
_BAD = (*WRONG, "failed")
_DIGITS = 5
"""Of a sample: the event clock resolves no more."""
_COMPILED = ("triton", "cuda")
"""Ways whose kernels the pipeline compiles with or without a GPU; of PyTorch's, torch.compile's."""


def dumps(comparisons: Sequence[Comparison]) -> str:
    """The page, whole: it needs no other file and no network.  Runs of one op stand there as one.

    Raises:
        UsageError: what draws its figures is missing.
    """
    ops = [_OpSection(comparison) for comparison in _by_op(comparisons)]
    # Each source file once, however many rows rest on it.
    files = list(
        dict.fromkeys(file for op in ops for one in op.details if one.code for file in one.code.files)
    )
    own = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("specs.js", "page.js"))
    scripts = [_in_script(plots.library()), _in_script(own)]
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: shortened(value) if type(value) is str else value,  # markup stays
    )
    environment.globals |= {"bad": _BAD, "lines": lines, "tables": tables, "figures": figures}
    environment.filters |= {
        "anchor": _anchor,
        "clocks": _clocks,
        "extent": _extent,
        "number": number,
        "percent": percent,
        "share": _share,
        "speedup": _speedup,
        "spread": spread,
        "takes": _takes,
        "thousands": plots.grouped,
        "whole": _whole,
    }
    return environment.get_template("page.html.j2").render(
        ops=ops,
        files=[(sources.name(file), sources.highlighted(file)) for file in files],
        css=Markup(palette.css() + (_HERE / "style.css").read_text(encoding="utf-8")),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        data=Markup(_as_json({"ops": {op.anchor: op.data(files) for op in ops}})),
    )


def _by_op(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """One for each op, with the cases of all its runs, as a search for a crossover makes them."""
    by_op: dict[str, Comparison] = {}
    for run in comparisons:
        seen = by_op.get(run.op, replace(run, cases=()))
        by_op[run.op] = replace(
            seen,
            cases=(*seen.cases, *run.cases),
            code_sizes=seen.code_sizes | run.code_sizes,
            interrupted=seen.interrupted or run.interrupted,
        )
    return list(by_op.values())


# --------------------------------------------------------------------------- scripts


def _in_script(text: str) -> Markup:
    """JavaScript that cannot end its element early; these signs stand in its strings only."""
    return Markup(re.sub(r"<(?=/script|!--)", r"\\x3c", text, flags=re.IGNORECASE))


def _hash(script: str) -> str:
    """Of a script that may run, as the Content-Security-Policy names it; no other runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _as_json(data: Json) -> str:
    """As it may stand in a script, with null for what is not finite."""
    data = json.loads(
        json.dumps(data),
        parse_float=lambda figure: float(f"{float(figure):.{_DIGITS}g}"),
        parse_constant=lambda _: None,
    )
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# --------------------------------------------------------------------------- what the templates show


@dataclass(frozen=True)
class _CaseTable:
    """The table of one case."""

    case: CaseComparison
    """With the kernels of one architecture."""
    arch: str
    lines: list[Line]


@dataclass(frozen=True)
class _Detail:
    """Everything known of an implementation on the main case, or on the first that has it."""

    case: CaseComparison
    line: Line
    row: Row
    """With the kernels of all architectures."""
    code: Code | None
    pipeline: str
    """The file of its pipeline page; empty: it has none."""
    commands: list[str]


class _OpSection:
    """One comparison, the main case first."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.name = comparison.op
        self.anchor = _anchor(comparison.op)
        self.main = figures.main_case(comparison)
        self.sweeps = plots.sweeps(comparison)
        self.findings = sentences(comparison)
        self.failures = _reasons(comparison, _BAD)
        self.not_run = _reasons(comparison, ("unavailable",))
        self.cases: list[_CaseTable] = []
        self.details: list[_Detail] = []
        self._verdicts = {verdict.label: verdict for verdict in figures.verdicts(comparison)}
        self._impls = sources.implementations(comparison.op)
        for case in sorted(comparison.cases, key=lambda case: case is not self.main):
            narrowed, arch = lines.of_one_arch(comparison, case)
            every = lines.every(narrowed, comparison.code_sizes)
            self.cases.append(_CaseTable(narrowed, arch, every))
            known = {one.line.label for one in self.details}
            self.details += [
                self._detail(case, line, row)
                for line, row in zip(every, case.rows, strict=True)
                if row.label not in known
            ]

    def data(self, files: Sequence[Path]) -> Json:
        """What the page's script draws; a source file is its place among ``files``."""
        return {
            "cases": {shown.case.case: plots.of_case(shown.case, shown.lines) for shown in self.cases},
            "sweeps": self.sweeps,
            "sources": {
                one.line.label: {"files": [*map(files.index, one.code.files)], "lines": one.code.start}
                for one in self.details
                if one.code
            },
        }

    @property
    def where(self) -> str:
        machine = self.comparison.environment
        rows = self.main.rows if self.main else ()
        recorded = "".join(f"; times recorded on {origin}" for origin in lines.recorded_on(rows))
        return machine.device if machine.device_type == "cuda" else f"CPU: {machine.device}{recorded}"

    @property
    def recorded_on(self) -> list[str]:
        """Where and when the times were recorded that the figures draw hollow."""
        return lines.recorded_on(row for case in self.comparison.cases for row in case.rows)

    @property
    def verdict(self) -> str:
        """``17 of 17 correct``: rows that were checked anywhere, by their worst status."""
        checked = [v for v in self._verdicts.values() if v.cases or v.status in _BAD]
        correct = sum(v.status == "ok" for v in checked)
        return f"{correct} of {len(checked)} correct" if checked else "nothing checked"

    def best(self, way: str) -> Line | None:
        """The fastest correct row of a way on the main case."""
        own = [line for case in self.cases[:1] for line in case.lines if line.way == way]
        best = figures.fastest(line.row for line in own)
        return next((line for line in own if line.row is best), None)

    def status(self, line: Line) -> tuple[str, str]:
        """The word, and the share of the tolerance used or where else it was checked."""
        row, word = line.row, WORDS[line.row.status]
        if row.status == "unavailable" and figures.stands(row):
            return WORDS["ok"], "when recorded"
        if row.status == "ok" and row.agreement is None:  # checked on other cases, as without a GPU
            seen = self._verdicts.get(row.label)
            return (WORDS[seen.status], "elsewhere") if seen and seen.cases else ("not checked", "")
        return word, percent(line.used) if row.status == "ok" and line.used is not None else ""

    def _detail(self, case: CaseComparison, line: Line, row: Row) -> _Detail:
        label, op = registered_as(row.label), self.name
        impl = self._impls.get(row.label) or self._impls.get(label)
        code = sources.code(impl, row) if impl else None
        has_pipeline = way_of(row.label) in _COMPILED or row.label == "torch.compile"
        pipeline = f"{self.anchor}.{_anchor(label)}.html" if has_pipeline else ""
        # How to measure the row again, and how to write its pipeline page.
        only = ["--only", label]
        if impl and code and impl.user_file:
            only += ["--load", str(impl.user_file)]
        more = [
            word for name, value in row.configuration.parameters for word in ("--tune", f"{name}={value}")
        ]
        if row.configuration.model:
            only += ["--only", row.configuration.model]
            more.append("--matched")
        commands = [[op, "--case", case.case, *only, *more]]
        if pipeline:
            variant = label.partition(".")[2]
            others = (x for x in self._impls if x.partition(".")[2] == variant and way_of(x) in _COMPILED)
            beside = next((x for x in others if way_of(x) != way_of(label)), None)
            only += ["--only", beside] if beside and beside not in only else []
            commands.append(["pipeline", op, "--case", case.case, *only, "--html", pipeline])
        words = [shlex.join(["python", "-m", "compare", *command]) for command in commands]
        return _Detail(case, line, row, code, pipeline, words)


def _reasons(comparison: Comparison, statuses: Sequence[str]) -> list[tuple[str, str, str]]:
    """``(labels, cases, reason)`` of the rows of a status: equal reasons once."""
    entries = []
    for case in comparison.cases:
        for row in (row for row in case.rows if row.status in statuses):
            reason = row.reason or (row.agreement.reason if row.agreement else "") or "no reason is known"
            entries.append((f"{WORDS[row.status]}: {reason}", row.label, case.case))
    cases = grouped((reason, case) for reason, _, case in entries)
    return [
        (
            ", ".join(labels),
            "; ".join(cases[reason]) if len(cases[reason]) < 4 else f"{len(cases[reason])} cases",
            reason,
        )
        for reason, labels in grouped((reason, label) for reason, label, _ in entries).items()
    ]


# --------------------------------------------------------------------------- one figure


def _anchor(text: str) -> str:
    """A part of a fragment identifier, one for each text."""
    return re.sub(r"[^\w.-]", lambda match: f"~{ord(match[0]):x}~", text, flags=re.ASCII)


def _speedup(line: Line) -> tuple[str, float | None, str]:
    """Text, value and what is said beside it."""
    if line.us is not None and line.reference:
        return "1.00x", 1.0, "baseline"
    if line.us is None or line.terms or line.speedup is None:
        return NOTHING, None, "unequal terms" if line.us is not None and line.terms else ""
    ratio = line.speedup.median
    margin = max(line.speedup.high - ratio, ratio - line.speedup.low) / ratio
    note = "within noise" if line.same else f"(n={line.few})" if line.few else f"±{margin:.1%}"
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{number(ratio, 2)}x", ratio, note


def _share(value: float | None) -> str:
    """Whole percent, and one digit below."""
    return percent(value) if value is None or value >= 0.01 else f"{number(value * 100, 1)}%"


def _whole(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _takes(line: Line) -> str:
    """Of the kernel with the lowest occupancy, on the architecture that was timed."""
    if not line.kernels:
        return ""
    least = min(line.kernels, key=lambda kernel: (kernel.occupancy or 1.0, -kernel.registers))
    limited = f", limited by {least.limiter}" if least.limiter else ""
    smem, occupancy = f"{lines.shared_bytes(least):,} B smem", f"{percent(least.occupancy)} occupancy"
    return f"{least.registers} regs, {smem}, {occupancy}{limited}"


def _extent(dims: tuple[int, int, int] | None) -> str:
    """``4,096 x 2``: without the ones at the end."""
    return re.sub(r"( x 1)+$", "", " x ".join(f"{size:,}" for size in dims)) if dims else NOTHING


def _clocks(measured: Mapping[str, float | str]) -> dict[str, list[str]]:
    """By quantity: clocks, power and temperature, before and after."""
    clocks = []
    for name, value in measured.items():
        quantity, _, when = name.rpartition("_")
        clocks.append((quantity, f"{value:g} {when}" if isinstance(value, float) else f"{value} {when}"))
    return grouped(clocks)
