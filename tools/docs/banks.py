"""How the variants of an op use shared memory's banks, as a table for documents."""

from __future__ import annotations

import importlib

from compare.model.op import Op, UsageError
from compare.report import markdown
from compare.report.tables import NOTHING, Table
from compare.resources.banks import Access, SharedAccesses, conflicts, times_served

_WIDTHS = (4, 2)
"""Bytes of an element."""


def block(op: Op) -> str:
    """Every access to shared memory that the op's launches declare, counted.

    Raises:
        UsageError: they declare none.
    """
    declared: SharedAccesses | None = getattr(
        importlib.import_module(f"cuda_impl.launches.{op.name}"), "shared_accesses", None
    )
    if declared is None:
        raise UsageError(
            f"<!-- generated: banks {op.name} -->: cuda_impl/launches/{op.name}.py has no shared_accesses"
        )
    rows = [
        (variant, *cells)
        for itemsize in _WIDTHS
        for variant, accesses in declared(itemsize).items()
        for cells in ([_cells(itemsize, a) for a in accesses] or [(str(8 * itemsize), *[NOTHING] * 5)])
    ]
    headers = (
        *("algorithm", "bits an element", "access", "bytes a lane", "wavefronts", "without conflicts"),
        "bank conflicts",
    )
    title = "What an access of a warp to shared memory takes, by arithmetic on its addresses"
    return markdown.table(Table(title, headers, tuple(rows), text_columns=("access",)))


def _cells(itemsize: int, access: Access) -> tuple[str, ...]:
    turns, more = times_served(access), conflicts(access)
    return str(8 * itemsize), access.kind, *map(str, (access.lane_bytes, turns, turns - more, more))
