"""Our cold GPU times are those of nvbench and Nsight Compute: within 2% above 20 us, 0.5 us below."""

from __future__ import annotations

import functools
import shutil
import statistics
from collections.abc import Mapping
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


@functools.lru_cache(maxsize=1)  # the largest take 8 GB
def inputs(power: int) -> tuple[torch.Tensor, torch.Tensor]:
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(power)
    x, y = (torch.randn(1 << power, device=device, generator=generator) for _ in range(2))
    return x, y


def configurations() -> dict[str, Call]:
    """By name, calls that make their inputs when these are needed."""
    run = {impl.label: impl.run for impl in registry.implementations("vector_add", LABELS)}
    return {
        f"{label} 2^{power}": lambda label=label, power=power: run[label](*inputs(power))  # type: ignore[misc]
        for power in filter(fits, POWERS)
        for label in LABELS
    }


def assert_equal_times(theirs_us: Mapping[str, float], dirty_bytes: int, subtracted: bool) -> None:
    """Our cold times are those, with the time of an empty pair of events ``subtracted`` or not."""
    watch = CudaStopwatch(torch.device("cuda", torch.cuda.current_device()))
    apart = []
    for name, call in configurations().items():
        call()
        empty_us = statistics.median(watch.empty_us() for _ in range(SAMPLES)) if subtracted else 0.0
        samples = [watch.cold(name, call, dirty_bytes).gpu_us for _ in range(SAMPLES)]
        ours, theirs = statistics.median(samples) - empty_us, theirs_us[name]
        print(f"{name}: {ours:.2f} us, {theirs:.2f} us")
        if abs(ours - theirs) > (0.02 * theirs if theirs >= 20 else 0.5):
            apart.append((name, ours, theirs))
    assert not apart


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_cold_times_are_those_of_nvbench(card: torch.device) -> None:
    """Its flush writes as much as the L2 holds, and so does ours here."""
    pytest.importorskip("cuda.bench")
    theirs = nvbench_us({name: [call] for name, call in configurations().items()})
    assert_equal_times(theirs, l2_bytes(card), subtracted=False)


EACH = 1 + SAMPLES // 3
PROFILED = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
import torch
from test_crosscheck import EACH, configurations
for call in configurations().values():
    for _ in range(EACH):
        call()
torch.cuda.synchronize()
"""


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_cold_times_are_those_of_nsight_compute(card: torch.device) -> None:
    """Its cache is clean, as behind our flush; an empty pair of events is no part of its times."""
    if shutil.which("ncu") is None:
        pytest.skip("ncu, of Nsight Compute, is not on PATH")
    try:
        durations = profiled(PROFILED, options=("--kernel-name", "regex:vector_add"))
    except PermissionError as error:
        pytest.skip(str(error))
    names = list(configurations())
    assert len(durations) == EACH * len(names)
    by_name = {name: durations[EACH * at + 1 : EACH * (at + 1)] for at, name in enumerate(names)}
    # The first one loads code.
    assert_equal_times({name: statistics.median(us) for name, us in by_name.items()}, 0, subtracted=True)


def test_what_ncu_prints_is_read() -> None:
    text = (
        "==PROF== Connected to process 7\n"
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        '"0","vector_add","gpu__time_duration.sum","ns","1,056,000"\n'
        '"1","vector_add","gpu__time_duration.sum","usecond","2.5"\n'
    )
    assert durations_us(text) == [1056.0, 2.5]


def test_the_kernels_compared_exist() -> None:
    assert {impl.label for impl in registry.implementations("vector_add", LABELS)} >= set(LABELS)
    for op, label in KERNELS.items():
        assert registry.implementations(op, [label])
