"""Structure of the project: one op is its own files and nothing else, and the documents are up to date."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from compare import cli, registry
from compare.checking.check import check
from compare.cli import VERSION
from compare.command_line import options
from compare.model.op import Implementation
from compare.records import archive
from compare.registry import ROOT
from loops import for_each
from processes import command
from rows import every_implementation
from tools.docs import blocks

FILES_OF_AN_OP = (
    "ops/{}.py",
    "torch_impl/{}.py",
    "triton_impl/{}.py",
    "cuda_impl/kernels/{}.cuh",
    "cuda_impl/launches/{}.py",
)
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
OPS = registry.op_names()
PYTHONS = tuple(f"3.{minor}" for minor in range(10, 14))
MOST_LINES, MOST_PARAMETERS, MOST_NESTED = 60, 7, 4
"""Of a function: parameters beside ``self``, and blocks within each other."""
WITH_ALL_INPUTS = "check_gradients"
"""It takes the six tensors of an op by position, as the sources do that recorded times are of."""
MOST_LOOSE_MODULES = 12
MOST_LOCAL_IMPORTS = 13
"""Imports within functions; in all of compare/ and tools/."""
ONE_FILE_OP = ROOT / "tests" / "support" / "one_file_op.py"


def tracked(*patterns: str) -> list[Path]:
    """Files that are, or are about to be, in git; in a source archive those that git would not ignore.

    A ``*`` of a pattern matches ``/`` as well.
    """
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [ROOT / name for name in names.splitlines() if (ROOT / name).is_file()]
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    walked = (path.relative_to(ROOT) for path in sorted(ROOT.rglob("*")) if path.is_file())
    return [
        ROOT / path
        for path in walked
        if not any(fnmatch(part, pattern) for part in path.parts for pattern in ignored)
        and any(fnmatch(str(path), pattern) for pattern in patterns or ["*"])
    ]


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def statuses_in(file: Path) -> dict[str, set[str]]:
    """Status by label in what ``--json`` wrote, over all cases."""
    statuses: dict[str, set[str]] = defaultdict(set)
    for case in archive.read(file)[0].cases:
        for row in case.rows:
            statuses[row.label].add(row.status)
    return statuses


# --------------------------------------------------------------------------- one op, its own files


@for_each("op", OPS)
def test_an_op_has_all_its_files(op: str):
    missing = [file for name in FILES_OF_AN_OP if not (ROOT / (file := name.format(op))).is_file()]
    assert not missing


@for_each("file", tracked("compare/*.py"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_driver_names_no_op(file: Path):
    """Names and one-word strings; an example in a help text or a docstring is prose.

    ``associative_scan`` is Triton's own function.
    """
    op = re.compile(rf"\b({'|'.join(OPS)})\b|_({'|'.join(OPS)})\b")
    for node in ast.walk(parsed(file)):
        word = {
            ast.Name: lambda node: node.id,
            ast.Attribute: lambda node: node.attr,
            ast.Constant: lambda node: node.value if isinstance(node.value, str) else "",
            ast.FunctionDef: lambda node: node.name,
            ast.ImportFrom: lambda node: node.module or "",
        }.get(type(node), lambda node: "")(node)
        named = op.search(word.replace("associative_scan", ""))
        assert len(word.split()) > 1 or not named, f"line {node.lineno} depends on an op: {word}"


def test_the_rule_above_can_fail_and_reaches_every_folder():
    assert re.search(rf"\b({'|'.join(OPS)})\b", f"ops.{OPS[0]}")
    assert {*tracked("compare/*.py")} == {*(ROOT / "compare").rglob("*.py")}


def test_the_driver_has_few_loose_modules():
    """A module belongs in the folder of its task."""
    loose = {file.stem for file in (ROOT / "compare").glob("*.py")} - {"__init__"}
    assert len(loose) <= MOST_LOOSE_MODULES, sorted(loose)


def local_imports(file: Path) -> dict[str, bool]:
    """Where a file imports within a function, and whether a comment there or on the line above says why."""
    lines = ["", *file.read_text().splitlines()]
    functions = [node for node in ast.walk(parsed(file)) if isinstance(node, FUNCTIONS)]
    inner = (node for function in functions for node in ast.walk(function) if isinstance(node, IMPORTS))
    return {
        f"{file.relative_to(ROOT)}:{node.lineno}": any(
            "#" in line for line in lines[node.lineno - 1 : (node.end_lineno or node.lineno) + 1]
        )
        for node in inner
    }


def test_few_imports_are_within_functions_and_each_says_why():
    """Only start-up time and the switch of Triton's interpreter justify one; commands import by need."""
    found = {
        at: explained
        for file in tracked("compare/*.py", "tools/*.py")
        if file.parent != ROOT / "compare" / "commands"
        for at, explained in local_imports(file).items()
    }
    assert [at for at, explained in found.items() if not explained] == []
    assert len(found) <= MOST_LOCAL_IMPORTS, [*found]


