"""CUDA and C++ files split into top-level declarations, and those that a function reaches by name.

Not a C++ parser: names are matched as words, so all overloads and specialisations of a name count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pygments.token import String

from compare.code_size.pieces import Piece, is_comment, is_directive, lexed
from compare.code_size.sources import with_includes

_TOOLS = ("tensor.h",)
_ATTRIBUTE = re.compile(r"\b(__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")
_TYPE = re.compile(r"\s*(?:struct|class|union|enum(?:\s+class)?)\s+(\w+)")
_OTHER_NAMES = (
    re.compile(r"\s*#\s*define\s+(\w+)"),
    re.compile(r"\s*using\s+(\w+)\s*="),
    re.compile(r".*?\b(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=|;|\{|$)", re.DOTALL),
)


@dataclass(frozen=True)
class Unit:
    """Declarations of one or more files."""

    pieces: tuple[Piece, ...]
    named: dict[str, tuple[Piece, ...]]

    def reached(self, names: Iterable[str]) -> list[Piece]:
        """All pieces of these names and every piece they use, directly or not, in breadth-first order."""
        found: dict[Piece, None] = {}
        waiting = [piece for name in names for piece in self.named.get(name, ())]
        while waiting:
            piece = waiting.pop(0)
            if piece not in found:
                found[piece] = None
                waiting += [used for name in _words(piece) for used in self.named.get(name, ())]
        return list(found)


def is_source(text: str) -> bool:
    """Whether a launch's source is CUDA text, not the name of a kernel file."""
    return "__global__" in text


def file_unit(path: Path) -> Unit:
    """A file with its includes from its folder and below, without those that serve every op."""
    files = sorted(
        file for file in with_includes(path) if file.is_relative_to(path.parent) and file.name not in _TOOLS
    )
    return text_unit("\n".join(file.read_text(encoding="utf-8") for file in files))


@functools.cache
def text_unit(text: str) -> Unit:
    """The declarations of source text, without its includes."""
    pieces = tuple(Piece(part, "cuda") for part in _declarations(text))
    named: dict[str, tuple[Piece, ...]] = {}
    for piece in pieces:
        name = _name(piece.text)
        named[name] = (*named.get(name, ()), piece)
    return Unit(pieces, named)


def binding_and_launch(path: Path, variant: str) -> tuple[list[Piece], list[Piece]]:
    """The module of a ``pybind/<op>.cu`` with this variant's line, and the code that the line exports."""
    unit = file_unit(path)
    (module,) = unit.named["PYBIND11_MODULE"]
    head, _, body = module.text.partition("{")
    own = re.compile(rf'm\s*\.\s*def\s*\(\s*"{re.escape(variant)}"')
    lines = [
        statement
        for statement in _declarations(body.rpartition("}")[0])
        if own.match(statement) or not re.match(r"m\s*\.\s*def\b", statement)
    ]
    binding = Piece("\n".join([f"{head.strip()} {{", *lines, "}"]), "cuda")
    return [binding], unit.reached(name for name in _words(binding) if name != "PYBIND11_MODULE")


def _words(piece: Piece) -> list[str]:
    """The identifiers in a piece's code, each once."""
    code = "".join(value for token, value in lexed(piece) if token not in String)
    return list(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", code)))


def _declarations(text: str) -> Iterator[str]:
    """Top-level declarations and macros, without comments; namespaces opened, other directives dropped."""
    part, directive, depth = "", "", 0
    for token, value in lexed(Piece(text, "cuda")):
        ends_directive = bool(directive) and is_comment(token) and value.endswith("\n")
        if is_comment(token) and not ends_directive:
            part += value
        elif ends_directive or (is_directive(token) and depth == 0):
            directive += value
            if value.endswith("\n") and not directive.rstrip("\n").endswith("\\"):
                if re.match(r"#\s*define\b", directive):
                    yield directive.strip()
                directive = ""
        elif directive:  # space within a directive
            directive += value
        else:
            for char in [value] if token in String or is_directive(token) else value:
                if char == "{" and depth == 0 and re.match(r"\s*namespace\b[\w\s:]*$", part):
                    part = ""
                elif char == "}" and depth == 0:
                    part = ""  # of a namespace
                else:
                    part += char
                    depth += (char in "({[") - (char in ")}]") if len(char) == 1 else 0
                    if depth == 0 and (char == ";" or (char == "}" and not _goes_on(part))):
                        yield part.strip()
                        part = ""


def _goes_on(part: str) -> bool:
    """Whether a declaration needs a semicolon after its closing brace: types and variables do."""
    return _TYPE.match(_head(part)) is not None or _function_name(_head(part)) is None


def _name(part: str) -> str:
    head = _head(part)
    found = _TYPE.match(head)
    if found is None and not part.lstrip().startswith("#"):
        function = _function_name(head)
        if function is not None:
            return function
    names = (found, *(pattern.match(head) for pattern in _OTHER_NAMES))
    return next((match[1] for match in names if match), "")


def _head(part: str) -> str:
    """A declaration up to its body, without template parameters and alignment attributes."""
    head = re.sub(r"^\s*template\s*<[^{}()]*?>", "", part)
    return _ATTRIBUTE.sub("", head).partition("{")[0]


def _function_name(head: str) -> str | None:
    """The name before the last parentheses, if only words follow them and no value is assigned."""
    while head != (head := re.sub(r"\([^()]*\)", "@", head)):
        pass  # replaces each pair of parentheses by a mark, from the inside out
    found = re.search(r"(\w+)\s*(?:<[^@]*>)?\s*@[\s\w;]*$", head)
    return found[1] if found and not re.search(r"(?<![=!<>])=(?!=)", head) else None
