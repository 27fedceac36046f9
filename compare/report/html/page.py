"""Comparisons as one HTML page: the data that the template shows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from compare.model.op import WAYS, is_library, way_of
from compare.model.result import WRONG, CaseComparison, Comparison, KernelResources, Row
from compare.report import lines, tables
from compare.report.html import figures as plots
from compare.report.html import sources
from compare.report.html.figures import Json
from compare.report.html.sources import Code
from compare.report.lines import WORDS, Line, grouped
from compare.report.sentences import sentences
from compare.report.tables import NOTHING, number, percent, spread
from compare.timing import figures
from compare.tuning.matching import registered_as

_HERE = Path(__file__).parent
_BAD = (*WRONG, "failed")
_COMPILED = ("triton", "cuda")
"""Ways whose kernels the pipeline compiles with or without a GPU; of PyTorch's, torch.compile's."""


def check() -> None:
    """Find out before anything is run whether the page can be made.

    Raises:
        UsageError: what draws its figures is missing.
    """
    plots.package()


def dumps(comparisons: Sequence[Comparison]) -> str:
    """The page, whole: it needs no other file and no network.  Runs of one op stand there as one.

    Raises:
        UsageError: what draws its figures is missing.
    """
    store = _Store()
    ops = [_OpSection(comparison, store) for comparison in _by_op(comparisons)]
    data = {"ops": {op.anchor: {"cases": op.figures, "sweeps": op.sweeps, "sources": op.code} for op in ops}}
    own = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("specs.js", "page.js"))
    scripts = [_in_script(plots.library()), _in_script(own)]
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html.j2").render(
        ops=ops,
        files=store.files,
        css=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        data=Markup(_as_json(data)),
    )


def _by_op(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """One for each op, with the cases of all its runs, as a search for a crossover makes them."""
    found: dict[str, Comparison] = {}
    for run in comparisons:
        seen = found.get(run.op)
        found[run.op] = (
            run
            if seen is None
            else replace(
                seen,
                cases=(*seen.cases, *run.cases),
                code_sizes=seen.code_sizes | run.code_sizes,
                interrupted=seen.interrupted or run.interrupted,
            )
        )
    return list(found.values())


# --------------------------------------------------------------------------- scripts


def _in_script(text: str) -> Markup:
    """JavaScript that cannot end its element early; these signs stand in its strings only."""
    return Markup(re.sub(r"<(?=/script|!--)", r"\\x3c", text, flags=re.IGNORECASE))


def _hash(script: str) -> str:
    """Of a script that may run, as the Content-Security-Policy names it; no other runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _as_json(data: object) -> str:
    text = json.dumps(plots.rounded(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# --------------------------------------------------------------------------- what the template shows


class _Store:
    """Each source file once, however many rows rest on it."""

    def __init__(self) -> None:
        self.files: list[tuple[str, Markup]] = []
        self._numbers: dict[Path, int] = {}

    def number(self, path: Path) -> int:
        if path not in self._numbers:
            self._numbers[path] = len(self.files)
            self.files.append((sources.name(path), sources.highlighted(path)))
        return self._numbers[path]


@dataclass(frozen=True)
class Cell:
    """A figure, what it sorts by, and what is said beside it."""

    text: str
    value: float | str | None = None
    note: str = ""
    share: float | None = None
    """Drawn as a bar, 0 to 1."""


@dataclass(frozen=True)
class TableRow:
    """A row of the summary table."""

    label: str
    anchor: str
    way: str
    route: str
    kind: str
    """``bad``, ``best`` or empty."""
    cells: tuple[Cell, ...]


class _OpSection:
    """One comparison."""

    def __init__(self, comparison: Comparison, store: _Store) -> None:
        self.comparison = comparison
        self.name, self.signature = comparison.op, comparison.signature
        self.anchor = _anchor(comparison.op)
        self.main = figures.main_case(comparison)
        self._verdicts = {verdict.label: verdict for verdict in figures.verdicts(comparison)}
        self._impls = sources.implementations(comparison.op)
        self.cases: list[Json] = []
        self.figures: Json = {}
        self.details: list[Json] = []
        self.code: Json = {}
        seen: dict[str, Code | None] = {}
        for case in sorted(comparison.cases, key=lambda case: case is not self.main):
            narrowed, arch = lines.of_one_arch(comparison, case)
            every = lines.every(narrowed, comparison.code_sizes)
            best = figures.fastest(row for row in narrowed.rows if not is_library(row.label))
            shown = [self._row(line, line.row is best) for line in every]
            self.cases.append(
                {
                    "name": case.case,
                    "caption": _caption(case, arch if any(line.kernels for line in every) else ""),
                    "lines": shown,
                }
            )
            self.figures[case.case] = plots.of_case(narrowed, every)
            for row, line, table_row in zip(case.rows, every, shown, strict=True):
                if row.label in seen:
                    continue
                impl = self._impls.get(row.label) or self._impls.get(registered_as(row.label))
                code = seen[row.label] = sources.code(impl, row) if impl else None
                if code:
                    files = [store.number(path) for path in code.files]
                    self.code[row.label] = {"files": files, "lines": code.start}
                self.details.append(self._detail(case, row, line, table_row, code))
        self.sweeps = plots.sweeps(comparison)
        self.findings = sentences(comparison)
        self.failures = _reasons(comparison, _BAD)
        self.not_run = _reasons(comparison, ("unavailable",))
        self.environment = list(_environment(comparison))

    @property
    def baseline(self) -> str:
        return figures.baseline_of(self.main) if self.main else ""

    @property
    def where(self) -> str:
        machine = self.comparison.environment
        rows = self.main.rows if self.main else ()
        recorded = "".join(f"; times recorded on {said}" for said in lines.recorded_on(rows))
        return machine.device if machine.device_type == "cuda" else f"CPU: {machine.device}{recorded}"

    @property
    def verdict(self) -> str:
        """``17 of 17 correct``: rows that were checked anywhere, by their worst status."""
        found = [v for v in self._verdicts.values() if v.cases or v.status in _BAD]
        correct = sum(v.status == "ok" for v in found)
        return f"{correct} of {len(found)} correct" if found else "nothing checked"

    @property
    def best(self) -> dict[str, TableRow | None]:
        """The fastest correct row of each way on the main case."""
        shown = {line.label: line for line in self.cases[0]["lines"]} if self.cases else {}
        rows = self.main.rows if self.main else ()
        best = {way: figures.fastest(row for row in rows if way_of(row.label) == way) for way in WAYS}
        return {way: shown.get(row.label) if row else None for way, row in best.items()}

    # ------------------------------------------------------------------- the table

    def _row(self, line: Line, best: bool) -> TableRow:
        row, cold, first = line.row, line.timing.cold_us, line.timing.first_call_ms
        time, _, margin = spread(cold).partition(" ")
        return TableRow(
            row.label,
            f"{self.anchor}--{_anchor(row.label)}",
            line.way,
            line.route,
            "bad" if row.status in _BAD else "best" if best else "",
            (
                self._status(line),
                Cell(plots.grouped(time), line.us, margin),
                _speedup(line),
                Cell(_share(line.share), line.share, share=line.share and min(line.share, 1.0)),
                Cell(plots.grouped(number(line.launch_us)), line.launch_us),
                Cell(plots.grouped(number(first)), first),
                Cell(_whole(line.registers), line.registers),
                Cell(_whole(line.shared_bytes), line.shared_bytes),
                Cell(percent(line.occupancy), line.occupancy),
                Cell(_whole(line.lines), line.lines),
                Cell(_whole(line.tokens), line.tokens),
                Cell(row.level, row.level),
            ),
        )

    def _status(self, line: Line) -> Cell:
        row = line.row
        word, note = WORDS[row.status], ""
        if row.status == "ok" and row.agreement is None:  # checked on other cases, as without a GPU
            seen = self._verdicts.get(row.label)
            known = seen is not None and seen.cases > 0
            word, note = (WORDS[seen.status], "elsewhere") if seen and known else ("not checked", "")
        elif row.status == "ok" and line.used is not None:
            note = percent(line.used)
        return Cell(word, word, note)

    # ------------------------------------------------------------------- one implementation

    def _detail(
        self, case: CaseComparison, row: Row, line: Line, table_row: TableRow, code: Code | None
    ) -> Json:
        """Everything known of an implementation on the main case, or on the first that has it."""
        reasons = [row.reason, row.configuration.unmatched, line.timing.unverified, *line.timing.notes]
        if code and code.changed:
            reasons.append(
                "The source has changed since this was measured: the figures are of the older source."
            )
        if not code:
            reasons.append("The source is not on the machine that wrote this report.")
        pipeline = ""
        if way_of(row.label) in _COMPILED or row.label == "torch.compile":
            pipeline = f"{self.anchor}.{_anchor(registered_as(row.label))}.html"
        kernels = figures.kernels([row])
        return {
            "line": table_row,
            "level": row.level,
            "reasons": list(filter(None, reasons)),
            "takes": _takes(line) if case is self.main else case.case,
            "facts": [("case", case.case), *_measured(line), *_described(line)],
            "kernels": [_kernel(name, kernel) for _, name, by in kernels for kernel in by.values()],
            "commands": list(self._commands(case, row, code, pipeline)),
            "pipeline": pipeline,
            "has_source": code is not None,
        }

    def _commands(self, case: CaseComparison, row: Row, code: Code | None, pipeline: str) -> Iterator[str]:
        """How to measure the row again, and how to write its pipeline page."""
        label, op = registered_as(row.label), self.comparison.op
        only = ["--only", label]
        if code and code.implementation.user_file:
            only += ["--load", str(code.implementation.user_file)]
        more = [
            word for name, value in row.configuration.parameters for word in ("--tune", f"{name}={value}")
        ]
        if row.configuration.model:
            only += ["--only", row.configuration.model]
            more.append("--matched")
        yield shlex.join(["python", "-m", "compare", op, "--case", case.case, *only, *more])
        if pipeline:
            same = [other for other in self._impls if _variant(other) == _variant(label)]
            beside = next((x for x in same if way_of(x) in _COMPILED and way_of(x) != way_of(label)), None)
            only += ["--only", beside] if beside and beside not in only else []
            command = ["python", "-m", "compare", "pipeline", op, "--case", case.case, *only]
            yield shlex.join([*command, "--html", pipeline])


def _reasons(comparison: Comparison, statuses: Sequence[str]) -> list[tuple[str, str, str]]:
    """``(labels, cases, reason)`` of the rows of a status: equal reasons once."""
    said = []
    for case in comparison.cases:
        for row in (row for row in case.rows if row.status in statuses):
            reason = row.reason or (row.agreement.reason if row.agreement else "") or "no reason is known"
            said.append((f"{WORDS[row.status]}: {reason}", row.label, case.case))
    cases = grouped((reason, case) for reason, _, case in said)
    return [
        (
            ", ".join(labels),
            "; ".join(cases[reason]) if len(cases[reason]) < 4 else f"{len(cases[reason])} cases",
            reason,
        )
        for reason, labels in grouped((reason, label) for reason, label, _ in said).items()
    ]


def _caption(case: CaseComparison, arch: str) -> str:
    moved = f"{number(case.cost.bytes / 1e6)} MB moved"
    if case.cost.flops:
        moved += f", {number(case.cost.flops / 1e9)} GFLOP"
    parts = [moved]
    if ceilings := case.ceilings or next((row.ceilings for row in case.rows if row.ceilings), None):
        parts.append(f"Ceilings: copy {ceilings.copy_gbs:,.0f} GB/s, read {ceilings.read_gbs:,.0f} GB/s")
        if ceilings.product_tflops:
            parts[-1] += f", matmul {number(ceilings.product_tflops)} TFLOP/s"
        parts.append(f"Share of ceiling: of {figures.share_of(case)}")
    parts.append("Status: share of the tolerance used; elsewhere: checked on other cases only")
    parts.append(f"Speedup: over {figures.baseline_of(case)}")
    if recorded := lines.recorded_on(case.rows):
        parts.append(f"Recorded on {'; '.join(recorded)}")
    if arch:
        parts.append(f"Registers, shared memory, occupancy: {arch}")
    return f"{'. '.join(parts)}."


Facts = Iterator[tuple[str, str]]


def _measured(line: Line) -> Facts:
    """Errors, checks and times of a row."""
    if agreement := line.row.agreement:
        seeds = f"{agreement.seeds} seed{'s' if agreement.seeds != 1 else ''}"
        errors = f"max abs {tables.error(agreement.max_abs)}, max rel {tables.error(agreement.max_rel)}"
        yield "error", f"{errors}; {seeds}"
        failed = [finding for finding in agreement.findings if not finding.passed]
        yield "checks", f"{len(agreement.findings) - len(failed)} of {len(agreement.findings)} passed"
        yield from ((finding.name, finding.detail) for finding in failed)
    timing = line.timing
    named = {
        "GPU time, cold": timing.cold_us,
        "GPU time, warm": timing.warm_us,
        "CUDA graph replay": timing.graph_us,
        "launch overhead (host)": timing.launch_us,
        "burst": timing.burst_us,
        "sustained": timing.sustained_us,
    }
    for name, value in named.items():
        if value:
            yield name, f"{spread(value)} us, {len(value.samples)} samples"
    if timing.first_call_ms is not None:
        yield "first call", f"{number(timing.first_call_ms)} ms"
    if line.gbs is not None:
        share = percent(line.share_of_copy)
        yield "compulsory traffic", f"{number(line.gbs, 4)} GB/s, {share} of copy bandwidth"
    if line.tflops:
        share = f", {percent(line.share_of_product)} of peak (measured)"
        yield "arithmetic", f"{number(line.tflops)} TFLOP/s{share * (line.share_of_product is not None)}"


def _described(line: Line) -> Facts:
    """Where a row is from, what its code is, and how it was configured."""
    row, size = line.row, line.size
    if row.recorded:
        yield "recorded", str(row.recorded)
    if size:
        names = ("kernel", "launch", "helpers", "shared", "binding", "module")
        roles = ((name, getattr(size, name)) for name in names)
        said = [f"{name} {part.lines} / {part.tokens}" for name, part in roles if part.tokens]
        yield "code size, lines / tokens", ", ".join(said) or NOTHING
        lists = {
            "kernels of other cases, not counted": size.fallbacks,
            "concepts": size.concepts,
        }
        yield from ((name, ", ".join(words)) for name, words in lists.items() if words)
    yield "accumulator", row.accumulator
    if row.configuration.text:
        yield "configuration", row.configuration.text
    for tuning in row.configuration.tunings:
        of = f"{tuning.tried} of {len(tuning.space)} tried in {tuning.search_s:.3g} s"
        yield "tuned", f"{tuning.found}: {of}"


def _variant(label: str) -> str:
    return label.partition(".")[2]


# --------------------------------------------------------------------------- cells


def _anchor(text: str) -> str:
    """A part of a fragment identifier, one for each text."""
    return re.sub(r"[^\w.-]", lambda found: f"~{ord(found[0]):x}~", text, flags=re.ASCII)


def _speedup(line: Line) -> Cell:
    if line.us is None:
        return Cell(NOTHING)
    if line.reference:
        return Cell("1.00x", 1.0, "baseline")
    if line.terms:
        return Cell(NOTHING, note="unequal terms")
    if line.speedup is None:
        return Cell(NOTHING)
    ratio = line.speedup.median
    margin = max(line.speedup.high - ratio, ratio - line.speedup.low) / ratio
    note = "within noise" if line.same else f"(n={line.few})" if line.few else f"±{margin:.1%}"
    shown = f"{ratio:.2f}" if ratio >= 0.1 else number(ratio, 2)
    return Cell(f"{shown}x", ratio, note)


def _share(value: float | None) -> str:
    """Whole percent, and one digit below."""
    return percent(value) if value is None or value >= 0.01 else f"{number(value * 100, 1)}%"


def _whole(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _kernel(name: str, kernel: KernelResources) -> tuple[str, ...]:
    return (
        name,
        kernel.arch,
        str(kernel.registers),
        f"{kernel.static_shared_bytes:,}",
        f"{kernel.dynamic_shared_bytes:,}",
        _whole(kernel.spilled_bytes),
        _whole(kernel.code_bytes),
        _extent(kernel.block),
        _extent(kernel.grid),
        str(kernel.launches),
        percent(kernel.occupancy),
        kernel.limiter or NOTHING,
        kernel.instruction or NOTHING,
    )


def _takes(line: Line) -> str:
    """Of the kernel with the lowest occupancy, on the architecture that was timed."""
    if not line.kernels:
        return ""
    least = min(line.kernels, key=lambda kernel: (kernel.occupancy or 1.0, -kernel.registers))
    limited = f", limited by {least.limiter}" if least.limiter else ""
    smem, occupancy = f"{lines.shared_bytes(least):,} B smem", f"{percent(least.occupancy)} occupancy"
    return f"{least.registers} regs, {smem}, {occupancy}{limited}"


def _extent(dims: tuple[int, int, int] | None) -> str:
    if dims is None:
        return NOTHING
    while len(dims) > 1 and dims[-1] == 1:
        dims = dims[:-1]  # type: ignore[assignment]
    return " x ".join(f"{size:,}" for size in dims)


def _environment(comparison: Comparison) -> Iterator[tuple[str, str]]:
    machine = comparison.environment
    yield "device", machine.device + (f" ({machine.arch})" if machine.arch else "")
    if machine.multiprocessors:
        yield "multiprocessors", str(machine.multiprocessors)
    yield "memory", f"{machine.memory_bytes / 1e9:.1f} GB"
    if machine.l2_bytes:
        yield "L2 cache", f"{machine.l2_bytes / 2**20:.0f} MiB"
    if machine.driver:
        yield "driver", machine.driver
    yield from machine.versions.items()
    yield "host", machine.host
    clocks: dict[str, list[str]] = {}
    for name, value in machine.clocks.items():
        quantity, when = re.fullmatch(r"(.*?)_?(before|after|)", name).groups()  # type: ignore[union-attr]
        shown = f"{value:g}" if isinstance(value, float) else value
        clocks.setdefault(quantity, []).append(f"{shown} {when}".strip())
    for quantity, values in clocks.items():
        yield _CLOCKS.get(quantity, quantity), ", ".join(values)
    yield "created", comparison.created
    yield "seed", str(comparison.seed)
    if apart := tables.told_apart(comparison):
        yield "noise", apart


_CLOCKS = {
    "sm_mhz": "SM clock, MHz",
    "memory_mhz": "memory clock, MHz",
    "power_w": "power, W",
    "power_limit_w": "power limit, W",
    "temperature_c": "temperature, C",
}
