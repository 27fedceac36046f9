"""Comparisons as one HTML page: the data that the template shows."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from compare.records import archive
from compare.report import tables
from compare.report.html import figures as plots
from compare.report.html import sources
from compare.report.html.sources import Code
from compare.report.html.specs import SPECS
from compare.report.sentences import sentences
from compare.report.tables import NOTHING, number, percent, spread
from compare.spec import WAYS, WRONG, CaseComparison, Comparison, KernelResources, Row, is_yardstick, way_of
from compare.timing import figures
from compare.tuning.matching import registered_as

_HERE = Path(__file__).parent
_STATUS = {
    "ok": "correct",
    "disagrees": "wrong",
    "impossible": "impossible",
    "failed": "failed",
    "unavailable": "not run",
}
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
    ops = [_Op(comparison, store) for comparison in _by_op(comparisons)]
    data = {
        "specs": SPECS,
        "ops": {op.anchor: {"cases": op.figures, "sweeps": op.sweeps, "sources": op.code} for op in ops},
    }
    scripts = [_in_script(plots.library()), _in_script((_HERE / "page.js").read_text(encoding="utf-8"))]
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
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
class Line:
    """A row of the summary table."""

    label: str
    anchor: str
    way: str
    route: str
    kind: str
    """``bad``, ``best`` or empty."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Case:
    """One case: its table, and its place in the data of the figures."""

    name: str
    caption: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Detail:
    """One implementation: everything known of it on the main case."""

    line: Line
    level: str
    reasons: tuple[str, ...]
    takes: str
    """``32 regs, 64 B smem, 100% occupancy, limited by threads``; or another case's name."""
    facts: tuple[tuple[str, str], ...]
    kernels: tuple[tuple[str, ...], ...]
    commands: tuple[str, ...]
    """Measure it again and, where its kernels can be compiled here, write its pipeline page."""
    pipeline: str
    """The file that the second command writes."""
    has_source: bool


