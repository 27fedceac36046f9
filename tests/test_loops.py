"""`for_each` tries every value, and fails for each that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from loops import for_each, for_each_of_group


def test_every_value_is_tried_and_every_failure_shown(tmp_path: Path) -> None:
    tried = []

    @for_each("number, square", [(1, 1), (2, 5), (3, 0), (4, -1), (5, 25)])
    def test(number: int, square: int, tmp_path: Path) -> None:
        tried.append(number)
        assert tmp_path.is_dir()
        if square == 0:
            raise RuntimeError("no square")
        if square < 0:
            pytest.fail("said so")
        assert number**2 == square

    shown = r"(?s)^3 of 5 failed.*\(2, 5\):.*assert.*\(3, 0\):.*RuntimeError: no square.*said so"
    with pytest.raises(pytest.fail.Exception, match=shown):
        test(tmp_path=tmp_path)
    assert tried == [1, 2, 3, 4, 5]


def test_it_is_skipped_only_where_every_value_is() -> None:
    @for_each("number", [1, 2])
    def some(number: int) -> None:
        if number == 1:
            pytest.skip("one")

    @for_each("number", [1, 2])
    def every(number: int) -> None:
        pytest.skip("all")

    some()
    with pytest.raises(pytest.skip.Exception, match="all"):
        every()


def test_no_values_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="could not fail"):
        for_each("number", [])


@for_each_of_group("number, square", {"small": [(1, 1), (2, 4)], "large": [(30, 900)]})
def test_a_group_is_a_test_with_its_fixtures(number: int, square: int, tmp_path: Path) -> None:
    assert tmp_path.is_dir()
    assert number**2 == square


def test_groups_can_be_thorough() -> None:
    @for_each_of_group("number", {"often": [1], "seldom": [2]}, thorough=lambda group: group == "seldom")
    def test(number: int) -> None:
        assert number == 1

    (mark,) = test.pytestmark  # type: ignore[attr-defined]
    assert [(param.id, [each.name for each in param.marks]) for param in mark.args[1]] == [
        ("often", []),
        ("seldom", ["thorough"]),
    ]
    test(group=[1])
    with pytest.raises(pytest.fail.Exception, match="1 of 1 failed"):
        test(group=[2])
