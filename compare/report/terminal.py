"""A comparison on the terminal, at its width: the default screen and further tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.text import Text
from rich.theme import Theme

from compare.model.result import CaseComparison, Comparison
from compare.report import screen, tables, tune
from compare.report.layout import PROSE_WIDTH, UNLIMITED, laid_out, layout, paragraph
from compare.report.summary import View
from compare.report.tables import Table
from compare.sandbox.words import printable
from compare.timing import figures

__all__ = ["PROSE_WIDTH", "details", "laid_out", "layout", "paragraph", "put", "render", "show", "writable"]

_VERSIONS = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "cuda (torch)")
_THEME = Theme(
    {
        "screen.title": "bold",
        "screen.good": "green",
        "screen.bad": "bold red",
        "screen.faint": "dim",
    }
)


class _Console(Console):
    """Rich's own exits with 1 when the pipe is closed; here status 1 means that a row is wrong."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Highlighter(RegexHighlighter):
    """Colours the words a reader looks for; the text itself is made without any."""

    base_style = "screen."
    highlights = [  # noqa: RUF012 - rich's own way to configure a highlighter
        r"(?m)^(?P<title>\S.*)(?=\n.*\n-{3,})",
        r"(?P<good>\byes\b)",
        r"(?P<bad>\bWRONG\b|\bFAILED\b|\bINTERRUPTED\b|\bimpossible\b|\bfailed\b)",
        r"(?P<bad>\bUNEQUAL TERMS\b|\bunequal terms\b)",
        r"(?P<bad>\bSLOWER\b|\bLOST\b|\bBROKEN\b)",
        r"(?m)^(?P<good>CORRECT\b)",
        r"(?m)^(?P<title>WHY|NEXT|YOURS)\b",
        r"(?m)^(?P<title> (?:best of each way|every row)\b.*)$",
        r"(?P<faint>\bnot run\b|^-[- ]+$)",
    ]


def show(comparison: Comparison, view: View | None = None, stream: TextIO | None = None) -> None:
    """Print a comparison: in colour and as wide as the terminal or COLUMNS, or plain into a pipe."""
    put(lambda width: render(comparison, width, view), stream)


def put(make: Callable[[int], str], stream: TextIO | None = None) -> None:
    """Print what ``make`` makes for a width, as `show` does."""
    stream = stream or sys.stdout
    console = _Console(file=stream, theme=_THEME, highlight=False, soft_wrap=True)
    if console.no_color:
        console = _Console(file=stream, color_system=None, soft_wrap=True)
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    if piped or console.width < 1:
        console.width = UNLIMITED
    text = writable(printable(make(console.width)), stream)
    console.print(_Highlighter()(Text(text)), soft_wrap=True)


def writable(text: str, stream: TextIO) -> str:
    """``text`` with signs that the stream's encoding lacks written otherwise."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = text.replace("±", "+-").replace("µ", "u").replace("·", "|")
        return text.encode("ascii", "replace").decode("ascii")
    return text


def render(comparison: Comparison, width: int, view: View | None = None) -> str:
    """The screen as plain text, no line wider than ``width`` (unless a single column is).

    Tables of what ``--tune``, ``--matched`` and ``--sustained`` have added are on it unasked.
    """
    view = view or View()
    blocks = [screen.render(comparison, width, view)]
    if view.details:
        blocks += details(comparison, width)
    else:
        asked = (table for case in comparison.cases for table in _asked_for(case))
        blocks += [laid_out(table, width) for table in asked if table]
        told = dict.fromkeys(
            row.configuration.unmatched
            for case in comparison.cases
            for row in case.rows
            if row.configuration.unmatched
        )
        blocks += [paragraph(note, min(width, PROSE_WIDTH)) for note in told]
    if view.explain:
        noise = tables.told_apart(comparison)
        blocks.append(screen.legend(comparison, min(width, PROSE_WIDTH), noise))
    return "\n\n".join(blocks)


def _asked_for(case: CaseComparison) -> Iterator[Table | None]:
    yield tables.endurance(case)
    if any(row.configuration.model for row in case.rows):
        yield tables.configurations(case)
    yield tune.table(case)


def details(comparison: Comparison, width: int) -> list[str]:
    """Every further table, with its legend: one text each."""
    prose = min(width, PROSE_WIDTH)
    blocks = ["\n".join(_conditions(comparison, prose))]
    shown: list[Table] = []

    def add(*made: Table | None) -> None:
        for table in filter(None, made):
            shown.append(table)
            blocks.append(laid_out(table, width))

    add(tables.agreement(comparison))
    timed = figures.timed_cases(comparison)
    main = figures.main_case(comparison)
    listed = timed if len(timed) <= figures.LISTED_CASES else [case for case in timed if case is main]
    for case in listed:
        add(tables.speed(case), tables.side_by_side(case), tables.endurance(case))
        blocks += [paragraph(line, prose) for line in filter(None, [tables.card(case)])]
    if len(timed) > len(listed):
        add(tables.sweep(timed))
    add(*map(tables.configurations, listed or comparison.cases))
    add(*map(tune.table, comparison.cases))
    add(*map(tables.resources, comparison.cases))
    add(tables.code(comparison))
    for labels, words in tables.concepts(comparison):
        blocks[-1] += "\n" + paragraph(f"{labels}: {words}", prose, indent="  ")
    reasons = [paragraph(f"{labels}: {reason}", prose, "  ") for labels, reason in tables.reasons(comparison)]
    if reasons:
        blocks.append("\n".join(["Not run, failed, and notes", *reasons]))
    legend = " ".join(dict.fromkeys(line for table in shown for line in table.legend))
    if legend:
        blocks.append(paragraph(legend, prose))
    return blocks


# --------------------------------------------------------------------------- parts of the screen


def _conditions(comparison: Comparison, width: int) -> list[str]:
    """Driver, ceilings, what counts as a difference, versions, seed and date."""
    environment = comparison.environment
    lines = []
    ceilings = next((c.ceilings for c in comparison.cases if c.ceilings), None)
    if environment.device_type == "cuda":
        lines.append(f"{environment.device} ({environment.arch}), driver {environment.driver or 'unknown'}")
        if ceilings:
            peak = ceilings.product_tflops
            lines.append(
                f"measured ceilings: copy {ceilings.copy_gbs:.0f} GB/s, read {ceilings.read_gbs:.0f} GB/s"
                + (f", peak {tables.number(peak)} TFLOP/s" if peak else "")
            )
            lines.append(tables.told_apart(comparison))
    versions = [f"{name} {environment.versions[name]}" for name in _VERSIONS if name in environment.versions]
    lines.append(", ".join([*versions, f"seed {comparison.seed}", comparison.created]))
    return [paragraph(line, width, hanging="  ") for line in lines if line]
