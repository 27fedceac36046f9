"""The hash of an implementation changes with its code, and with nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compare import registry
from compare.code_size import cpp
from compare.code_size import hashes as hashes_module
from compare.code_size import sources as sources_module
from compare.code_size.count import code_size
from compare.code_size.hashes import source_hash
from compare.code_size.sources import KERNELS, cpp_file, sources
from compare.model.op import Cost, Implementation, Tolerance
from copies import copy_of_code
from loops import for_each
from rows import op_by_op


@op_by_op
def test_the_hash_covers_its_files(impl: Implementation) -> None:
    files = sources(impl)
    assert registry.ROOT / "ops" / f"{impl.op}.py" in files
    by_hand = cpp_file(impl)
    own = {
        "torch": "torch_impl",
        "triton": "triton_impl",
        "cupy": "cuda_impl/launches",
        "pybind": "cuda_impl/pybind" if by_hand else "cuda_impl/launches",
        "library": "cuda_impl/pybind/library",
    }[impl.route]
    assert own in {path.parent.relative_to(registry.ROOT).as_posix() for path in files}
    if impl.way == "cuda":
        assert {KERNELS / f"{impl.op}.cuh", KERNELS / "common.cuh"} <= set(files)
        assert registry.ROOT / "cuda_impl" / "flags.py" in files
    assert source_hash(impl) == source_hash(impl)


def imported_ops(op: str) -> set[str]:
    """Those that its description takes something from, themselves or through another."""
    text = (registry.ROOT / "ops" / f"{op}.py").read_text()
    direct = set(re.findall(r"(?m)^from ops\.(\w+) import", text))
    direct.update(*(names.split(", ") for names in re.findall(r"(?m)^from ops import (.+)$", text)))
    return direct.union(*map(imported_ops, direct))


def test_the_hash_covers_what_an_op_takes_from_another() -> None:
    of_ops = registry.ROOT / "ops"
    for op in registry.op_names():
        for impl in registry.implementations(op):
            covered = {path.stem for path in sources(impl) if path.parent == of_ops}
            assert covered == {op, *imported_ops(op)}, impl.label


def test_libraries_beside_an_installed_copy_are_none_of_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip installs the packages into the folder of all others."""
    for name in ("torch/nn/functional.py", "torch_impl/softmax.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import torch.nn.functional as F\n")
    monkeypatch.setattr("compare.registry.ROOT", tmp_path)
    user = tmp_path / "mine" / "mine.py"
    user.parent.mkdir()
    user.write_text("import torch.nn.functional as F\nfrom torch_impl.softmax import eager\n")
    ours = tmp_path / "torch_impl" / "softmax.py"
    assert dict(sources_module.module_of(user).imported) == {"eager": (ours, "eager")}
    assert not sources_module.module_of(ours).imported


@for_each(
    "helpers, first, lines",
    [
        ("from parts.first import blocks\n", "from .second import blocks", 0),
        ("import parts.first\nblocks = parts.first.blocks\n", "from parts.second import *", 1),
        ("from parts import blocks\n", "", 0),
        ("def blocks(x):\n    from parts import second\n    return second.blocks(x)\n", "", 3),
    ],
)
def test_a_package_beside_a_users_file_is_part_of_it(
    helpers: str, first: str, lines: int, mine: dict[str, Implementation], tmp_path: Path
) -> None:
    package, impl = tmp_path / "parts", mine["triton.mine"]
    before = code_size(impl).lines
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("from .second import blocks\n")
    (package / "first.py").write_text(first)
    (package / "second.py").write_text((tmp_path / "helpers.py").read_text())
    (tmp_path / "helpers.py").write_text(helpers)
    assert code_size(impl).lines == before + lines
    hashed = source_hash(impl)
    (package / "second.py").write_text("def blocks(x):\n    return (12,)\n")
    assert source_hash(impl) != hashed
    (tmp_path / "helpers.py").write_text("def blocks(x):\n    return (1,)\n")


def test_the_hash_covers_an_op_s_inputs_and_cost_and_not_its_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op, impl = registry.get_op("softmax"), registry.implementations("softmax")[0]
    before = source_hash(impl)

    def hash_with(**changes: object) -> str:
        monkeypatch.setattr(registry, "get_op", lambda name: replace(op, **changes))
        return source_hash(impl)

    assert hash_with(tolerance=lambda case: Tolerance(1e9)) == before
    assert hash_with(cost=lambda case: Cost(1, 1, 1)) != before
    assert hash_with(make_inputs=lambda case, generator, device: ()) != before


