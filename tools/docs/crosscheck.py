"""Our cold times beside those of two other instruments: ``python -m tools.docs.crosscheck``, on a GPU.

Five kernels of different kinds are timed as ``python -m compare OP`` does it, in their worker processes.
nvbench and Nsight Compute time the same kernels.  `RESULT` keeps the medians; docs/measuring.md shows them.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from compare.device import l2_bytes
from compare.records import archive
from compare.records.encoding import write_whole
from compare.registry import ROOT
from compare.report import markdown
from compare.report.tables import Table
from compare.spec import CaseComparison, Comparison
from compare.timing.stopwatch import CudaStopwatch

RESULT = ROOT / "results" / "crosscheck.json"
KERNELS = {
    "reduce_sum": "cupy.vectorized",
    "cross_entropy": "cupy.online",
    "transpose": "cupy.vectorized",
    "softmax": "cupy.onepass",
    "matmul": "cupy.wgmma",
}
"""Kernels that only read, that read and write, and one bound by arithmetic."""
CALLS = 10

_PROFILED = f"""
import sys, torch
from compare import registry
op = registry.get_op(sys.argv[1])
(impl,) = registry.implementations(op.name, [sys.argv[2]])
case = op.cases.default
device = torch.device("cuda", torch.cuda.current_device())
inputs = op.make_inputs(case, torch.Generator(device).manual_seed(0), device)
call = impl.given(op.options(case)).ready(op, inputs)
call()  # loads its code
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for _ in range({CALLS}):
    call()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
"""


def durations_us(text: str) -> list[float]:
    """``gpu__time_duration`` of every kernel, in order, from what ``ncu --csv`` prints."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    factor = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    found = []
    for row in csv.DictReader(lines[begin:]):
        if row.get("Metric Name") == "gpu__time_duration.sum":
            value = re.sub(r"[^\d.]", "", row["Metric Value"])
            found.append(float(value) * factor[row["Metric Unit"]])
    return found


def profiled(script: str, *arguments: str, options: tuple[str, ...] = ()) -> list[float]:
    """Duration of every profiled kernel of a Python script, in us, each with its caches invalidated.

    Raises:
        PermissionError: this user may not read the GPU's counters.
        RuntimeError: the script or ncu failed; with what was printed.
    """
    command = ["ncu", "--csv", "--metrics", "gpu__time_duration.sum", "--clock-control", "none"]
    command += ["--cache-control", "all", "--print-units", "base", *options, sys.executable, "-c", script]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=800)
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        raise PermissionError("this user may not read the GPU's counters (ERR_NVGPUCTRPERM)")
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return durations_us(done.stdout)


def ncu_us(op: str, label: str) -> float:
    """Time of a call by Nsight Compute: the sum of its kernels, median over calls."""
    found = profiled(_PROFILED, op, label, options=("--profile-from-start", "off"))
    each = len(found) // CALLS
    return statistics.median(sum(found[at : at + each]) for at in range(0, len(found), each))


def compared(op: str, label: str, *more: str) -> Comparison:
    """What ``python -m compare`` finds on the op's default case."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "compare", op, "--only", label, "--json", str(path), *more]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (found,) = archive.read(path)
    return found


def _median_us(case: CaseComparison, label: str) -> float:
    (row,) = (row for row in case.rows if row.label == label)
    assert row.timing is not None
    assert row.timing.cold_us is not None
    return row.timing.cold_us.median


def measured() -> dict[str, Any]:
    """The medians of all `KERNELS`, in us, with device and date."""
    device = torch.device("cuda", torch.cuda.current_device())
    watch = CudaStopwatch(device)
    empty_us = statistics.median(watch.empty_us() for _ in range(31))
    kernels = {}
    for op, label in KERNELS.items():
        (case,) = compared(op, label).cases
        (by_nvbench,) = compared(op, label, "--timer", "nvbench").cases
        assert case.ceilings is not None
        dirty_bytes = min(case.cost.written_bytes, l2_bytes(device))
        kernels[f"{op} {label}"] = {
            "case": str(case.case),
            "ours_us": round(_median_us(case, label), 2),
            "nvbench_us": round(_median_us(by_nvbench, label), 2),
            "ncu_us": round(ncu_us(op, label), 2),
            "write_back_us": round(dirty_bytes / case.ceilings.copy_gbs / 1e3, 2),
        }
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {
        "device": torch.cuda.get_device_name(device),
        "created": created,
        "empty_us": round(empty_us, 2),
        "kernels": kernels,
    }


def block() -> str:
    """The recorded figures as Markdown."""
    if not RESULT.exists():
        return "No cross-check is recorded.\n"
    found = json.loads(RESULT.read_text())
    rows = tuple(
        (
            name,
            k["case"],
            f"{k['ours_us']:.1f}",
            f"{k['ours_us'] - found['empty_us']:.1f}",
            f"{k['ncu_us']:.1f}",
            f"{k['write_back_us']:.1f}",
            f"{k['nvbench_us']:.1f}",
        )
        for name, k in found["kernels"].items()
    )
    headers = (
        "kernel",
        "case",
        "ours, µs",
        "less an empty event pair",
        "ncu (L2 clean)",
        "write-back of its dirty lines",
        "nvbench (L2 all dirty)",
    )
    table = Table("Medians of the same kernels by three instruments", headers, rows, ("kernel", "case"))
    return f"{found['device']}, {found['created'][:10]}:\n\n{markdown.table(table)}\n"


def main() -> None:
    if shutil.which("ncu") is None:
        raise SystemExit("ncu, of Nsight Compute, is not on PATH")
    write_whole(RESULT, json.dumps(measured(), indent=1) + "\n")
    print(block())


if __name__ == "__main__":
    main()
