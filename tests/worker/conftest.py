"""Fixtures for tests of worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch

from compare import registry
from compare.worker.process import Worker


@pytest.fixture
def own_registry() -> Iterator[None]:
    """A registry of its own for each test: what it loads is not found by others."""
    known = {op: dict(labels) for op, labels in registry._implementations.items()}
    known["vector_add"] = {impl.label: impl for impl in registry.implementations("vector_add")}
    with mock.patch.dict(registry._ops), mock.patch.dict(registry._implementations, known):
        yield


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("test", torch.device("cpu"), 60.0)
    yield worker
    worker.close()