def nesting(node: ast.AST) -> int:
    """The most blocks within each other; ``elif`` is beside its ``if``, and inner functions count alone."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, STATEMENTS) and not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            beside = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
            deepest = max(deepest, nesting(child) + (isinstance(child, BLOCKS) and not beside))
    return deepest


def test_functions_are_short_and_flat_and_no_two_classes_share_a_name():
    classes: dict[str, list[str]] = defaultdict(list)
    large = []
    files = tracked("compare/*.py", "ops/*.py", "tests/*.py")
    for file in (each for each in files if each.parent.name != "kernels" or "mistakes" not in each.parts):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")].append(f"{file.relative_to(ROOT)}:{node.lineno}")
            elif isinstance(node, FUNCTIONS):
                parameters = {
                    each.arg for each in ast.iter_child_nodes(node.args) if isinstance(each, ast.arg)
                }
                count = len(parameters - {"self", "cls"})
                sizes = (node.end_lineno or 0) - node.lineno + 1, count, nesting(node)
                most = MOST_LINES, MOST_PARAMETERS + (node.name == WITH_ALL_INPUTS), MOST_NESTED
                if any(size > limit for size, limit in zip(sizes, most, strict=True)):
                    large.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}: {sizes}")
    assert large == []
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}


@for_each("op", OPS)
def test_the_same_variant_is_the_same_level_on_every_route(op: str):
    levels: dict[str, set[str]] = defaultdict(set)
    for impl in registry.implementations(op):
        if impl.way != "torch":
            levels[impl.variant].add(impl.level)
    assert {variant: level for variant, level in levels.items() if len(level) > 1} == {}


@for_each("op", OPS)
def test_every_way_climbs_the_ladder_of_its_file(op: str):
    """What a file's header promises is what is registered."""
    kernels = (ROOT / f"cuda_impl/kernels/{op}.cuh").read_text()
    header = kernels[: kernels.index("#pragma once")]
    promised = set(re.findall(r"(?m)^//   (\w+)  ", header))
    assert promised == {impl.variant for impl in registry.implementations(op) if impl.route == "cupy"}


@every_implementation
def test_an_implementation_lives_in_its_own_op_s_files(impl: Implementation):
    if impl.route in ("pybind", "library"):  # it is C++, named by its module
        return
    assert Path(impl.origin).name == f"{impl.op}.py"


@pytest.mark.thorough
def test_a_whole_op_from_one_file(tmp_path: Path):
    """A new op touches nothing but its own file: all three ways are found, run and correct."""
    record = tmp_path / "record.json"
    done = command("scale_shift", "--load", str(ONE_FILE_OP), "--json", str(record))
    assert done.returncode == 0, done.stderr + done.stdout
    assert statuses_in(record) == {
        label: {"ok"} for label in ("torch.eager", "triton.blocked", "cupy.scalar")
    }
    assert "scale_shift" in done.stdout


@pytest.mark.parametrize(
    ("label", "right", "wrong"),
    [
        ("triton.blocked", "2 * x + 1, mask", "2 * x, mask"),
        ("cupy.scalar", "2.0f * x_ptr[n] + 1.0f", "2.0f * x_ptr[n]"),
    ],
)
@pytest.mark.usefixtures("own_registry")
def test_a_wrong_kernel_in_that_file_is_caught(
    label: str, right: str, wrong: str, tmp_path: Path, device: torch.device
):
    text = ONE_FILE_OP.read_text()
    assert text.count(right) == 1
    file = tmp_path / "wrong_op.py"
    file.write_text(text.replace(right, wrong))
    registry.load(str(file))
    op = registry.get_op("scale_shift")
    passed = {
        impl.label: check(op, impl, op.cases.smoke[0], device, seeds=(0,)).passed
        for impl in registry.implementations("scale_shift")
    }
    assert [label for label in passed if not passed[label]] == [label]


@pytest.mark.parametrize(
    ("op", "file", "labels"),
    [
        ("softmax", "my_softmax.py", ("triton.mine", "cupy.mine")),
        ("softmax", "my_shared_memory.py", ("cupy.in_blocks",)),
        ("transpose", "my_shared_memory.py", ("cupy.in_tiles",)),
    ],
)
@pytest.mark.thorough
def test_the_examples_kernels_are_correct(op: str, file: str, labels: tuple[str, ...], tmp_path: Path):
    record = tmp_path / "record.json"
    words = ("--load", str(ROOT / "examples" / file), "--json", str(record))
    done = command(op, *words, *(word for label in labels for word in ("--only", label)))
    assert done.returncode == 0, done.stderr + done.stdout
    statuses = statuses_in(record)
    assert all("ok" in statuses[label] and statuses[label] <= {"ok", "unavailable"} for label in labels)


# --------------------------------------------------------------------------- documents


@pytest.mark.thorough
@pytest.mark.long
def test_generated_blocks_are_up_to_date():
    assert blocks.stale() == {}, "make docs writes them anew"


def test_documented_options_exist(capsys: pytest.CaptureFixture[str]):
    for words in ([], *([name] for name in options.COMMANDS)):
        with pytest.raises(SystemExit):
            cli.main([*words, "--help"])
    known = capsys.readouterr().out
    for file in tracked("*.md"):
        for line in file.read_text().splitlines():
            if "python -m compare " in line:
                for option in re.findall(r"(?<![\w-])--[a-z-]+", line):
                    assert option in known, f"{file.name}: {line}"


def test_the_version_is_said_once():
    latest = re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert latest[1] == VERSION


def test_every_requirement_is_pinned():
    def names(file: str) -> set[str]:
        lines = (ROOT / file).read_text().splitlines()
        return {re.split(r"[\[<>=;]", line)[0].lower() for line in lines if line and line[0] != "#"}

    assert names("requirements.txt") | names("requirements-dev.txt") == names("constraints.txt")


def test_no_file_names_this_machine():
    """No file contains the path of this checkout or home folder."""
    private = [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2 or path == Path.home()]
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(path)}(?![\w-])" for path in private))
    for file in tracked():
        text = file.read_text(errors="ignore")
        assert not pattern.search(text), f"{file.relative_to(ROOT)} names {pattern.search(text)}"


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)) == PYTHONS
    assert f'requires-python = ">={PYTHONS[0]}"' in text
    assert f'target-version = "py{PYTHONS[0].replace(".", "")}"' in text
    assert "Python 3.10 or newer" in (ROOT / "README.md").read_text()
