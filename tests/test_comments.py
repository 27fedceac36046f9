"""Comments and docstrings are laid out as they read: no sentence is cut short, no list is run together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from compare.registry import ROOT
from test_language import PLACES

SUFFIXES = (".py", ".cuh", ".cu", ".h", ".cpp")

SHORT = 95
"""The column from which on a line may end though the next word would fit; not every file fills all 110."""

NAMES_END = 30
"""Column, from the indentation on, where the second column of a table begins at the latest."""

ITEM = re.compile(r"\s*([-*] |\d+[.)] |Step \d+:|[\w.*`, ]+: |\w+  +\S|@@ )")
CODE = re.compile(r"\s*(>>>|\.\.\.|#|python )|.*[{;]$|.*\S = ")
COLUMN = re.compile(r"(?<=\w)  +(?=\w)(?!\w+ =)")
MARKER = re.compile(r"[.;:] ([-*•]|\d[.)]|Step \d+:) (?=\w|`)")
PARAMETER = re.compile(r"\. +[A-Za-z_]\w*(, \w+)*: ")


def comments(lines: dict[int, str], marker: str) -> Iterator[tuple[int, list[str]]]:
    """Runs of consecutive comment lines without their ``marker``, and the number of the first."""
    block: list[str] = []
    for number, line in sorted(lines.items()):
        block.append(line.replace(marker, " " * len(marker), 1).rstrip())
        if number + 1 not in lines:
            yield number + 1 - len(block), block
            block = []


def slashes(lines: list[str], first: int) -> Iterator[tuple[int, list[str]]]:
    own = {n: line for n, line in enumerate(lines, first) if line.lstrip().startswith("//")}
    return comments(own, "//")


def blocks(text: str, suffix: str) -> Iterator[tuple[int, list[str]]]:
    """Comments that have lines of their own, and docstrings; of Python also the comments of CUDA text."""
    lines = text.split("\n")
    if suffix != ".py":
        yield from slashes(lines, 1)
        return
    own = {n: line for n, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, [line.rstrip() for line in lines[node.lineno - 1 : node.end_lineno]]
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno > node.lineno:
            inside = range(node.lineno, node.end_lineno + 1)
            own = {n: line for n, line in own.items() if n not in inside}
            yield from slashes(lines[node.lineno - 1 : node.end_lineno], node.lineno)
    yield from comments(own, "#")


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def columns(line: str) -> set[int]:
    """Where a table's third and further columns begin, or an entry that was run into the one before it."""
    return {m.end() for m in COLUMN.finditer(line) if m.end() - indentation(line) > NAMES_END}


def is_cut(line: str, following: str) -> bool:
    """Whether a sentence goes on in the next line although its next word has room in this one."""
    word = re.match(r"\s*([a-z][a-z'-]*[,.;)]*)(\s|$|\")", following)
    if not word or len(line) + 1 + len(word[1]) > SHORT or re.search(r"[.:]$", line):
        return False
    if ITEM.match(following) or CODE.match(line) or CODE.match(following):
        return False
    deeper = indentation(following) - indentation(line)
    if deeper > 0:
        return not ITEM.match(line) and '"""' not in line
    return deeper == 0 and not COLUMN.search(line)


def broken(block: list[str]) -> Iterator[tuple[int, str]]:
    """What is wrong with a block: the line's number in it, and a reason."""
    in_parameters = in_example = False
    for k, line in enumerate(block):
        before = block[k - 1] if k else ""
        after = block[k + 1] if k + 1 < len(block) else ""
        in_example = ">>>" in line or (in_example and line.strip() != "")
        in_parameters = line.strip() in ("Args:", "Raises:") or (in_parameters and line.strip() != "")
        if in_example:
            continue
        if line.strip() and is_cut(line, after):
            yield k, "the next line's first word has room here"
        if MARKER.search(line) or (in_parameters and PARAMETER.search(line)):
            yield k, "an item of a list in the middle of a line"
        if columns(line) - columns(before) - columns(after):
            yield k, "an entry of a table in the middle of a line"
        if re.match(r"\s*-{3,} [^-]*$", line) and re.match(r"\s*-{20,}", after):
            yield k, "a title, and its dashes in the next line"
    if len(block) == 2 and re.match(r'\s*\S+"""$', block[1]):
        yield 1, "a summary with its last word in a line of its own: shorten it"


def complaints(text: str, suffix: str) -> Iterable[str]:
    for first, block in blocks(text, suffix):
        for k, reason in broken(block):
            yield f"{first + k}: {reason}: {block[k].strip()}"


@pytest.mark.parametrize("place", [place for place in PLACES if not place.endswith(".md")])
def test_comments_are_whole(place: str) -> None:
    root = ROOT / place
    found = [
        f"{path.relative_to(ROOT)}:{complaint}"
        for path in sorted(p for p in [root, *root.rglob("*")] if p.suffix in SUFFIXES)
        for complaint in complaints(path.read_text(), path.suffix)
    ]
    assert found == [], "\n" + "\n".join(found)


DASHES = "-" * 80
CUT = "// A tile is loaded when\n// the one before it has been stored, so that\n// no buffer waits."
TABLE = "// Variants:\n//   naive   one element per thread\n//   shared  a tile in shared memory"


@pytest.mark.parametrize(
    ("suffix", "text", "lines"),
    [
        (".cuh", CUT, [1, 2]),
        (".py", CUT.replace("//", "#"), [1, 2]),
        (".py", f'"""Of f.\n\n{CUT.replace("// ", "")}\n"""', [3, 4]),
        (".py", f'KERNEL = r"""\n{CUT}\n"""', [2, 3]),
        (".py", '"""Of f.\n\nRaises:\n    ValueError: that\n    is\n        wrong.\n"""', [4, 5]),
        (".cuh", CUT.replace("when", "when:").replace("that", "that."), []),
        (".cuh", f"// {'word ' * 18}end\n// goes on.", []),
        (".cuh", TABLE, []),
        (".cuh", TABLE.replace("\n//   shared", " shared"), [2]),
        (".cuh", "// A lane holds\n//   of a  k = 4t, and of row g + 8 too of b  column g\n", [2]),
        (".cuh", "//   float c[4]       the rows of two fragments    columns\n" * 2, []),
        (".cuh", "// First: 1. load a tile. 2. Store it.", [1]),
        (".py", "# Write: - loads; - stores.", [1]),
        (".py", "# Step 1: load the tile. Step 2: store it.", [1]),
        (".cuh", "// a - b and a * b, from 0. Grid: (1) a block, (2) a warp.", []),
        (".py", '"""Of f.\n\nArgs:\n    x: rows. y: columns.\n    z: planes.\n"""', [4]),
        (".py", '"""Of f.\n\nArgs:\n    x: rows; none: all.\n    y: columns.\n"""', []),
        (".cuh", f"// ---- title\n// {DASHES}", [1]),
        (".cuh", f"// ---- title\n// {DASHES} It goes on.", [1]),
        (".cuh", f"// ---- title {DASHES}\n// A sentence.", []),
        (".py", f"# {DASHES} title\n# A sentence.", []),
        (".py", f'"""A summary of {"words " * 15}and one\nmore."""', [2]),
        (".py", f'"""A summary of {"words " * 15}and two\nwords more."""', []),
    ],
)
def test_each_kind_is_found(suffix: str, text: str, lines: list[int]) -> None:
    assert sorted(int(complaint.partition(":")[0]) for complaint in complaints(text, suffix)) == lines
