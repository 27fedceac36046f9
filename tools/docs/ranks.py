"""What is on record of an op of several GPUs, for its page: times, bandwidths, and what the levels gain."""

from __future__ import annotations

from pathlib import Path

from compare import registry
from compare.collectives.results import RankedCase, RankedComparison, recorded
from compare.report import collectives
from compare.report.collectives import size

SMALL, LARGE = 512 << 10, 64 << 20
"""Bytes of x: latency is compared below, bandwidth from there."""
_WIDTH = 120


def block(op: str, results: Path) -> str:
    """For each record the table with all cases, and the best of each variant against the baseline."""
    known = recorded(op, results)
    if not known:
        return "Nothing is recorded yet."
    return "\n\n".join(map(_of, known))


def _of(one: RankedComparison) -> str:
    shown = []
    for dtype in collectives.dtypes(one):
        lines = collectives.table(one, dtype, _WIDTH, True, whole=False)
        shown.append("```text\n" + "\n".join(lines) + "\n```")
    head = f"**{one.gpus} x {one.environment.device}, {one.created[:10]}: in a CUDA graph, µs, then GB/s**"
    copy = f"All GPUs copying from a neighbour at once get {one.peer_copy_gbs:.0f} GB/s each."
    sentences = [text for route in ("triton", "cupy", "pybind") for text in _against(one, route)]
    return "\n".join([head, "", "\n\n".join(shown), "", copy, *sentences])


def _against(one: RankedComparison, route: str) -> list[str]:
    """How a route's levels do against the baseline, in sentences."""
    baseline = registry.get_op(one.op).baseline
    small = [case for case in one.cases if case.x_bytes <= SMALL]
    large = [case for case in one.cases if case.x_bytes >= LARGE]
    bandwidth = _range(large, f"{route}.two_shot", baseline)
    sentences = []
    for variant in ("one_shot", "low_latency"):
        latency, end = _range(small, baseline, f"{route}.{variant}"), size(SMALL)
        if latency:
            sentences.append(f"`{route}.{variant}` takes {latency} of `{baseline}`'s time up to {end}.")
    if bandwidth:
        sentences.append(f"`{route}.two_shot` has {bandwidth} of its bandwidth from {size(LARGE)} on.")
    return sentences


def _range(cases: list[RankedCase], below: str, above: str) -> str:
    """``0.61 to 0.70``: the time of ``above`` over that of ``below``."""
    ratios = []
    for case in cases:
        times = {row.label: row.graph_us.median for row in case.rows if row.graph_us}
        if below in times and above in times:
            ratios.append(times[above] / times[below])
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
