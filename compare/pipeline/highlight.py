"""The compilers' texts in colour: on a terminal by rich, on a page by Pygments itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from pygments.lexer import Lexer, RegexLexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text, Whitespace
from rich.console import Console
from rich.syntax import Syntax

from compare.model.op import ROUTES
from compare.report.terminal import writable

_MOST_COLOURED_BYTES = 400_000
"""Preprocessed C++ is megabytes of headers; colouring it takes longer than compiling it."""


class Mlir(RegexLexer):  # type: ignore[misc]
    """Triton's TTIR and TTGIR."""

    name = "MLIR"
    tokens = {  # noqa: RUF012 - Pygments' own way to write a lexer
        "root": [
            (r"//.*$", Comment.Single),
            (r'"[^"\n]*"', String),
            (r"\bloc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", Comment),
            (r"#loc\d*.*$", Comment),
            (r"%[\w$.#:-]+", Name.Variable),
            (r"[#!][\w.]+", Name.Decorator),
            (r"@[\w$.]+", Name.Function),
            (r"\b(module|attributes|tensor|memdesc|ptr|to|step|iter_args|else)\b", Keyword.Type),
            (r"\b[a-z_]\w*\.[\w.]+", Keyword),
            (r"-?\b\d[\w.+-]*", Number),
            (r"\b(b?f|i|tf)\d+\b", Keyword.Type),
            (r"[A-Za-z_]\w*", Text),
            (r"->|[=:*]", Operator),
            (r"[\[\](){}<>,]", Punctuation),
            (r"\s+", Whitespace),
            (r".", Text),
        ]
    }


class Sass(RegexLexer):  # type: ignore[misc]
    """Machine code as nvdisasm writes it."""

    name = "SASS"
    tokens = {  # noqa: RUF012
        "root": [
            (r"/\*.*?\*/|//.*$", Comment),
            (r"@!?U?P\w+", Name.Decorator),
            (r"\b(?:U?R|U?P|SR|SB|B|c)(?:\d+|Z|T|_\w+)(?:\.\w+)*\b", Name.Variable),
            (r"-?\b0x[0-9a-f]+\b|-?\b\d+(?:\.\d+)?\b", Number),
            (r"\b[A-Z][A-Z0-9_]+(?:\.[\w.]+)*\b", Keyword),
            (r"\.?[\w$.]+:?", Name.Label),
            (r"[^\S\n]+|\n", Whitespace),
            (r".", Punctuation),
        ]
    }


_LANGUAGES = {
    **dict.fromkeys(("ast", "inductor"), "python"),
    **dict.fromkeys(("frontend", "ttir", "ttgir"), "mlir"),
    **dict.fromkeys(("host-preprocessed", "cudafe", "preprocessed"), "cuda"),
    "llir": "llvm",
    "ptx": "ptx",
    "sass": "sass",
}


@dataclass(frozen=True)
class CodeText:
    """A compiler's text under a heading."""

    head: str
    body: str = ""
    language: str = ""
    """As `lexer` takes it; empty: no colours."""

    @property
    def text(self) -> str:
        return f"{self.head}\n{self.body}" if self.body else self.head


def language(label: str, stage: str) -> str:
    """The language of a stage's text, as `lexer` takes it; empty: no colours."""
    if stage == "source":
        return "cuda" if label.startswith(ROUTES) else "python"
    return _LANGUAGES.get(stage, "")


def lexer(name: str) -> Lexer:
    """Pygments' lexer, or one of the two that it lacks; no character is added or left out."""
    as_it_is = {"stripnl": False, "ensurenl": False}
    if own := {"mlir": Mlir, "sass": Sass}.get(name):
        return own(**as_it_is)
    return get_lexer_by_name(name or "text", **as_it_is)


def put(texts: Sequence[CodeText], stream: TextIO | None = None) -> None:
    """Print texts: in colour on a terminal, unless NO_COLOR is set, and as they are into a pipe or a file."""
    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False, soft_wrap=True)
    coloured = console.is_terminal and not console.no_color and console.color_system is not None
    for count, one in enumerate(texts):
        if count:
            stream.write("\n")
        if coloured and one.language and len(one.body) <= _MOST_COLOURED_BYTES:
            stream.write(f"{writable(one.head, stream)}\n")
            code = writable(one.body, stream)
            syntax = Syntax(code, lexer(one.language), theme="ansi_dark", background_color="default")
            console.print(syntax.highlight(code), soft_wrap=True, end="")
        else:
            stream.write(f"{writable(one.text, stream)}\n")
