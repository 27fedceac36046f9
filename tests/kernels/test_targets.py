"""Targets that are no column: every kernel gives NaN for their rows, and for no others."""

from __future__ import annotations

import math

import pytest
import torch

from compare.model.op import Implementation
from on_device import each_of
from rows import labelled

pytestmark = pytest.mark.thorough

NO_COLUMN = (-1, -99, -101, 300, 301, -(2**63), 2**63 - 1, 2**32 + 3)


@pytest.mark.parametrize("V", [300, 9001])
@each_of("cross_entropy", where=lambda impl: impl.label != "torch.eager")
def test_a_target_that_is_no_column_makes_its_own_loss_nan(
    impl: Implementation, V: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(NO_COLUMN) + 2, V, generator=generator).to(device)
    targets = torch.tensor([5, *(V if t == 300 else V + 1 if t == 301 else t for t in NO_COLUMN), -100])
    loss = impl.run(logits, targets.to(device)).cpu()
    expected = torch.nn.functional.cross_entropy(logits[:1].cpu(), targets[:1])
    assert float(loss[0]) == pytest.approx(float(expected), rel=1e-5)
    assert [math.isnan(x) for x in loss[1:-1].tolist()] == [True] * len(NO_COLUMN)
    assert float(loss[-1]) == 0


def test_the_library_raises() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        labelled("cross_entropy", "torch.eager").run(torch.zeros(2, 3), torch.tensor([0, 3]))
