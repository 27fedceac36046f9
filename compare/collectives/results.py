"""What a comparison of ways over several GPUs yields, and its record in ``results/``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from compare import registry
from compare.code_size.hashes import source_hash
from compare.model.op import UsageError
from compare.model.result import CodeSize, Environment, Estimate, KernelResources
from compare.records.archive import RESULTS, device_slug, update
from compare.records.encoding import decode, encode
from compare.records.reading import read_text


@dataclass(frozen=True)
class RankedRow:
    """One implementation on one case, on all ranks."""

    label: str
    level: str
    status: Literal["ok", "wrong", "failed", "not run"]
    reason: str = ""
    graph_us: Estimate | None = None
    """Time of a call among several in a CUDA graph, which launch overhead does not reach: of each round the
    slowest rank's."""
    back_to_back_us: Estimate | None = None
    """Time of a call among many without a graph: the larger of launch overhead and GPU time."""
    source_hash: str = ""


@dataclass(frozen=True)
class RankedCase:
    case: str
    x_bytes: int
    """Of a rank's x."""
    bus_bytes: int
    """What a ring would send through each GPU's links: NCCL's tests call its rate bus bandwidth."""
    rows: tuple[RankedRow, ...]


@dataclass(frozen=True)
class RankedComparison:
    op: str
    gpus: int
    environment: Environment
    """Of the first rank."""
    peer_copy_gbs: float
    """GB/s into each GPU when all copy from their neighbours at once: what links allow."""
    created: str
    cases: tuple[RankedCase, ...]
    resources: dict[str, tuple[KernelResources, ...]] = field(default_factory=dict)
    """By label, from compiling for the GPUs' architecture."""
    code_sizes: dict[str, CodeSize] = field(default_factory=dict)
    interrupted: bool = False


def path_of(op: str, gpus: int, device: str, root: Path = RESULTS) -> Path:
    return root / f"{op}-{gpus}x-{device_slug(device)}.json"


def recorded(op: str, root: Path = RESULTS) -> list[RankedComparison]:
    """All that is on record of an op of several GPUs."""
    return [_read(file) for file in sorted(root.glob(f"{op}-*x-*.json"))]


def _read(file: Path) -> RankedComparison:
    """A record; a `UsageError` if it cannot be read."""
    try:
        return decode(RankedComparison, json.loads(read_text(file)))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{file} is damaged, or not written by --record of {file.name.partition('-')[0]}: {error}. "
            "git checkout restores a file of results/"
        ) from None


def changed(comparison: RankedComparison) -> set[str]:
    """Labels of rows whose source is another now."""
    hashes = {impl.label: source_hash(impl) for impl in registry.implementations(comparison.op)}
    rows = [row for case in comparison.cases for row in case.rows]
    return {row.label for row in rows if row.source_hash != hashes.get(row.label)}


def record(comparison: RankedComparison, root: Path = RESULTS) -> Path:
    """Write what was measured over what an earlier run measured; rows and cases that it has not stay."""
    path = path_of(comparison.op, comparison.gpus, comparison.environment.device, root)
    return update(path, lambda: _added(comparison, _read(path).cases if path.exists() else ()))


def _added(comparison: RankedComparison, before: Sequence[RankedCase]) -> str:
    """The text of a record to which a run is added."""
    now = {case.case: case for case in comparison.cases}
    kept = [replace(case, rows=merged(case.rows, now[case.case].rows)) for case in before if case.case in now]
    known = {case.case: case for case in (*before, *comparison.cases, *kept)}
    ordered = sorted(known.values(), key=lambda case: (case.case.rpartition(",")[2], case.x_bytes))
    whole = replace(comparison, cases=tuple(ordered))
    return json.dumps(encode(whole, lean=True), indent=1) + "\n"


def merged(before: Iterable[RankedRow], now: Iterable[RankedRow]) -> tuple[RankedRow, ...]:
    """``now``, but rows without times as they were before, if their source is the same."""
    rows = {row.label: row for row in before}
    for row in now:
        old = rows.get(row.label)
        if row.graph_us or not (old and old.graph_us and old.source_hash == row.source_hash):
            rows[row.label] = row
    return tuple(rows.values())
