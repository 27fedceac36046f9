"""What a page of docs/ops/ says of an optimisation level: excerpts of its sources, its changes, its gain."""

from __future__ import annotations

import difflib
import functools
import re
import shlex
from collections.abc import Callable
from itertools import pairwise

from compare import registry
from compare.code_size.cpp import unit_of
from compare.code_size.sources import KERNELS
from compare.records.archive import changed_since
from compare.registry import ROOT
from compare.report import markdown, tables
from compare.report.tables import NOTHING, Table
from compare.spec import CaseComparison, Comparison, Op, Row, UsageError
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
    return f"{place}\n\n```{_LANGUAGES[(ROOT / path).suffix]}\n{code}\n```"


def step(words: str) -> str:
    """``FILE_A FILE_B`` or ``OP VARIANT_A VARIANT_B``: a folded diff of two levels' code.

    Of files it is without their headers, of variants of the kernels alone.

    Raises:
        UsageError: there are no such files or kernels.
    """
    usage = f"<!-- generated: step {words} -->"
    given = words.split()
    if len(given) == 3:
        op, *names = given
        codes = [_kernel(usage, op, name) for name in names]
    elif len(given) == 2:
        for path in given:
            if not (ROOT / path).is_file():
                raise UsageError(f"{usage}: there is no {path}")
        names = [path.rpartition("/")[2] for path in given]
        codes = [_body(path) for path in given]
    else:
        raise UsageError(f"{usage}: write two files, or an op and two variants")
    before, after = codes
    _, _, *lines = difflib.unified_diff(before, after, lineterm="")
    added, removed = (sum(line[0] == sign and line[1:].strip() != "" for line in lines) for sign in "+-")
    one, other = (f"<code>{name}</code>" for name in names)
    summary = f"<summary>{one} to {other}: {added} lines added, {removed} removed</summary>"
    return "\n".join(("<details>", summary, "", "```diff", *lines, "```", "", "</details>"))


def _kernel(usage: str, op: str, variant: str) -> list[str]:
    """The lines of a variant's kernel function."""
    name = f"{op}_{variant}_kernel"
    if not (KERNELS / f"{op}.cuh").is_file() or name not in (named := unit_of(op).named):
        raise UsageError(f"{usage}: there is no {name}")
    return [line for piece in named[name] for line in piece.text.splitlines()]


def _body(path: str) -> list[str]:
    """A C++ file's lines below its header and its includes."""
    lines = _lines(path)
    last = max(i for i, line in enumerate(lines) if line.startswith(("#pragma once", "#include")))
    return lines[last + 2 :]


def gain(words: str, recorded: Callable[[Op], Comparison | None]) -> str:
    """``OP WHICH [CASE]``: times of a variant in every way, or of all of a way's, beside the level before.

    Raises:
        UsageError: there is no such op, variant, way or case.
    """
    usage = f"<!-- generated: gain {words} -->"
    op, which, case = (*words.split(), "", "")[:3]
    comparison = recorded(registry.get_op(op))
    case = case or str(registry.get_op(op).cases.default)
    labels = [impl.label for impl in registry.implementations(op) if impl.route != "pybind"]
    chosen = [label for label in labels if which in label.split(".")]
    if not chosen:
        raise UsageError(f"{usage}: {op} has no variant and no way {which!r}")
    if case not in map(str, (registry.get_op(op).cases.default, *registry.get_op(op).cases.sweep)):
        raise UsageError(f"{usage}: {op} is not timed on {case!r}")
    found = next((one for one in comparison.cases if one.case == case), None) if comparison else None
    if comparison is None or found is None:
        return f"Nothing is recorded yet of {case}."
    timed = {row.label: row for row in found.rows if row.timing and row.timing.cold_us}
    before: dict[str, str] = {}
    for one, other in pairwise(label for label in labels if label in timed):
        if one.split(".")[0] == other.split(".")[0]:
            before[other] = one
    baseline = figures.baseline_of(found)
    rows = [
        _cells(found, timed[label], timed.get(before.get(label, "")), timed.get(baseline))
        for label in chosen
        if label in timed
    ]
    headers = ("implementation", "cold µs", f"% of {figures.share_of(found)}", f"speedup vs {baseline}")
    title = f"Measured on {case}, {comparison.environment.device}"
    shown = Table(title, (*headers, "speedup vs the level before"), tuple(rows))
    return markdown.table(shown) if rows else f"Not timed on {case}."


def _cells(case: CaseComparison, row: Row, before: Row | None, baseline: Row | None) -> tuple[str, ...]:
    name = figures.represented(case, row)[0] + (" *" if changed_since(row) else "")
    gained = f"{tables.lead(row, before)} vs {before.label.partition('.')[2]}" if before else NOTHING
    cold = tables.spread(row.timing.cold_us if row.timing else None)
    lead = tables.lead(row, baseline) if baseline and baseline is not row else "1"
    return name, cold, tables.percent(figures.share(case, row)), lead, gained
