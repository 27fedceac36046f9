"""Our cold GPU times beside those of two other instruments: nvbench and Nsight Compute."""

from __future__ import annotations

import functools
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compare import registry
from compare.device import l2_bytes
from compare.registry import ROOT
from compare.timing.stopwatch import Call, CudaStopwatch
from tools.docs.crosscheck import KERNELS, durations_us, nvbench_us, profiled

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


def configurations() -> Iterator[tuple[str, Call]]:
    """A name, and a call that makes its inputs when it is needed."""
    run = {impl.label: impl.run for impl in registry.implementations("vector_add", LABELS)}
    for power in filter(fits, POWERS):
        for label in LABELS:
            yield f"{label} 2^{power}", lambda label=label, power=power: run[label](*made(power))


def cold_us(watch: CudaStopwatch, label: str, call: Call, dirty_bytes: int) -> float:
    call()
    return statistics.median(watch.cold(label, call, dirty_bytes).gpu_us for _ in range(SAMPLES))


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_cold_times_are_those_of_nvbench(card: torch.device) -> None:
    """Its flush writes as much as the L2 holds, and so does ours here."""
    pytest.importorskip("cuda.bench")
    watch = CudaStopwatch(card)
    apart = []
    calls = dict(configurations())
    theirs = nvbench_us({name: [call] for name, call in calls.items()})
    for name, call in calls.items():
        ours = cold_us(watch, name, call, l2_bytes(card))
        print(f"{name}: {ours:.2f} us, nvbench {theirs[name]:.2f} us")
        if not within_the_bar(ours, theirs[name]):
            apart.append((name, ours, theirs[name]))
    assert not apart


# --------------------------------------------------------------------------- Nsight Compute

PROFILED = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import torch
from test_crosscheck import SAMPLES, configurations
for _, call in configurations():
    for _ in range(1 + SAMPLES // 3):
        call()
torch.cuda.synchronize()
"""
EACH = 1 + SAMPLES // 3


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
    """Our cold time, behind a flush that leaves no dirty lines, minus that of an empty pair of events."""
    if shutil.which("ncu") is None:
        pytest.skip("ncu, of Nsight Compute, is not on PATH")
    script = PROFILED.format(root=str(ROOT), tests=str(Path(__file__).parent))
    try:
        theirs = profiled(script, options=("--kernel-name", "regex:vector_add"))
    except PermissionError as error:
        pytest.skip(str(error))
    watch = CudaStopwatch(card)
    apart = []
    asked = list(configurations())
    assert len(theirs) == EACH * len(asked)
    for at, (name, call) in enumerate(asked):
        empty_us = statistics.median(watch.empty_us() for _ in range(SAMPLES))
        ours = cold_us(watch, name, call, 0) - empty_us
        other = statistics.median(theirs[EACH * at + 1 : EACH * (at + 1)])  # the first loads code
        print(f"{name}: {ours:.2f} us, ncu {other:.2f} us")
        if not within_the_bar(ours, other):
            apart.append((name, ours, other))
    assert not apart


def test_the_kernels_compared_exist() -> None:
    assert {impl.label for impl in registry.implementations("vector_add", LABELS)} >= set(LABELS)
    for op, label in KERNELS.items():
        assert registry.implementations(op, [label])
