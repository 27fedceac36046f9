"""Comparisons as Markdown: the same tables as on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tabulate

from compare.model.result import Comparison
from compare.report import tables, tune
from compare.report.sentences import sentences
from compare.report.summary import correct
from compare.report.tables import Table
from compare.timing import figures

tabulate.MIN_PADDING = 0  # else every header is set two wider than it is


def dumps(comparisons: Sequence[Comparison]) -> str:
    """A document: a section for each comparison."""
    return document(map(section, comparisons))


def document(parts: Iterable[str]) -> str:
    """Paragraphs as a document, in which a name from a file is no HTML."""
    return "\n\n".join(parts).replace("<", "&lt;") + "\n"


def section(comparison: Comparison) -> str:
    """Everything the screen shows, with a heading."""
    parts = [f"## {comparison.op}: `{comparison.signature}`", source(comparison)]
    if figures.timed_cases(comparison):
        parts += filter(None, [tables.told_apart(comparison)])
    if comparison.interrupted:
        parts.append("**Interrupted**: what follows is what was finished by then.")
    parts.append(f"Correct: {correct(comparison)}.")
    agreement = tables.agreement(comparison)
    timed = figures.timed_cases(comparison)
    shown = [
        agreement,
        *map(tables.speed, timed),
        *map(tables.side_by_side, timed),
        *map(tables.endurance, timed),
        *map(tables.configurations, timed or comparison.cases),
    ]
    if len(timed) > 1:
        shown.append(tables.sweep(timed))
    shown += map(tune.table, comparison.cases)
    code = tables.code(comparison)
    shown += [*map(tables.resources, comparison.cases), code]
    parts += [table(entry) for entry in shown if entry]
    parts += code.legend if code else ()
    parts += [
        f"{case.case}: {line}"
        for case in timed or comparison.cases
        if (entry := tables.configurations(case))
        for line in entry.legend[1:]
    ]
    parts += [f"{case.case}: {line}" for case in timed if (line := tables.card(case))]
    parts += [f"- {labels}: {words}" for labels, words in tables.concepts(comparison)]
    parts += [f"- {labels}: {reason}" for labels, reason in tables.reasons(comparison)]
    parts += sentences(comparison)
    return "\n\n".join(parts)


def source(comparison: Comparison) -> str:
    """Where, when and with what the figures came about."""
    environment = comparison.environment
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    return f"{environment.device}, {comparison.created}, seed {comparison.seed}; {versions}."


def table(entry: Table) -> str:
    """A title in bold, and a pipe table."""
    text = {0, *(i for i, header in enumerate(entry.headers) if header in entry.text_columns)}
    pipes: str = tabulate.tabulate(
        [[_safe(cell) for cell in row] for row in entry.rows],
        headers=[_safe(header.replace(".\n", ".").replace("\n", " ")) for header in entry.headers],
        tablefmt="pipe",
        disable_numparse=True,
        colalign=["left" if i in text else "right" for i in range(len(entry.headers))]
        if entry.rows
        else None,
    )
    return f"**{entry.title}**\n\n{pipes}"


def _safe(cell: str) -> str:
    return cell.replace("|", "\\|")
