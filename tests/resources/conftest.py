"""A cache of their own, and a user's file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from compare import registry


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that no earlier run has filled."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(cache))


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers what a user's file holds, until the test is over."""
    registry.implementations("vector_add")  # registered once a process: not into the copy
    known = copy.deepcopy({op: dict(impls) for op, impls in registry._implementations.items()})
    monkeypatch.setattr(registry, "_implementations", known)

    def load(text: str, name: str = "mine.py") -> None:
        file = tmp_path / name
        file.write_text(text)
        registry.load(str(file))

    return load
