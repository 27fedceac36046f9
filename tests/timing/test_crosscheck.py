"""Our cold GPU times beside those of two other instruments: nvbench and Nsight Compute."""

from __future__ import annotations

import csv
import functools
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from compare import registry
from compare.registry import ROOT
from compare.spec import Estimate, UsageError
from compare.timing import nvbench
from compare.timing.stopwatch import Call, CudaStopwatch

LABELS = ("triton.blocked", "cupy.vectorized")
POWERS = (10, 14, 18, 20, 22, 24, 26, 28, 29, 30)
"""2^N elements: 2 us to 5 ms on an H100."""
SAMPLES = 31


def fits(power: int) -> bool:
    """Whether two fp32 inputs and an output fit twice into the GPU's memory."""
    return 24 << power < torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory


def within_the_bar(ours: float, theirs: float) -> bool:
    """2% above 20 us, half a microsecond below."""
    return abs(ours - theirs) <= (0.02 * theirs if theirs >= 20 else 0.5)


@functools.lru_cache(maxsize=1)  # the largest take 8 GB
def made(power: int) -> tuple[torch.Tensor, torch.Tensor]:
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(power)
    x, y = (torch.randn(1 << power, device=device, generator=generator) for _ in range(2))
    return x, y


def configurations() -> Iterator[tuple[str, int, Call]]:
    run = {impl.label: impl.run for impl in registry.implementations("vector_add", LABELS)}
    for power in filter(fits, POWERS):
        for label in LABELS:
            yield label, power, partial(on_made, run[label], power)


def on_made(run: Callable[..., torch.Tensor], power: int) -> torch.Tensor:
    return run(*made(power))


def cold_us(watch: CudaStopwatch, label: str, call: Call) -> float:
    call()
    return statistics.median(watch.cold(label, call).gpu_us for _ in range(SAMPLES))


@pytest.mark.parametrize(
    ("ours", "theirs", "fine"),
    [(3.9, 3.5, True), (3.9, 3.3, False), (101.9, 100.0, True), (102.1, 100.0, False), (19.0, 19.6, False)],
)
def test_the_bar(ours: float, theirs: float, fine: bool) -> None:
    assert within_the_bar(ours, theirs) == fine


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_cold_times_are_those_of_nvbench(card: torch.device) -> None:
    try:
        nvbench.load()
    except UsageError as error:
        pytest.skip(str(error))
    watch = CudaStopwatch(card)
    apart = []
    calls = {f"{label} 2^{power}": call for label, power, call in configurations()}
    theirs = nvbench.cold_us({name: [call] for name, call in calls.items()}, card)
    for name, call in calls.items():
        ours, other = cold_us(watch, name, call), theirs[name]
        assert isinstance(other, Estimate), other
        print(f"{name}: {ours:.2f} us, nvbench {other.median:.2f} us")
        if not within_the_bar(ours, other.median):
            apart.append((name, ours, other.median))
    assert not apart


# --------------------------------------------------------------------------- Nsight Compute

PROFILED = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import torch
from compare.timing.stopwatch import FLUSH_L2
from test_crosscheck import SAMPLES, configurations
l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
scratch = torch.empty(FLUSH_L2 * l2, dtype=torch.int8, device="cuda")
for label, power, call in configurations():
    for _ in range(1 + SAMPLES // 3):
        scratch.zero_()
        call()
torch.cuda.synchronize()
"""
EACH = 1 + SAMPLES // 3


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


def test_what_ncu_prints_is_read() -> None:
    text = (
        "==PROF== Connected to process 7\n"
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        '"0","vector_add","gpu__time_duration.sum","ns","1,056,000"\n'
        '"1","vector_add","gpu__time_duration.sum","usecond","2.5"\n'
    )
    assert durations_us(text) == [1056.0, 2.5]


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_cold_times_are_those_of_nsight_compute(card: torch.device) -> None:
    """Our cold time minus that of an empty event pair is ncu's duration of the kernel.

    Both sides flush the caches by our own writes, and ncu does not flush: evicting dirty lines is part of our
    time, and a flush that leaves the L2 clean would leave it out.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        pytest.skip("ncu, of Nsight Compute, is not on PATH")
    script = PROFILED.format(root=str(ROOT), tests=str(Path(__file__).parent))
    options = ["--csv", "--metrics", "gpu__time_duration.sum", "--clock-control", "none"]
    options += ["--cache-control", "none", "--print-units", "base", "--kernel-name", "regex:vector_add"]
    command = [ncu, *options, sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    if "ERR_NVGPUCTRPERM" in run.stdout + run.stderr:
        pytest.skip("this user may not read the GPU's counters (ERR_NVGPUCTRPERM)")
    assert run.returncode == 0, run.stdout + run.stderr
    theirs = durations_us(run.stdout)
    watch = CudaStopwatch(card)
    apart = []
    asked = list(configurations())
    assert len(theirs) == EACH * len(asked)
    for at, (label, power, call) in enumerate(asked):
        empty_us = statistics.median(watch.empty_us() for _ in range(SAMPLES))
        ours = cold_us(watch, label, call) - empty_us
        other = statistics.median(theirs[EACH * at + 1 : EACH * (at + 1)])  # the first loads code
        print(f"{label} 2^{power}: {ours:.2f} us, ncu {other:.2f} us")
        if not within_the_bar(ours, other):
            apart.append((label, power, ours, other))
    assert not apart


def test_the_kernels_compared_exist() -> None:
    assert {impl.label for impl in registry.implementations("vector_add", LABELS)} >= set(LABELS)
