"""The list of what there is."""

from __future__ import annotations

import sys

import pytest

from compare import cli, registry
from compare.command_line.status import SUCCESS
from loaded_files import own_registry

OPS = registry.op_names()


def test_list_shows_everything_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == SUCCESS
    printed = capsys.readouterr().out
    for name in OPS:
        assert f"{name}  {registry.get_op(name).signature}" in printed
        for impl in registry.implementations(name):
            assert impl.label in printed


def test_list_shows_the_ops_that_have_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--only", "*.gluon"]) == SUCCESS
    printed = capsys.readouterr().out
    assert "layer_norm" in printed
    assert "vector_add" not in printed


def test_a_file_with_an_op_is_not_run_for_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    file = "tests/support/one_file_op.py"
    with own_registry():
        assert cli.main(["list", "--only", "triton.blocked", "--load", file]) == SUCCESS
        assert "scale_shift" not in registry.op_names()
    printed = capsys.readouterr().out
    assert f"scale_shift  of {file}, which is not run for a list" in printed
    assert not [name for name in sys.modules if name.startswith("_loaded_one_file_op")]
