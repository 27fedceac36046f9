"""The worker's half, in this process."""

from __future__ import annotations

import dataclasses
import gc
import time

import pytest
import torch

from compare import registry
from compare.model.op import Implementation
from compare.timing.stopwatch import CudaStopwatch
from compare.worker.main import _Bench, first_call_ms
from host_stopwatch import HostStopwatch


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
    bench = _Bench(impl, [(x,)], (), {"z": torch.empty_like(x)}, CudaStopwatch(card))
    gc.enable()  # in a worker it is of no more use
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(card)
    bench.first()
    bench.capture()
    assert x.numel() <= torch.cuda.memory_reserved(card) - before < 1.5 * x.numel()
    assert bench.warm("graph", 0, 1).gpu_us > 0


def test_weights_are_prepared_anew_outside_of_timed_calls() -> None:
    """From the present values, at the same addresses: a graph holds them."""
    (fp16,) = registry.implementations("w4a16_matmul", ["torch.fp16"])
    prepared, seen = [0], set()

    def prepare(*weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        prepared[0] += 1
        assert fp16.prepare is not None
        return fp16.prepare(*weights)

    def run(*tensors: torch.Tensor, prepared: tuple[torch.Tensor, ...]) -> torch.Tensor:
        seen.add(prepared[0].data_ptr())
        return fp16.run(*tensors, prepared=prepared)

    op = registry.get_op("w4a16_matmul")
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    inputs, coming = (op.make_inputs(op.cases.smoke[0], generator, cpu) for _ in range(2))
    output = torch.empty(16, 48, dtype=torch.float16)
    impl = dataclasses.replace(fp16, run=run, prepare=prepare)
    bench = _Bench(impl, [inputs], coming, {"y": output}, HostStopwatch(cpu))
    gc.enable()  # in a worker it is of no more use
    bench.prepare(0)
    bench.cold(0)
    assert torch.equal(output, fp16.run(*coming))
    inputs[2].mul_(2)
    for kind in ("warm", "graph"):
        if kind == "graph":
            bench.capture()
        bench.warm(kind, 0, 3)  # type: ignore[arg-type]
        assert torch.equal(output, fp16.run(*inputs))
        inputs[2].mul_(2)
    assert prepared[0] == 4
    assert len(seen) == 1
