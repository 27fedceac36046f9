"""The shared memory of a case."""

from __future__ import annotations

import pytest
import torch

from compare import registry
from compare.checking.reference import expected_outputs
from compare.worker.buffers import CaseBuffers, WorkerStage
from compare.worker.process import Worker
from loaded_files import CPU, SMALL


@pytest.mark.parametrize("timed", [False, True])
def test_poisoned_outputs_leave_inputs_at_any_start_address(
    monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    """Of large inputs, of which timing has one set and no next values."""
    op = registry.get_op("vector_add")
    inputs = op.make_inputs(SMALL, torch.Generator().manual_seed(0), CPU)
    monkeypatch.setattr("compare.worker.buffers._STAGED_BYTES", 0)
    monkeypatch.setattr("secrets.randbelow", lambda starts: starts - 1)
    with CaseBuffers(op, SMALL, CPU, expected_outputs(op, SMALL, CPU), timed=timed) as buffers:
        placed = WorkerStage(Worker.__new__(Worker), buffers).place(inputs)
        buffers.poison()
        assert all(map(torch.equal, placed, inputs))
