"""grouped_matmul: groups and offsets beyond what every op's tests cover."""

from __future__ import annotations

import math

import pytest
import torch

from compare import registry
from compare.model.op import Implementation
from on_device import each_of

OP = "grouped_matmul"


def inputs(sizes: list[int], N: int, K: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(sum(sizes), K, generator=generator).bfloat16()
    b = torch.randn(len(sizes), K, N, generator=generator).bfloat16()
    offsets = torch.tensor(sizes).cumsum(0).int()
    return a.to(device), b.to(device), offsets.to(device)


@pytest.mark.thorough
@each_of(OP)
def test_what_is_next_to_a_group_does_not_reach_it(impl: Implementation, device: torch.device) -> None:
    """Behind K lies the next matrix, and behind a group's rows the next group: NaN times 0 is NaN."""
    a, b, offsets = inputs([30, 20, 0, 25], 72, 80, device)
    b[1:3], a[30:50] = math.nan, math.nan
    try:
        c = impl.run(a, b, offsets).double()
    except NotImplementedError as reason:
        pytest.skip(str(reason))
    expected = registry.get_op(OP).oracle(a.double(), b.double(), offsets)
    torch.testing.assert_close(c, expected, rtol=2e-2, atol=2e-2, equal_nan=True)
    assert c[:30].isfinite().all()
    assert c[50:].isfinite().all()


@each_of(OP)
def test_bad_offsets_are_refused_on_a_cpu(impl: Implementation) -> None:
    for ends, says in (
        ([30, 20, 50], r"offsets\[1\] is 20; it takes 30 to 50"),
        ([-1, 20, 50], r"offsets\[0\] is -1; it takes 0 to 50"),
        ([10, 60, 50], r"offsets\[1\] is 60; it takes 10 to 50"),
        ([10, 20, 49], r"offsets\[2\] is 49; it takes 50, a's rows"),
    ):
        a, b, offsets = inputs([10, 10, 30], 8, 8, torch.device("cpu"))
        offsets[:] = torch.tensor(ends)
        with pytest.raises(ValueError, match=f"^{OP}: {says}"):
            impl.run(a, b, offsets)
