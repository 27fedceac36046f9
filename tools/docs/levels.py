"""What a page of docs/ops/ says of an optimisation level: excerpts of its sources, and its gain."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from itertools import pairwise

from compare import registry
from compare.history.recorded import case_of
from compare.model.op import Op, UsageError
from compare.model.result import CaseComparison, Comparison, Row
from compare.records.archive import changed_since
from compare.registry import ROOT
from compare.report import markdown, tables
from compare.report.tables import NOTHING, Table
from compare.timing import figures

_LANGUAGES = {".py": "python", ".cuh": "cuda", ".cu": "cuda"}
_PAGES = "../../"
"""From docs/ops/ to the root."""


@functools.cache
def _lines(path: str) -> list[str]:
    return (ROOT / path).read_text().splitlines()


def excerpt(words: str) -> str:
    """``FILE TEXT... +LINES``: from the line of the last text, each looked for after the one before it.

    Raises:
        UsageError: no such file, or a text is not in it, or it has too few lines.
    """
    usage = f"<!-- generated: excerpt {words} -->"
    parts = re.fullmatch(r"(\S+) (.+) \+(\d+)", words)
    if parts is None:
        raise UsageError(f"{usage}: write a file, texts to find in it and +LINES")
    path, texts = parts[1], shlex.split(parts[2])
    if not (ROOT / path).is_file():
        raise UsageError(f"{usage}: there is no {path}")
    lines, first = _lines(path), -1
    for text in texts:
        first = next((i for i in range(first + 1, len(lines)) if text in lines[i]), -1)
        if first < 0:
            raise UsageError(f"{usage}: {text!r} is not in {path}, or not after the texts before it")
    last = first + int(parts[3])
    if last > len(lines):
        raise UsageError(f"{usage}: {path} ends at line {len(lines)}")
    shown = lines[first:last]
    indents = [len(line) - len(line.lstrip()) for line in shown if line.strip() and line[0] != "#"]
    code = "\n".join(line[0 if line.startswith("#") else min(indents) :] for line in shown)
    place = f"[`{path}`]({_PAGES}{path}#L{first + 1}-L{last}), lines {first + 1} to {last}:"
    return f"{place}\n```{_LANGUAGES[(ROOT / path).suffix]}\n{code}\n```"


def gain(words: str, recorded: Callable[[Op], Comparison | None]) -> str:
    """``OP``: the time of every level on the default case, and its speedup over the level before.

    Raises:
        UsageError: there is no such op.
    """
    op = registry.get_op(words)
    comparison, case = recorded(op), str(op.cases.default)
    found = case_of(comparison, case)
    if comparison is None or found is None:
        return f"Nothing is recorded yet of {case}."
    labels = [impl.label for impl in registry.implementations(op.name) if impl.route != "pybind"]
    timed = {row.label: row for row in found.rows if row.timing and row.timing.cold_us}
    before: dict[str, str] = {}
    for one, other in pairwise(label for label in labels if label in timed):
        if one.split(".")[0] == other.split(".")[0]:
            before[other] = one
    baseline = figures.baseline_of(found)
    rows = [
        _cells(found, timed[label], timed.get(before.get(label, "")), timed.get(baseline))
        for label in labels
        if label in timed
    ]
    headers = ("implementation", "cold µs", f"% of {figures.share_of(found)}", f"speedup vs {baseline}")
    title = f"Measured on {case}, {comparison.environment.device}"
    shown = Table(title, (*headers, "speedup vs the level before"), tuple(rows))
    return markdown.table(shown)


def _cells(case: CaseComparison, row: Row, before: Row | None, baseline: Row | None) -> tuple[str, ...]:
    name = figures.represented(case, row)[0] + (" *" if changed_since(row) else "")
    gained = f"{tables.lead(row, before)} vs {before.label.partition('.')[2]}" if before else NOTHING
    cold = tables.spread(row.timing.cold_us if row.timing else None)
    lead = tables.lead(row, baseline) if baseline and baseline is not row else "1"
    return name, cold, tables.percent(figures.share(case, row)), lead, gained
