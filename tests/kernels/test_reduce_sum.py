"""reduce_sum beyond its values: deterministic variants return equal bits."""

from __future__ import annotations

import pytest
import torch

from compare import registry
from compare.model.op import Implementation
from on_device import each_of

pytestmark = pytest.mark.thorough


def test_what_adds_in_no_certain_order_says_so() -> None:
    assert {impl.variant for impl in registry.implementations("reduce_sum") if not impl.deterministic} == {
        "atomic"
    }


@each_of("reduce_sum")
def test_sums_that_its_input_s_dtype_could_not_hold(impl: Implementation, device: torch.device) -> None:
    y = impl.run(torch.full((4096,), 512.0, dtype=torch.float16, device=device))
    assert (y.dtype, tuple(y.shape), float(y)) == (torch.float32, (), 4096 * 512.0)


@pytest.mark.gpu
@each_of("reduce_sum", where=lambda impl: impl.deterministic and impl.way != "torch")
def test_the_same_bits_come_back(impl: Implementation, device: torch.device) -> None:
    x = torch.randn(2**24 + 3, device=device)
    assert len({float(impl.run(x)) for _ in range(20)}) == 1
