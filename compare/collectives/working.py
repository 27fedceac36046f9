"""What each rank does: check and time implementations, together with the other ranks.

All ranks do the same in the same order.  What depends on a clock, the first decides for all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import parent_process
from typing import Any

import torch
import torch.distributed as dist

from compare import registry
from compare.code_size.hashes import source_hash
from compare.collectives import judging, timing
from compare.collectives.ranks import Rank, RankOrder
from compare.collectives.results import RankedRow
from compare.device import environment
from compare.model.op import Case
from compare.sandbox.kernel import end_with_parent

Tell = Callable[[tuple[Any, ...]], None]
"""Of the first rank: ``("machine", environment, GB/s)``, ``("case", case)``, ``("step", text)`` and
``("row", case, row)``."""


def work(rank: int, ranks: int, store: str, order: RankOrder, tell: Tell) -> None:
    """The life of a rank, in a process of its own.

    Args:
        rank: its number, and its GPU's.
        ranks: how many there are.
        store: the file by which they meet.
        order: what to do.
        tell: is called by the first rank.
    """
    end_with_parent()
    parent = parent_process()
    if parent and not parent.is_alive():  # it was killed while this process imported PyTorch
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this host
    device = torch.device("cuda", rank) if order.on_gpu else torch.device("cpu")
    if order.on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if order.on_gpu else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        device_id=device if order.on_gpu else None,
    )
    try:
        this = Rank(rank, ranks, store, device, order)
        report = tell if rank == 0 else lambda _: None
        report(("machine", environment(device), timing.copied_gbs(this) if order.on_gpu else 0.0))
        for text in order.cases:
            report(("case", text))
            _compare(this, Case.parse(text, this.op), report)
    finally:
        dist.destroy_process_group()


def _compare(this: Rank, case: Case, tell: Tell) -> None:
    """Check all implementations on a case, then time those that are correct."""
    rows: dict[str, RankedRow] = {}
    impls = registry.implementations(this.op.name, this.order.only)
    probes = judging.probes_of(this, case)
    for impl in impls:
        tell(("step", f"checking {impl.label} on {case}"))
        status, reason = judging.checked(this, impl, case, probes)
        rows[impl.label] = RankedRow(impl.label, impl.level, status, reason, source_hash=source_hash(impl))
        tell(("row", str(case), rows[impl.label]))
    correct = [impl for impl in impls if rows[impl.label].status == "ok"]
    if this.order.on_gpu and correct and case["N"]:
        tell(("step", f"timing on {case}"))
        for label, (in_graph, back_to_back) in timing.timed(this, correct, case).items():
            row = replace(rows[label], graph_us=in_graph, back_to_back_us=back_to_back)
            tell(("row", str(case), row))
