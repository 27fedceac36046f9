"""The compilers' texts in colour: on a terminal by rich, on a page by Pygments itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from pygments.lexer import Lexer, RegexLexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Punctuation, String, Text, Whitespace
from rich.console import Console
from rich.syntax import Syntax

from compare.model.op import ROUTES
from compare.report.terminal import writable
from compare.sandbox.words import printable

_MOST_COLOURED_BYTES = 400_000
"""Preprocessed C++ is megabytes of headers; colouring it takes longer than compiling it."""


class Assembly(RegexLexer):  # type: ignore[misc]
    """MLIR as Triton writes it, and machine code as nvdisasm does; Pygments has no lexer for either."""

    name = "assembly"
    tokens = {  # noqa: RUF012 - Pygments' own way to write a lexer
        "root": [
            (r"/\*.*?\*/|//.*$|#loc\d*.*$|\bloc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", Comment),
            (r'"[^"\n]*"', String),
            (r"%[\w$.#:-]+", Name.Variable),
            (r"\b(?:U?R|U?P|SR|SB|B|c)(?:\d+|Z|T|_\w+)(?:\.\w+)*\b", Name.Variable),  # registers
            (r"@!?U?P\w+|[#!][A-Za-z_][\w.]*", Name.Decorator),  # predicates and attributes
            (r"@[\w$.]+", Name.Function),
            (r"\b(module|attributes|tensor|memdesc|ptr|to|step|iter_args|else)\b", Keyword.Type),
            (r"\b(b?f|i|tf)\d+\b", Keyword.Type),
            (r"\b(?:[A-Z][A-Z0-9_]+(?:\.[\w.]+)*|[a-z_]\w*\.[\w.]+)", Keyword),  # opcodes
            (r"-?\b\d[\w.+-]*", Number),
            (r"\.?[A-Za-z_$][\w$]*", Text),
            (r"\s+", Whitespace),
            (r".", Punctuation),
        ]
    }


_LANGUAGES = {
    **dict.fromkeys(("ast", "inductor"), "python"),
    **dict.fromkeys(("frontend", "ttir", "ttgir", "sass"), "assembly"),
    **dict.fromkeys(("module", "host-preprocessed", "cudafe", "preprocessed"), "cuda"),
    "llir": "llvm",
    "ptx": "ptx",
}


@dataclass(frozen=True)
class CodeText:
    """A compiler's text under a heading."""

    head: str
    body: str = ""
    language: str = ""
    """As `lexer` takes it; empty: no colours."""


def language(label: str, stage: str) -> str:
    """The language of a stage's text, as `lexer` takes it; empty: no colours."""
    if stage == "source":
        return "cuda" if label.startswith(ROUTES) else "python"
    return _LANGUAGES.get(stage, "")


def lexer(name: str) -> Lexer:
    """Pygments' lexer, or ours; no character is added or left out."""
    as_it_is = {"stripnl": False, "ensurenl": False}
    return Assembly(**as_it_is) if name == "assembly" else get_lexer_by_name(name or "text", **as_it_is)


def put(texts: Sequence[CodeText], stream: TextIO | None = None) -> None:
    """Print texts: in colour on a terminal, unless NO_COLOR is set, and as they are into a pipe or a file."""
    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False, soft_wrap=True)
    coloured = console.is_terminal and not console.no_color and console.color_system is not None
    for count, one in enumerate(texts):
        head, body = (writable(printable(text), stream) for text in (one.head, one.body))
        stream.write(f"\n{head}\n" if count else f"{head}\n")
        if coloured and one.language and len(body) <= _MOST_COLOURED_BYTES:
            syntax = Syntax(body, lexer(one.language), theme="ansi_dark", background_color="default")
            console.print(syntax.highlight(body), soft_wrap=True, end="")
        elif body:
            stream.write(f"{body}\n")
