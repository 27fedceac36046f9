"""Comparisons as Markdown: the same tables as on the screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import tabulate

from compare.model.result import Comparison
from compare.report import summary, tables
from compare.report.sentences import sentences
from compare.report.tables import Block, Table
from compare.timing import figures

tabulate.MIN_PADDING = 0  # else every header is set two wider than it is


def dumps(comparisons: Sequence[Comparison]) -> str:
    """A document: a section for each comparison."""
    return document(map(section, comparisons))


def document(blocks: Iterable[Block]) -> str:
    """Tables and paragraphs as a document, in which a name from a file is no HTML."""
    return "\n\n".join(map(_block, blocks)).replace("<", "&lt;") + "\n"


def section(comparison: Comparison) -> str:
    """Everything the screen shows, with a heading."""
    environment = comparison.environment
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    blocks = [
        f"## {comparison.op}: `{comparison.signature}`",
        f"{environment.device}, {comparison.created}, seed {comparison.seed}; {versions}.",
        tables.told_apart(comparison) if figures.timed_cases(comparison) else "",
        "**Interrupted**: what follows is what was finished by then." if comparison.interrupted else "",
        f"Correct: {summary.correct(comparison)}.",
        *tables.details(comparison, every=True),
        *sentences(comparison),
    ]
    return "\n\n".join(_block(block) for block in blocks if block)


def _block(block: Block) -> str:
    """Lines that are set in are the items of a list."""
    return table(block) if isinstance(block, Table) else re.sub(r"(?m)^  (?=\S)", "- ", block)


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
