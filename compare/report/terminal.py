"""A comparison on the terminal, at its width: the default screen and further tables."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.text import Text
from rich.theme import Theme

from compare.model.result import Comparison
from compare.report import screen, tables
from compare.report.kernel_names import shortened
from compare.report.layout import PROSE_WIDTH, UNLIMITED, laid_out, layout, page, paragraph
from compare.report.substitutes import SUBSTITUTES
from compare.report.summary import View
from compare.sandbox.words import printable

__all__ = [
    "PROSE_WIDTH",
    "details",
    "laid_out",
    "layout",
    "page",
    "paragraph",
    "put",
    "render",
    "show",
    "writable",
]

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
        r"(?m)^(?P<faint> \S+ \(ordinary\) .*)$",
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
    """``text`` with characters that the stream's encoding lacks written otherwise."""
    try:
        encoding = codecs.lookup(stream.encoding or "utf-8").name
    except LookupError:
        encoding = "ascii"
    return text.encode(encoding, SUBSTITUTES).decode(encoding)


def render(comparison: Comparison, width: int, view: View | None = None) -> str:
    """The screen as plain text, no line wider than ``width`` (unless a single column is).

    Tables of what ``--tune``, ``--matched`` and ``--sustained`` have added are on it unasked.
    """
    view = view or View()
    blocks = [screen.render(comparison, width, view)]
    if view.details:
        blocks += details(comparison, width)
    elif added := tables.added(comparison):
        blocks.append(page(added, width))
    if view.explain:
        noise = tables.told_apart(comparison)
        blocks.append(screen.legend(comparison, min(width, PROSE_WIDTH), noise))
    return shortened("\n\n".join(blocks))


def details(comparison: Comparison, width: int) -> list[str]:
    """Driver, ceilings, versions, seed and date; then every further table, with its legend."""
    lines = [paragraph(line, min(width, PROSE_WIDTH), hanging="  ") for line in _conditions(comparison)]
    return ["\n".join(lines), page(tables.details(comparison), width)]


def _conditions(comparison: Comparison) -> Iterator[str]:
    environment = comparison.environment
    ceilings = next((c.ceilings for c in comparison.cases if c.ceilings), None)
    if environment.device_type == "cuda":
        yield f"{environment.device} ({environment.arch}), driver {environment.driver or 'unknown'}"
        if ceilings:
            peak = ceilings.product_tflops
            product = f", peak {tables.number(peak)} TFLOP/s" if peak else ""
            yield (
                f"measured ceilings: copy {ceilings.copy_gbs:.0f} GB/s, read {ceilings.read_gbs:.0f} GB/s"
                + product
            )
            yield tables.told_apart(comparison)
    versions = [f"{name} {environment.versions[name]}" for name in _VERSIONS if name in environment.versions]
    yield ", ".join([*versions, f"seed {comparison.seed}", comparison.created])
