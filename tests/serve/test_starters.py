"""The sources that the page begins with: cut out of the project's files, they are right as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from compare import registry
from compare.serve import starters
from compare.worker import user_files
from loops import for_each
from processes import command
from test_house import statuses_in

ROWS = {"torch": "torch.mine", "triton": "triton.mine", "cuda": "cupy.mine"}
RUN = (
    *("softmax triton example", "softmax triton triton.split", "softmax cuda example"),
    *("softmax cuda cupy.onepass", "transpose triton triton.naive", "histogram cuda cupy.warps"),
    *("vector_add triton triton.blocked", "matmul cuda cupy.shared", "reduce_sum cuda cupy.last_block"),
    *(
        "stream_copy cuda cupy.hinted",
        "attention_backward cuda cupy.naive",
        "layer_norm cuda cupy.onepass",
    ),
)


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
@pytest.mark.parametrize("words", RUN)
def test_a_starter_is_right(words: str, tmp_path: Path, device: torch.device):
    op, way, label = words.split()
    file, record = tmp_path / "mine.py", tmp_path / "run.json"
    file.write_text(starters.text(op, way, label))
    only = ("--only", ROWS[way], "--no-hard-inputs", "--no-resources")
    done = command(op, "--load", file, *only, "--json", record)
    assert statuses_in(record)[ROWS[way]] == {"ok"}, done.stdout + done.stderr
    assert device


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
