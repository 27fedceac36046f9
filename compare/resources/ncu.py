"""What Nsight Compute counted in the kernels of one call: its CSV, ``ncu --csv --page raw``.

Source of the metrics' names: Nsight Compute's Kernel Profiling Guide.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from compare.model.op import UsageError
from compare.model.result import KernelCounters
from compare.records.reading import read_text

_HIT_RATE = "lts__t_sector_hit_rate.pct"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
_NOT_WAITING = "selected"
"""Of warps: one that issues an instruction."""

OPTIONS = (
    *("--csv", "--page", "raw", "--force-overwrite", "--profile-from-start", "off"),
    *("--section", "WarpStateStats", "--metrics", f"{_HIT_RATE},{_CONFLICTS},{_WAVEFRONTS}"),
)
"""Of ncu: how it writes, when it profiles, and what."""


def read(path: Path) -> tuple[KernelCounters, ...]:
    """The counters of each kernel in a file, in launch order.

    Raises:
        UsageError: it cannot be read, or has no kernel; with ncu's own error, if it has one.
    """
    lines = read_text(path).splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    # The first line behind the header has units.
    rows = [] if header is None else [*csv.DictReader(lines[header:])][1:]
    kernels = tuple(_counters(row) for row in rows if row.get("Kernel Name"))
    if not kernels:
        errors = [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR==")]
        why = errors[0] if errors else "write it by the command that --ncu prints"
        raise UsageError(f"--ncu {path}: it has no kernel of ncu --csv --page raw: {why}")
    return kernels


def _counters(row: dict[str, str]) -> KernelCounters:
    by_reason = {
        match[1]: value for name in row if (match := _STALL.fullmatch(name)) if (value := _number(row, name))
    }
    total = sum(by_reason.values())
    stalls = {name: value / total for name, value in by_reason.items() if name != _NOT_WAITING}
    hits, conflicts, wavefronts = (_number(row, name) for name in (_HIT_RATE, _CONFLICTS, _WAVEFRONTS))
    return KernelCounters(
        row["Kernel Name"],
        dict(sorted(stalls.items(), key=lambda item: -item[1])),
        None if hits is None else hits / 100,
        None if conflicts is None or wavefronts is None else conflicts / max(wavefronts, 1.0),
    )


def _number(row: dict[str, str], name: str) -> float | None:
    """A figure, which ncu may write with separators of thousands; None: not collected."""
    try:
        return float(row.get(name, "").replace(",", ""))
    except ValueError:
        return None
