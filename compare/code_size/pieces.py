"""Counts a piece of code: its tokens, and the lines with tokens."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Operator, String

from compare.model.result import RoleSize

_LEXERS = {"python": PythonLexer, "cuda": CppLexer}

# Pygments reads C++ operators character by character and Python's whole.
_OPERATOR = re.compile(r"<<=|>>=|\*\*=|//=|->|::|\+\+|--|<<|>>|[-+*/%&|^<>=!:]=|&&|\|\||\*\*|//|.")


@dataclass(frozen=True)
class CodePiece:
    """Code that counts as a whole: a function, a type, a constant, a macro."""

    text: str
    language: Literal["python", "cuda"]
    file: str = ""
    """Its file; empty: CUDA text of a Python file."""


def size(pieces: Iterable[CodePiece]) -> RoleSize:
    """Lines and tokens of all pieces, each counted once."""
    sizes = [_size_of(piece) for piece in dict.fromkeys(pieces)]
    return RoleSize(sum(size.lines for size in sizes), sum(size.tokens for size in sizes))


@functools.cache
def _size_of(piece: CodePiece) -> RoleSize:
    tokens = list(_tokens(piece))
    lines = {line for first, text in tokens for line in _filled_lines(first, text)}
    return RoleSize(len(lines), len(tokens))


@functools.cache  # the rows of an op share most of their helpers
def lexed(piece: CodePiece) -> tuple[tuple[Any, str], ...]:
    """Pygments' tokens of a piece, with comments replaced by their line ends."""
    tokens = _LEXERS[piece.language](stripnl=False, ensurenl=False).get_tokens(piece.text)
    return tuple((token, "\n" * value.count("\n") if is_comment(token) else value) for token, value in tokens)


def is_comment(token: Any) -> bool:
    """Whether a token is a comment: Pygments counts preprocessor directives as comments too."""
    return token in Comment and not is_directive(token)


def is_directive(token: Any) -> bool:
    """Whether a token is part of a preprocessor line."""
    return token in Comment.Preproc or token in Comment.PreprocFile


def bare(piece: CodePiece) -> str:
    """A piece's text without its comments."""
    return "".join(value for _, value in lexed(piece))


def _tokens(piece: CodePiece) -> Iterator[tuple[int, str]]:
    """First line and text of each token of a piece.

    A string is one token, except for the expressions of an f-string; so is an operator of several characters.
    """
    line, run_kind, run_line, run = 1, None, 1, ""
    for token, value in [*lexed(piece), (None, "")]:
        kind = next((kind for kind in (String, Operator) if token is not None and token in kind), None)
        if run and kind is not run_kind:
            texts = [run] if run_kind is String else _OPERATOR.findall(run)
            yield from ((run_line, text) for text in texts if text.strip())
            run = ""
        if kind is not None:
            run_line = run_line if run else line
            run += value
        elif token is not None and is_directive(token):
            for word in re.finditer(r"\w+|[^\w\s\\]", value):
                yield line + value.count("\n", 0, word.start()), word[0]
        elif value.strip():
            yield line, value
        run_kind = kind
        line += value.count("\n")


def _filled_lines(first: int, text: str) -> Iterator[int]:
    return (first + i for i, line in enumerate(text.split("\n")) if line.strip())
