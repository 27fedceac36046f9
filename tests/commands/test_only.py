"""``--only``: a pattern that matches nothing is a warning beside one that does."""

from __future__ import annotations

import pytest

from compare.command_line import options
from loops import for_each

LABELS = ["torch.eager", "triton.online", "cupy.online"]


@for_each(
    "only, warning",
    [
        ([], ""),
        (["*.online"], ""),
        (
            ["triton.onlin", "cupy.*"],
            "no implementation 'triton.onlin': did you mean triton.online?; the",
        ),
    ],
)
def test_a_pattern_without_a_match_warns(
    only: list[str], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options.check_only(only, LABELS)
    said = capsys.readouterr().err
    assert warning in said
    assert said.count("\n") == bool(warning)


def test_the_ops_that_have_one_of_the_patterns_are_selected(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["softmax", "vector_add", "transpose"]
    selected = options.select(names, ["cupy.online", "cupy.scalar"])
    assert [op.name for op in selected] == ["softmax", "vector_add"]
    assert capsys.readouterr().err == ""
