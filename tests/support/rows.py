"""Every registered implementation, and one by its label."""

from __future__ import annotations

import pytest

from compare import registry
from compare.spec import Implementation

EVERY = [impl for op in registry.op_names() for impl in registry.implementations(op)]
every_implementation = pytest.mark.parametrize("impl", EVERY, ids=lambda impl: f"{impl.op}-{impl.label}")


def labelled(op: str, label: str) -> Implementation:
    """The implementation of ``op`` with this label."""
    (found,) = registry.implementations(op, [label])
    return found