class _Op:
    """One comparison."""

    def __init__(self, comparison: Comparison, store: _Store) -> None:
        self.comparison = comparison
        self.name, self.signature = comparison.op, comparison.signature
        self.anchor = _anchor(comparison.op)
        self.main = figures.main_case(comparison)
        self._verdicts = {verdict.label: verdict for verdict in figures.verdicts(comparison)}
        self._impls = sources.implementations(comparison.op)
        ordered = sorted(comparison.cases, key=lambda case: case is not self.main)
        self.cases = [self._case(case) for case in ordered]
        self.figures = {case.case: plots.of_case(comparison, case) for case in ordered}
        self.sweeps = plots.sweeps(comparison)
        rows: dict[str, tuple[CaseComparison, Row]] = {}
        for case in ordered:
            for row in case.rows:
                rows.setdefault(row.label, (case, row))
        codes = {
            label: sources.code(impl, row)
            for label, (_, row) in rows.items()
            if (impl := self._impls.get(label) or self._impls.get(registered_as(label)))
        }
        self.code = {label: _numbered(code, store) for label, code in codes.items() if code}
        self.details = [self._detail(case, row, codes.get(row.label)) for case, row in rows.values()]
        self.findings = sentences(comparison)
        self.failures = list(self._reasons(lambda row: row.status in _BAD))
        self.not_run = list(self._reasons(lambda row: row.status == "unavailable"))
        self.environment = list(_environment(comparison))

    @property
    def baseline(self) -> str:
        return figures.baseline_of(self.main) if self.main else ""

    @property
    def where(self) -> str:
        machine = self.comparison.environment
        recorded = "".join(f"; times recorded on {said}" for said in _recorded(self.main))
        return machine.device if machine.device_type == "cuda" else f"CPU: {machine.device}{recorded}"

    @property
    def verdict(self) -> str:
        """``17 of 17 correct``: rows that were checked anywhere, by their worst status."""
        found = [v for v in self._verdicts.values() if v.cases or v.status in _BAD]
        correct = sum(v.status == "ok" for v in found)
        return f"{correct} of {len(found)} correct" if found else "nothing checked"

    @property
    def best(self) -> dict[str, Line | None]:
        """The fastest correct row of each way on the main case."""
        lines = {line.label: line for line in self.cases[0].lines} if self.cases else {}
        found = {}
        for way in WAYS:
            row = figures.fastest(
                row for row in (self.main.rows if self.main else ()) if way_of(row.label) == way
            )
            found[way] = lines.get(row.label) if row else None
        return found

    def _reasons(self, wanted: Callable[[Row], bool]) -> Iterator[tuple[str, str, str]]:
        """``(labels, cases, reason)``: equal reasons once."""
        groups: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
        for case in self.comparison.cases:
            for row in filter(wanted, case.rows):
                reason = row.reason or (row.agreement.reason if row.agreement else "") or "no reason is known"
                labels, cases = groups.setdefault(f"{_STATUS[row.status]}: {reason}", ({}, {}))
                labels[row.label] = cases[case.case] = None
        for reason, (labels, cases) in groups.items():
            shown = list(cases)
            yield ", ".join(labels), "; ".join(shown) if len(shown) < 4 else f"{len(shown)} cases", reason

    # ------------------------------------------------------------------- the table

    def _case(self, case: CaseComparison) -> Case:
        moved = f"{number(case.cost.bytes / 1e6)} MB moved"
        if case.cost.flops:
            moved += f", {number(case.cost.flops / 1e9)} GFLOP"
        ceilings = case.ceilings or next((row.ceilings for row in case.rows if row.ceilings), None)
        parts = [moved]
        if ceilings:
            parts.append(f"Ceilings: copy {ceilings.copy_gbs:,.0f} GB/s, read {ceilings.read_gbs:,.0f} GB/s")
            if ceilings.product_tflops:
                parts[-1] += f", matmul {number(ceilings.product_tflops)} TFLOP/s"
            parts.append(f"Share of ceiling: of {figures.share_of(case)}")
        parts.append("Status: share of the tolerance used; elsewhere: checked on other cases only")
        parts.append(f"Speedup: over {figures.baseline_of(case)}")
        if recorded := _recorded(case):
            parts.append(f"Recorded on {'; '.join(recorded)}")
        best = figures.fastest(row for row in case.rows if not is_yardstick(row.label))
        arch = self._arch(case)
        if arch:
            parts.append(f"Registers, shared memory, occupancy: {arch}")
        return Case(
            case.case,
            f"{'. '.join(parts)}.",
            tuple(self._line(case, row, arch, row is best) for row in case.rows),
        )

    def _line(self, case: CaseComparison, row: Row, arch: str, best: bool = False) -> Line:
        timing = row.timing
        share = figures.share(case, row)
        size = self.comparison.code_sizes.get(row.label)
        kernels = [by_arch[arch] for _, _, by_arch in figures.kernels([row]) if arch in by_arch]
        registers = max((kernel.registers for kernel in kernels), default=None)
        shared = max((_shared(kernel) for kernel in kernels), default=None)
        occupancy = min((k.occupancy for k in kernels if k.occupancy is not None), default=None)
        launch = timing.launch_us.median if timing and timing.launch_us else None
        first = timing.first_call_ms if timing else None
        cold = timing.cold_us if timing else None
        return Line(
            row.label,
            f"{self.anchor}--{_anchor(row.label)}",
            way_of(row.label) if not is_yardstick(row.label) else "library",
            row.label.partition(".")[0],
            "bad" if row.status in _BAD else "best" if best else "",
            (
                self._status(row),
                _with_note(spread(cold), cold.median if cold else None),
                _speedup(case, row),
                Cell(_share(share), share, share=None if share is None else min(share, 1.0)),
                Cell(plots.grouped(number(launch)), launch),
                Cell(plots.grouped(number(first)), first),
                Cell(_whole(registers), registers),
                Cell(_whole(shared), shared),
                Cell(percent(occupancy), occupancy),
                Cell(_whole(size.lines if size else None), size.lines if size else None),
                Cell(_whole(size.tokens if size else None), size.tokens if size else None),
                Cell(row.level, row.level),
            ),
        )

    def _status(self, row: Row) -> Cell:
        word = _STATUS[row.status]
        if row.status == "ok" and row.agreement is None:  # checked on other cases, as without a GPU
            seen = self._verdicts.get(row.label)
            word = _STATUS[seen.status] if seen and seen.cases else "not checked"
            return Cell(word, word, "elsewhere" if seen and seen.cases else "")
        if row.status != "ok" or row.agreement is None or row.agreement.limit <= 0:
            return Cell(word, word)
        return Cell(word, word, percent(row.agreement.error / row.agreement.limit))

    def _arch(self, case: CaseComparison) -> str:
        """The architecture whose kernels stand beside the times: the one that these are of; empty: none."""
        archs = tables.archs_of(figures.kernels(case.rows))
        environment = self.comparison.environment
        timed_on = environment.arch if environment.device_type == "cuda" else None
        replayed = next((row.replayed.partition(",")[0] for row in case.rows if row.replayed), "")
        if timed_on is None and replayed:
            timed_on = self._recorded_archs.get(replayed)
        elif timed_on is None:
            timed_on = archs[-1] if archs else None
        timed_on = (timed_on or "").rstrip("af")
        return timed_on if timed_on in archs else ""

    @functools.cached_property
    def _recorded_archs(self) -> dict[str, str | None]:
        """By device, that of its records."""
        runs = [run.environment for run in archive.runs_of(self.comparison.op)]
        return {machine.device: machine.arch for machine in runs}

    # ------------------------------------------------------------------- one implementation

    def _detail(self, case: CaseComparison, row: Row, code: Code | None) -> Detail:
        notes = (row.timing.unverified, *row.timing.notes) if row.timing else ()
        reasons = [row.reason, row.unmatched, *notes]
        if code and code.changed:
            reasons.append(
                "The source has changed since this was measured: the figures are of the older source."
            )
        if not code:
            reasons.append("The source is not on the machine that wrote this report.")
        pipeline = ""
        if way_of(row.label) in _COMPILED or row.label == "torch.compile":
            pipeline = f"{self.anchor}.{_anchor(registered_as(row.label))}.html"
        return Detail(
            self._line(case, row, self._arch(case)),
            row.level,
            tuple(filter(None, reasons)),
            _takes(row, self._arch(case)) if case is self.main else case.case,
            tuple(self._facts(case, row)),
            tuple(_kernel(name, kernel) for _, name, by in figures.kernels([row]) for kernel in by.values()),
            tuple(self._commands(case, row, code, pipeline)),
            pipeline,
            code is not None,
        )

    def _facts(self, case: CaseComparison, row: Row) -> Iterator[tuple[str, str]]:
        yield "case", case.case
        if row.agreement:
            agreement = row.agreement
            yield (
                "error",
                f"max abs {tables.error(agreement.max_abs)}, max rel {tables.error(agreement.max_rel)}; "
                f"{agreement.seeds} seed{'s' if agreement.seeds != 1 else ''}",
            )
            failed = [finding for finding in agreement.findings if not finding.passed]
            yield "checks", f"{len(agreement.findings) - len(failed)} of {len(agreement.findings)} passed"
            for finding in failed:
                yield finding.name, finding.detail
        if row.timing:
            timing = row.timing
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
            yield from self._rates(case, row)
        if row.replayed:
            yield "recorded", row.replayed
        size = self.comparison.code_sizes.get(row.label)
        if size:
            names = ("kernel", "launch", "helpers", "shared", "binding", "module")
            roles = ((name, getattr(size, name)) for name in names)
            said = [f"{name} {part.lines} / {part.tokens}" for name, part in roles if part.tokens]
            yield "code size, lines / tokens", ", ".join(said) or NOTHING
            if size.fallbacks:
                yield "kernels of other cases, not counted", ", ".join(size.fallbacks)
            if size.concepts:
                yield "concepts", ", ".join(size.concepts)
        yield "accumulator", row.accumulator
        if row.configuration:
            yield "configuration", row.configuration
        for tuning in row.tunings:
            yield (
                "tuned",
                f"{tuning.found}: {tuning.tried} of {len(tuning.space)} tried in {tuning.search_s:.3g} s",
            )

    def _rates(self, case: CaseComparison, row: Row) -> Iterator[tuple[str, str]]:
        gbs, tflops = figures.gbs(case, row), figures.tflops(case, row)
        if gbs is not None:
            share = figures.share_of_copy(case, row)
            yield "compulsory traffic", f"{number(gbs, 4)} GB/s, {percent(share)} of copy bandwidth"
        if tflops:
            share = figures.share_of_product(case, row)
            of = f", {percent(share)} of peak (measured)" if share is not None else ""
            yield "arithmetic", f"{number(tflops)} TFLOP/s{of}"

    def _commands(self, case: CaseComparison, row: Row, code: Code | None, pipeline: str) -> Iterator[str]:
        """How to measure the row again, and how to write its pipeline page."""
        label, op = registered_as(row.label), self.comparison.op
        only = ["--only", label]
        if code and code.implementation.foreign:
            only += ["--load", code.implementation.origin]
        more = [word for name, value in row.parameters for word in ("--tune", f"{name}={value}")]
        if row.model:
            only += ["--only", row.model]
            more.append("--matched")
        yield shlex.join(["python", "-m", "compare", op, "--case", case.case, *only, *more])
        if pipeline:
            same = [other for other in self._impls if _variant(other) == _variant(label)]
            beside = next((x for x in same if way_of(x) in _COMPILED and way_of(x) != way_of(label)), None)
            only += ["--only", beside] if beside and beside not in only else []
            command = ["python", "-m", "compare", "pipeline", op, "--case", case.case, *only]
            yield shlex.join([*command, "--html", pipeline])


