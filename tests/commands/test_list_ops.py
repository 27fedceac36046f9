"""The list of what there is."""

from __future__ import annotations

import pytest

from compare import cli, registry
from compare.command_line.status import SUCCESS

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
