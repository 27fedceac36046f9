"""The sources that the page begins with: cut out of the project's files, they are right as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare import registry
from compare.serve import starters
from compare.worker import user_files
from loops import for_each
from processes import command
from test_house import statuses_in

ROWS = {"torch": "torch.mine", "triton": "triton.mine", "cuda": "cupy.mine"}
FEW = ("histogram", "softmax", "transpose")


@pytest.mark.thorough
@for_each("op", registry.op_names())
def test_every_starter_registers_its_row(op: str, tmp_path: Path):
    for way, every in starters.starters(op).items():
        for each in every:
            file = tmp_path / "mine.py"
            file.write_text(starters.text(op, way, each.label))
            (declared,) = user_files.declared(str(file), op)
            assert (declared.label, declared.level) == (ROWS[way], each.level), each.label


@pytest.mark.thorough
@pytest.mark.parametrize(
    "op",
    [pytest.param(op, marks=[] if op in FEW else [pytest.mark.exhaustive]) for op in registry.op_names()],
)
def test_every_starter_is_right(op: str, tmp_path: Path):
    """All in one run, each with a label of its own; those that need a GPU are not run."""
    words: list[object] = []
    for way, every in starters.starters(op).items():
        for each in (each for each in every if each.label != "torch.compile"):  # takes long to start
            label = f"{ROWS[way]}_{each.label.replace('.', '_')}"
            file = tmp_path / f"{label.replace('.', '_')}.py"
            file.write_text(starters.text(op, way, each.label).replace(f'"{ROWS[way]}"', f'"{label}"'))
            words += ["--load", file, "--only", label]
    record = tmp_path / "run.json"
    done = command(op, *words, "--no-hard-inputs", "--no-resources", "--json", record)
    statuses = [found for label, found in statuses_in(record).items() if ".mine" in label]
    assert len(statuses) == words.count("--load")
    assert {"ok"} <= set().union(*statuses) <= {"ok", "unavailable"}, done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("words", ["transpose cuda cupy.shared", "softmax cuda cupy.split"])
def test_a_starter_is_right_on_hard_inputs(words: str, tmp_path: Path):
    """In 16 bits too, with every access of its threads watched."""
    op, way, label = words.split()
    file, record = tmp_path / "mine.py", tmp_path / "run.json"
    file.write_text(starters.text(op, way, label))
    done = command(op, "--load", file, "--only", ROWS[way], "--no-resources", "--json", record)
    assert statuses_in(record)[ROWS[way]] == {"ok"}, done.stdout + done.stderr


def test_a_starter_has_what_it_needs_and_no_more():
    text = starters.text("softmax", "cuda", "cupy.onepass")
    assert "softmax_onepass_kernel<{T}" in text
    assert "ONEPASS_BLOCKS" in text  # a constant beside the kernel
    assert "softmax_online_kernel" not in text
    assert "@variant" not in text
    assert "int32" not in text  # imported by the file, for another level
    text = starters.text("softmax", "triton", "triton.online")
    assert "def finite_shift" in text
    assert "gluon" not in text


def test_the_first_is_an_example():
    every = starters.starters("softmax")
    assert (every["triton"][0].label, every["cuda"][0].label) == (starters.EXAMPLE, starters.EXAMPLE)
    assert [each.label for each in every["torch"]] == ["torch.naive", "torch.eager", "torch.compile"]
