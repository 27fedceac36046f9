"""Comments, documents and names use the field's terms: a test of the words that are not among them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from compare.registry import ROOT

PLACES = (
    *("torch_impl", "triton_impl", "cuda_impl", "compare", "ops", "tools", "tests", "examples", "labs"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "setup.py"),
)
"""Folders and files that are checked."""

SUFFIXES = (".py", ".cuh", ".cu", ".h", ".cpp", ".md")

WRITE_INSTEAD = {
    r"rungs?\b(?!:)": "implementation, or its level",
    r"agrees": "is correct, is equal",
    r"times as fast as": "speedup vs torch.eager",
    r"indistinguishable|cannot be told apart": "within noise",
    r"what it takes": "registers/thread, shared memory/block, spills",
    r"what there is to read": "code size: lines, tokens",
    r"what the first call took": "first call (compile + run)",
    r"mend(s|ed|ing)?": "fix",
    r"(?<!memcpy\s)copy engine": "TMA",
    r"(below|beside) each other": "consecutive rows or columns: uncoalesced, coalesced",
    r"meets? in (no|a) bank": "bank conflict, conflict-free",
    r"changes? places": "XOR swizzle, transposition",
    r"(?-i:packs?)": "16-byte vector, vectorized access",
    r"on (its|their) way": "in flight, prefetched",
    r"at (every|each) turn|turns later": "each iteration",
    r"dealt (to|like)": "assigned round-robin",
    r"there and back": "serpentine order",
    r"who(ever)? (brings|takes|asks|ends)": "producer, consumer; worker process, judge process",
    r"held against": "reference implementation, compared with",
    r"have had their say": "thermal and power steady state",
    r"be it|which is what|there is none that|of what is": "a subject, then a verb",
    r"whom|nobody": "the subject by its name",
}
OF_THREE_WORDS = re.compile(r"\b(?:routes?|variants?)\b", re.IGNORECASE)
"""Not for a reader, who knows way, level and implementation."""

IDENTIFIERS = {
    "compare/code_size/python.py": ["variant"],
    "compare/report/html/figures.py": ["route"],  # in the data of a page's figures
    "compare/serve/starters.py": ["variant"] * 2,
    "docs/adding-an-op.md": ["variant"],
    "examples/new_op/cuda_impl/launches/new_op.py": ["variant"] * 2,
}
"""No reader takes them for words; most name the decorator of launch tables."""

NAME_INSTEAD = {
    "Crew|_Desk|Exchange|mailbox(es)?|abreast": "worker_pool, serve(), CaseBuffers, run_parallel",
    r"\w*copy_engine\w*": "for_tma",
    "turns?": "iteration, stage",
    "turn_heads": "rotate_heads",
    "look_early": "poll_early",
    "nothing_seen": "identity",
    "heard": "full, empty, arrived",
    "place_of": "swizzle(row, vector)",
    "AsTheyAre": "Identity",
    "TilePlace": "TileCoordinates",
}
"""Identifiers, each with the field's noun."""


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

RULES = [
    (re.compile(rf"\b(?:{words})\b".replace(" ", r"\s+"), re.IGNORECASE), instead)
    for words, instead in WRITE_INSTEAD.items()
]


def prose(path: Path) -> str:
    """What a file says to its reader, on its own lines: comments, docstrings, Markdown without code.

    Generated blocks are left out too: their words are in the code, or in a record.
    """
    text = path.read_text()
    lines = text.split("\n")
    kept = [""] * len(lines)
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                kept[node.lineno - 1 : node.end_lineno] = lines[node.lineno - 1 : node.end_lineno]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                kept[token.start[0] - 1] = token.string.lstrip("#")
    elif path.suffix == ".md":
        left_out = r"(?ms)^\s*```.*?```|^<!-- generated: .*?^<!-- end -->"
        kept = re.sub(left_out, lambda m: "\n" * m[0].count("\n"), text).split("\n")
    else:
        without_strings = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
        kept = [line.partition("//")[2] for line in without_strings.split("\n")]
    return re.sub(r"`[^`\n]+`", "", "\n".join(kept))


def shown(path: Path) -> str:
    """What a file shows to a user: strings of the code that are no docstring, and the text of pages."""
    text = path.read_text()
    if path.suffix == ".j2":
        return re.sub(r"(?s)\{[{%#].*?[}%#]\}|<[^>]*>", " ", text)
    if path.suffix != ".py" or path.relative_to(ROOT).parts[0] in ("examples", "labs"):
        return text
    nodes = list(ast.walk(ast.parse(text)))
    alone = {node.value for node in nodes if isinstance(node, ast.Expr)}
    strings = [node for node in nodes if isinstance(node, ast.Constant) and node not in alone]
    return "\n".join(str(node.value) for node in strings)


@pytest.mark.parametrize(
    ("place", "suffixes"),
    [
        *((page, "") for page in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")),
        ("docs", ".md .svg .json"),
        ("labs", ".md .toml .ipynb .py"),
        ("examples", ".py .cu .cuh .yml .diff"),
        ("compare", ".py .j2"),
        *((code, ".py") for code in ("cuda_impl", "triton_impl", "torch_impl", "ops", "setup.py")),
    ],
)
def test_a_reader_needs_three_words_only(place: str, suffixes: str) -> None:
    root = ROOT / place
    paths = [p for p in sorted(root.rglob("*")) if p.suffix in suffixes.split()] if root.is_dir() else [root]
    assert paths
    used = {str(path.relative_to(ROOT)): OF_THREE_WORDS.findall(shown(path)) for path in paths}
    instead = "write way, level, implementation, algorithm, or through cupy, through pybind11"
    assert {path: words for path, words in used.items() if words != IDENTIFIERS.get(path, [])} == {}, instead


@pytest.mark.parametrize("place", PLACES)
def test_the_field_s_words_are_used(place: str) -> None:
    root = ROOT / place
    found = []
    for path in sorted(p for p in [root, *root.rglob("*")] if p.suffix in SUFFIXES):
        text = prose(path)
        for rule, instead in RULES:
            for match in rule.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: write {instead}")
    assert found == [], "\n" + "\n".join(found)


def names(path: Path) -> set[str]:
    """Names that a Python file gives to something, and the identifiers of a CUDA file's code."""
    text = path.read_text()
    if path.suffix != ".py":
        return set(re.findall(r"[A-Za-z_]\w*", re.sub(r'"(?:\\.|[^"\\\n])*"|//.*', "", text)))
    nodes = list(ast.walk(ast.parse(text)))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return bound | {node.name for node in nodes if isinstance(node, DEFINITIONS)}


def test_names_are_the_field_s() -> None:
    used: dict[str, list[str]] = {}
    for place in PLACES[: PLACES.index("tools")]:
        for path in sorted(p for p in (ROOT / place).rglob("*") if p.suffix in SUFFIXES[:-1]):
            file = str(path.with_suffix("").relative_to(ROOT)).removeprefix("cuda_impl/kernels/")
            for name in names(path):
                if any(re.fullmatch(words, name) for words in NAME_INSTEAD):
                    used.setdefault(name, []).append(file)
    assert not used, NAME_INSTEAD


def test_names_are_found(tmp_path: Path) -> None:
    python, cuda = tmp_path / "a.py", tmp_path / "a.cuh"
    python.write_text("def f(a, *, b):\n    c: int = x\n    for d in y.z:\n        class E: ...\n")
    cuda.write_text('int g = h(i);  // j\nauto k = "l";\n')
    assert names(python) == set("fabcdE")
    assert names(cuda) == {"int", "g", "h", "i", "auto", "k"}
