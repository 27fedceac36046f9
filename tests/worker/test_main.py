"""The worker's half, in this process."""

from __future__ import annotations

import dataclasses
import gc
import time

import pytest
import torch

from compare import registry
from compare.spec import Implementation
from compare.timing.stopwatch import CudaStopwatch
from compare.worker.main import _Bench, first_call_ms


@pytest.mark.gpu
@pytest.mark.alone
def test_the_first_call_holds_the_host_time_of_the_call(card: torch.device) -> None:
    def slow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass
        return torch.add(x, y)

    x = torch.ones(1024, device=card)
    assert 20 <= first_call_ms(Implementation("vector_add", "torch.slow", "vendor", slow), (x, x), card) < 60


@pytest.mark.gpu
@pytest.mark.alone
def test_a_captured_call_holds_one_output(card: torch.device) -> None:
    """Workers share the GPU's memory: a worker keeps only what its graph needs."""
    x = torch.zeros(1 << 28, dtype=torch.uint8, device=card)
    (eager,) = registry.implementations("vector_add", ["torch.eager"])
    impl = dataclasses.replace(eager, run=lambda x: x + 1)
    bench = _Bench(impl, [(x,)], (), torch.empty_like(x), CudaStopwatch(card), False)
    gc.enable()  # in a worker it is of no more use
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(card)
    bench.first()
    bench.capture()
    assert x.numel() <= torch.cuda.memory_reserved(card) - before < 1.5 * x.numel()
    assert bench.warm("graph", 0, 1)["problem"] is None
