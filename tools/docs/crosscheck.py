"""Our cold times beside those of two other instruments: ``python -m tools.docs.crosscheck``, on a GPU.

Five kernels of different kinds are timed as ``python -m compare OP`` does it, in their worker processes.
nvbench and Nsight Compute time the same kernels.  `RESULT` keeps the medians; docs/measuring.md shows them.
"""

from __future__ import annotations

import csv
import importlib
import itertools
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch

from compare import registry
from compare.device import l2_bytes
from compare.model.result import CaseComparison, Comparison
from compare.records import archive
from compare.records.encoding import write_whole
from compare.registry import ROOT
from compare.report import markdown
from compare.report.tables import Table
from compare.timing.stopwatch import Call, CudaStopwatch, how_many_sets

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
from tools.docs.crosscheck import calls_of
call = calls_of(sys.argv[1], sys.argv[2], 1)[0]
call()  # loads its code
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for _ in range({CALLS}):
    call()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
"""


def calls_of(op_name: str, label: str, most: int = 8) -> list[Call]:
    """Calls of an implementation on the op's default case: one for each set of inputs, at most ``most``."""
    op = registry.get_op(op_name)
    (impl,) = registry.implementations(op_name, [label])
    case = op.cases.default
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(0)
    first = op.make_inputs(case, generator, device)
    count = min(most, how_many_sets(sum(x.untyped_storage().nbytes() for x in first), device))
    sets = [first, *(op.make_inputs(case, generator, device) for _ in range(count - 1))]
    return [impl.given(op.options(case)).ready(op, inputs) for inputs in sets]


def nvbench_us(calls: Mapping[str, Sequence[Call]]) -> dict[str, float]:
    """Median cold times by nvbench, in us, which runs only once in a process.

    It samples one call after another, on its own stream, with the L2 flushed before each sample.

    Args:
        calls: by name, the same call on several sets of inputs, which rotate.

    Raises:
        ImportError: ``pip install 'cuda-bench[cu13]>=0.3'``.
        RuntimeError: nvbench has run in this process before, or has no samples of a call.
    """
    bench = importlib.import_module("cuda.bench")
    results = importlib.import_module("cuda.bench.results")
    for name, each in calls.items():
        made = bench.register(partial(_benchmark, itertools.cycle(each).__next__))
        made.set_name(name)
        made.set_min_samples(50)
        made.set_timeout(1.0)  # at 1 us the clock's resolution keeps nvbench's criterion from being met
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "nvbench.json"
        options = ["--quiet", "--devices", str(torch.cuda.current_device()), "--jsonbin", str(out)]
        bench.run_all_benchmarks([sys.executable, *options])
        states = {name: state for name in calls for state in results.BenchmarkResult.from_json(out)[name]}
    if missing := {name: state.skip_reason for name, state in states.items() if not state.samples}:
        raise RuntimeError(f"nvbench has no samples: {missing}")
    return {name: 1e6 * statistics.median(state.samples) for name, state in states.items()}


def _benchmark(rotating: Callable[[], Call], state: Any) -> None:
    def launch(launched: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(launched.get_stream().addressof())):
            rotating()()

    launch(state)  # a stream's first call sets things up: not behind nvbench's blocking kernel
    torch.cuda.synchronize()
    state.exec(launch, batched=False)


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


def compared(op: str, label: str) -> Comparison:
    """What ``python -m compare`` finds on the op's default case."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "compare", op, "--only", label, "--json", str(path)]
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
    by_nvbench = nvbench_us({op: calls_of(op, label) for op, label in KERNELS.items()})
    torch.cuda.empty_cache()
    kernels = {}
    for op, label in KERNELS.items():
        (case,) = compared(op, label).cases
        assert case.ceilings is not None
        dirty_bytes = min(case.cost.written_bytes, l2_bytes(device))
        kernels[f"{op} {label}"] = {
            "case": str(case.case),
            "ours_us": round(_median_us(case, label), 2),
            "nvbench_us": round(by_nvbench[op], 2),
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
