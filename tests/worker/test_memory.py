"""SharedMemory that two processes share."""

from __future__ import annotations

import os

import msgspec
import pytest
import torch

from compare.inputs import tensor
from compare.model.op import LAYOUTS, case
from compare.worker.memory import Placement, SharedMemory, room
from loaded_files import CPU


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 133), (1, 1), (0, 7), (7, 0)])
def test_a_tensor_keeps_its_layout(layout: str, shape: tuple[int, int]) -> None:
    for dtype in ("fp32", "bf16"):
        made = tensor(shape, case(dtype, layout, M=shape[0], N=shape[1]), torch.Generator(), CPU)
        memory = SharedMemory(room([made, made]), CPU)
        for place in memory.put([made, made], 0):
            found = memory.tensor(msgspec.convert(msgspec.to_builtins(place), Placement))
            assert torch.equal(found, made)
            assert (found.shape, found.stride()) == (made.shape, made.stride())
            assert found.storage_offset() == made.storage_offset()
            assert found.untyped_storage().nbytes() == made.untyped_storage().nbytes()
            if made.numel():
                assert found.data_ptr() % 64 == made.data_ptr() % 64
        memory.close()


def test_whoever_has_it_cannot_change_its_size() -> None:
    """Its other end would be killed by SIGBUS."""
    memory = SharedMemory(1, CPU)
    for size in (0, memory.size + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.descriptors[0], size)
    memory.close()
