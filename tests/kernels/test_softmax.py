"""softmax: properties that no test over all ops covers."""

from __future__ import annotations

import pytest
import torch

from compare.model.op import case
from cuda_impl.launches.softmax import CLUSTER_SHAPES
from cuda_impl.layouts import MOST_SLICE_BYTES
from on_device import assert_correct
from rows import labelled

MOST = 16 * MOST_SLICE_BYTES // 2
"""Columns of 16 bits that 16 blocks hold."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "N",
    [*(vectors * 8 + columns for vectors in CLUSTER_SHAPES for columns in (-1, 0, 1)), MOST - 1, MOST],
)
def test_each_shape_of_a_cluster_holds_its_longest_rows(N: int, device: torch.device) -> None:
    """Those of whole vectors, and those that start anywhere between 16-byte boundaries."""
    assert_correct(labelled("softmax", "cupy.cluster"), case("bf16", M=2, N=N), device, (0,))


def test_longer_rows_are_refused(device: torch.device) -> None:
    with pytest.raises(NotImplementedError, match=f"the shared memory of 16 blocks holds {MOST} columns"):
        labelled("softmax", "cupy.cluster").run(torch.zeros(1, MOST + 1, dtype=torch.bfloat16, device=device))
