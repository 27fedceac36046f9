"""Cached results are read back unchanged, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.records import result_cache


def test_what_is_written_is_read_back(cache: Path) -> None:
    name = result_cache.key("op", "label")
    assert result_cache.read("some", name) is None
    result_cache.write("some", name, {"lines": 3, "words": ["a"]})
    assert result_cache.read("some", name) == {"lines": 3, "words": ["a"]}
    assert result_cache.read("other", name) is None
    assert [path.name for path in (cache / "some").iterdir()] == [f"{name}.json"]


def test_a_key_tells_its_parts_apart() -> None:
    keys = {
        result_cache.key("a", "b"),
        result_cache.key("b", "a"),
        result_cache.key("ab"),
        result_cache.key("a", "b", ""),
    }
    assert len(keys) == 4


def test_what_is_damaged_counts_as_missing(cache: Path) -> None:
    result_cache.write("some", "name", [1, 2])
    (cache / "some" / "name.json").write_text("[1,")
    assert result_cache.read("some", "name") is None


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.write_text("in the way")
    result_cache.write("some", "name", 1)
    assert result_cache.read("some", "name") is None


def test_a_hash_of_code_moves_with_any_of_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(result_cache, "ROOT", tmp_path)
    code = result_cache.code.__wrapped__
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("a = 1\n")
    before = code("*.py")
    assert code("one.py", "*.py") == before
    (tmp_path / "two.py").write_text("a = 2\n")
    assert code("*.py") != before
    assert code("one.py") == code("one.py")