def _recorded(case: CaseComparison | None) -> list[str]:
    """Devices and dates of a case's recorded times."""
    rows = case.rows if case else ()
    said = (row.replayed.removesuffix(f", {archive.CHANGED}") for row in rows if row.replayed)
    return list(dict.fromkeys(said))


def _variant(label: str) -> str:
    return label.partition(".")[2]


# --------------------------------------------------------------------------- cells


def _anchor(text: str) -> str:
    """A part of a fragment identifier, one for each text."""
    return re.sub(r"[^\w.-]", lambda found: f"~{ord(found[0]):x}~", text, flags=re.ASCII)


def _with_note(text: str, value: float | None) -> Cell:
    """``47.6 ±0.2`` as a figure and a note."""
    figure, _, note = text.partition(" ")
    return Cell(plots.grouped(figure), value, note)


def _speedup(case: CaseComparison, row: Row) -> Cell:
    baseline = figures.baseline_of(case)
    reference = figures.row_of(case, baseline)
    if reference is None or not (row.timing and row.timing.cold_us and reference.timing):
        return Cell(NOTHING)
    if row is reference:
        return Cell("1.00x", 1.0, "baseline")
    if row.accumulator != reference.accumulator:
        return Cell(NOTHING, note="unequal terms")
    found = figures.ratio(row, reference)
    if found is None:
        return Cell(NOTHING)
    note = "" if figures.differs(row, reference) or figures.few(row, reference) else "within noise"
    shown = f"{found.median:.2f}" if found.median >= 0.1 else number(found.median, 2)
    margin = max(found.high - found.median, found.median - found.low) / found.median
    few = figures.few(row, reference)
    return Cell(f"{shown}x", found.median, note or (f"(n={few})" if few else f"±{margin:.1%}"))


