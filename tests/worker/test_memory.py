"""Memory that two processes share, and what a captured call takes of a GPU's."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch

from compare import registry
from compare.inputs import tensor
from compare.spec import LAYOUTS, case
from compare.timing.stopwatch import CudaStopwatch
from compare.worker.main import _Bench
from compare.worker.memory import Memory, Place, room
from loaded_files import CPU


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 133), (1, 1), (0, 7), (7, 0)])
def test_a_tensor_keeps_its_layout(layout: str, shape: tuple[int, int]) -> None:
    for dtype in ("fp32", "bf16"):
        made = tensor(shape, case(dtype, layout, M=shape[0], N=shape[1]), torch.Generator(), CPU)
        memory = Memory(room([made, made]), CPU)
        for place in memory.put([made, made]):
            found = memory.tensor(Place.from_json(place.as_json()))
            assert torch.equal(found, made)
            assert (found.shape, found.stride()) == (made.shape, made.stride())
            assert found.storage_offset() == made.storage_offset()
            assert found.untyped_storage().nbytes() == made.untyped_storage().nbytes()
            if made.numel():
                assert found.data_ptr() % 64 == made.data_ptr() % 64
        memory.close()


@pytest.mark.gpu
@pytest.mark.alone
def test_a_captured_call_holds_one_output() -> None:
    """Workers share the GPU's memory: what its graph does not need one leaves to the others."""
    gpu = torch.device("cuda", torch.cuda.current_device())
    x = torch.zeros(1 << 28, dtype=torch.uint8, device=gpu)
    (eager,) = registry.implementations("vector_add", ["torch.eager"])
    impl = dataclasses.replace(eager, run=lambda x: x + 1)
    bench = _Bench(impl, [(x,)], (), x.to("meta"), torch.empty_like(x), CudaStopwatch(gpu), False)
    gc.enable()  # in a worker it is of no more use
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(gpu)
    bench.first()
    bench.capture(0)
    assert x.numel() <= torch.cuda.memory_reserved(gpu) - before < 1.5 * x.numel()
    assert bench.warm("graph", 0, 1)["problem"] is None
