"""Text of a width: tables, set by `rich`, and paragraphs."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from compare.report.tables import Block, Table

PROSE_WIDTH = 100
UNLIMITED = 100_000
"""The width of a pipe, unless COLUMNS says another."""
_GAP = 2


@dataclass(frozen=True)
class Column:
    """Cells below a header, which may hold line breaks."""

    header: str
    cells: tuple[str, ...]
    left: bool = False
    """Set flush left."""

    @property
    def width(self) -> int:
        return max(len(line) for text in (self.header, *self.cells) for line in text.split("\n"))

    def within(self, width: int) -> Column:
        """Text in lines no longer than ``width``, words whole."""
        return (
            replace(self, cells=tuple(paragraph(cell, width) for cell in self.cells)) if self.left else self
        )


def grid(columns: Sequence[Column], gap: int, *, ruled: bool = False) -> list[str]:
    """The lines of a table: ``gap`` blanks between columns, and a rule below its headers if ``ruled``."""
    table = rich_table.Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(Text(column.header), justify="left" if column.left else "right", no_wrap=True)
    if ruled:
        table.add_row(*("-" * column.width for column in columns))
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, cells))
    console = Console(file=io.StringIO(), width=UNLIMITED, color_system=None)
    with console.capture() as text:
        console.print(table)
    return [line.rstrip() for line in text.get().split("\n")[:-1]]


def parts(columns: Sequence[Column], width: int, gap: int) -> list[list[Column]]:
    """As many tables as it takes to fit, each with the first column."""
    first, *rest = columns
    tables: list[list[Column]] = []
    room = 0
    for column in rest:
        if not tables or room < column.width + gap:
            tables.append([first])
            room = width - first.width
        tables[-1].append(column)
        room -= column.width + gap
    return tables or [[first]]


def fitted(choices: Sequence[tuple[Sequence[Column], int]], width: int) -> list[str]:
    """The first choice, columns and their gap, that is narrower than ``width``;
    else the first in several tables."""
    for columns, gap in choices:
        if sum(column.width + gap for column in columns) - gap < width:
            return grid(columns, gap)
    return [line for part in parts(choices[0][0], width - 1, 1) for line in grid(part, 1)]


def layout(table: Table, width: int) -> list[str]:
    """The table as text, in as many tables stacked as it takes to fit: each repeats the first column."""
    first, *rest = (
        Column(header, tuple(row[i] for row in table.rows), left=i == 0 or header in table.text_columns)
        for i, header in enumerate(table.headers)
    )
    columns = [first, *(column.within(width - first.width - _GAP) for column in rest)]
    return ["\n".join(grid(part, _GAP, ruled=True)) for part in parts(columns, width, _GAP)]


def laid_out(block: Block, width: int) -> str:
    """A table under its title; or a text, each of its lines a paragraph."""
    prose = min(width, PROSE_WIDTH)
    if isinstance(block, Table):
        return paragraph(block.title, prose) + "\n" + "\n\n".join(layout(block, width))
    return "\n".join(paragraph(line, prose) for line in block.split("\n"))


def page(blocks: Iterable[Block], width: int) -> str:
    """Tables and texts, a blank line between two."""
    return "\n\n".join(laid_out(block, width) for block in blocks)


def paragraph(text: str, width: int, indent: str = "", hanging: str | None = None) -> str:
    """``text`` in lines no longer than ``width``, words whole, the first set in as it is.

    Args:
        text: what to set.
        width: of a line; a single word may be longer.
        indent: before the first line, besides.
        hanging: before the others; by default two blanks more than before the first, if that is set in.
    """
    indent += text[: len(text) - len(text.lstrip())]
    return textwrap.fill(
        text.lstrip(),
        max(width, 20),
        initial_indent=indent,
        subsequent_indent=indent + "  " if hanging is None and indent else hanging or "",
        break_on_hyphens=False,
        break_long_words=False,
    )