@for_each(
    "before, after, moves",
    [
        ("{0}", "{0}# a comment\n", False),
        ("{0}", "\n\n{0}", False),
        ("{0}", "'A docstring.'\n{0}", False),
        ("{0}", '"""A docstring\nof two lines."""\n{0}\n\n"""Of an attribute."""\n', False),
        ("{0}WIDTH =    64\n", "{0}WIDTH = 64   # bytes\n", False),
        ("{0}", '{0}"""One"""; WIDTH = 64\n', True),
        ("{0}", '{0}TEXT = """\n# none\n"""\n', True),
        ("{0}", "{0}def more(): ...\n", True),
        ("{0}", "{0}    # indented\n    return (2,)\n", True),
        ("{0}", "{0}WIDTH = 64\n", True),
        ("{0}WIDTH = 64\n", "{0}WIDTH = 65\n", True),
        ("{0}    WIDTH = 64\n", "{0}WIDTH = 64\n", True),
    ],
)
def test_the_hash_moves_with_python_s_code_alone(
    mine: dict[str, Implementation], tmp_path: Path, before: str, after: str, moves: bool
) -> None:
    helpers = tmp_path / "helpers.py"
    text, hashes = helpers.read_text(), set()
    for change in (before, after):
        helpers.write_text(change.format(text))
        hashes.add(source_hash(mine["triton.mine"]))
    helpers.write_text(text)
    assert len(hashes) == 1 + moves


@pytest.mark.parametrize(
    ("label", "before", "after", "moves"),
    [
        ("cupy.online", "", "// a comment\n/* one\nof two lines */\n", False),
        ("cupy.online", "", "#define MORE 1  // why\n__global__ void more_kernel() {}\n", False),
        ("cupy.online", "constexpr int WARP = 32;", "constexpr int WARP = 16 + 16;", True),
        ("cupy.online", "", "__device__ int warp_reduce(int x, int y) { return x; }\n", True),
        ("cupy.online", "__CUDA_ARCH__ == 800 ||", "", True),
        ("torch.eager", "constexpr int WARP = 32;", "constexpr int WARP = 16 + 16;", False),
    ],
    ids=["a comment", "another kernel", "a constant", "an overload", "a condition", "no kernel"],
)
def test_the_hash_moves_with_what_a_kernel_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, before: str, after: str, moves: bool
) -> None:
    (impl,) = registry.implementations("softmax", [label])
    elsewhere = tmp_path / "kernels"
    shutil.copytree(KERNELS, elsewhere)
    for module in (sources_module, cpp):
        monkeypatch.setattr(module, "KERNELS", elsewhere)
    old = source_hash(impl)
    common = elsewhere / "common.cuh"
    text = common.read_text()
    assert before in text
    common.write_text(text.replace(before, after) if before else text + after)
    assert (source_hash(impl) != old) == moves


LEVEL = """

@implementation("matmul", "triton.more", level="naive")
def more(a, b):
    return tiled(a, b)
"""
PRINTED = """
from compare.code_size.hashes import source_hash
from compare.registry import implementations
print(*(f"{impl.label}={source_hash(impl)}" for impl in implementations("matmul")))
"""


@pytest.mark.thorough
def test_another_level_leaves_the_others_hashes_alone(tmp_path: Path) -> None:
    copy_of_code(tmp_path)

    def hashes() -> dict[str, str]:
        command = [sys.executable, "-c", PRINTED]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return dict(word.split("=") for word in done.stdout.split())

    before, file = hashes(), tmp_path / "triton_impl" / "matmul.py"
    text = file.read_text()
    file.write_text(text + LEVEL)
    after = hashes()
    assert after.pop("triton.more")
    assert after == before
    file.write_text(text.replace("BLOCK_K * stride_bk", "stride_bk * BLOCK_K"))
    assert {label for label, value in hashes().items() if value != before[label]} == {
        *("triton.tiled", "triton.grouped", "triton.autotuned", "triton.skinny")
    }


def test_some_implementation_reaches_each_declaration_of_the_kernels() -> None:
    """Else it is dead, or the hash overlooks it."""
    declared: dict[str, str] = {}
    reached: set[str] = set()
    for op in (*registry.op_names(), *registry.collective_names()):
        for impl in registry.implementations(op, ["cupy.*"]):
            for source, names in hashes_module.kernels_of(impl).items():
                unit = cpp.unit_of(source)
                assert set(names) <= unit.named.keys(), impl.label
                reached |= {piece.text for piece in unit.reachable(names)}
                declared |= {one.piece.text: f"{one.piece.file}: {one.names}" for one in unit.declarations}
    missing = [where for text, where in declared.items() if text not in reached]
    assert [where for where in missing if "REGISTERS_PER_BLOCK" not in where] == []  # a static_assert's
