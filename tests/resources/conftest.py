"""A cache of their own, and a user's file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compare.worker import user_files


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that no earlier run has filled."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(cache))


@pytest.fixture
def load(tmp_path: Path, own_registry: None) -> Callable[..., None]:
    """Registers what a user's file holds, until the test is over."""

    def load(text: str, name: str = "mine.py") -> None:
        file = tmp_path / name
        file.write_text(text)
        user_files.load([str(file)])

    return load
