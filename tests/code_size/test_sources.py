"""The hash of an implementation changes with its code, and with nothing else."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from compare import registry
from compare.code_size import sources as sources_module
from compare.code_size.hashes import source_hash
from compare.code_size.sources import KERNELS, cpp_file, sources
from compare.model.op import Cost, Implementation, Tolerance
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
    ("more", "moves"),
    [("// a comment\n/* one\nof two lines */\n", False), ("#define MORE 1  // why\n", True)],
)
def test_the_hash_moves_with_kernels_code_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, moves: bool
) -> None:
    cupy = next(i for i in registry.implementations("vector_add") if i.route == "cupy")
    monkeypatch.setattr(sources_module, "_with_imports", lambda path: {path})
    elsewhere = tmp_path / "kernels"
    shutil.copytree(KERNELS, elsewhere)
    monkeypatch.setattr(sources_module, "KERNELS", elsewhere)
    before = source_hash(cupy)
    with (elsewhere / "common.cuh").open("a") as file:
        file.write(more)
    assert (source_hash(cupy) != before) == moves