def _share(value: float | None) -> str:
    """Whole percent, and one digit below."""
    return percent(value) if value is None or value >= 0.01 else f"{number(value * 100, 1)}%"


def _whole(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _shared(kernel: KernelResources) -> int:
    return kernel.static_shared_bytes + kernel.dynamic_shared_bytes


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


def _takes(row: Row, arch: str) -> str:
    """Of the kernel with the lowest occupancy, on the architecture that was timed."""
    kernels = [by_arch[arch] for _, _, by_arch in figures.kernels([row]) if arch in by_arch]
    if not kernels:
        return ""
    least = min(kernels, key=lambda kernel: (kernel.occupancy or 1.0, -kernel.registers))
    limited = f", limited by {least.limiter}" if least.limiter else ""
    occupancy = percent(least.occupancy)
    return f"{least.registers} regs, {_shared(least):,} B smem, {occupancy} occupancy{limited}"


def _extent(dims: tuple[int, int, int] | None) -> str:
    if dims is None:
        return NOTHING
    while len(dims) > 1 and dims[-1] == 1:
        dims = dims[:-1]  # type: ignore[assignment]
    return " x ".join(f"{size:,}" for size in dims)


def _numbered(code: Code, store: _Store) -> dict[str, Any]:
    return {"files": [store.number(path) for path in code.files], "lines": code.start}


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
