"""The fixture ``check_op`` for pytest, which finds this module by its entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from compare.model.result import Agreement


@pytest.fixture(scope="session")
def check_op() -> Callable[..., Agreement]:
    """`compare.check`: ``check_op("softmax", my_softmax)`` fails the test with the screen's WRONG lines."""
    check: Callable[..., Agreement] = importlib.import_module("compare.api").check  # needs PyTorch
    return check
