"""Every registered implementation, at once or op by op, and one by its label."""

from __future__ import annotations

import case_sets
from compare import registry
from compare.model.op import Implementation
from loops import for_each, for_each_of_group

EVERY = [impl for op in registry.op_names() for impl in registry.implementations(op)]
every_implementation = for_each("impl", EVERY, ids=lambda impl: f"{impl.op} {impl.label}")
"""In one test, for what takes milliseconds each."""
op_by_op = for_each_of_group(
    "impl",
    {op: registry.implementations(op) for op in registry.op_names()},
    ids=lambda impl: impl.label,
    thorough=lambda op: op != case_sets.WHOLE,
)
"""A test an op, of which `make test` runs one."""


def labelled(op: str, label: str) -> Implementation:
    """The implementation of ``op`` with this label."""
    (found,) = registry.implementations(op, [label])
    return found
