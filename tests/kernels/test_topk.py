"""topk beyond the op's cases: a block that reads all tiles of a row, as on a GPU with many rows."""

from __future__ import annotations

import math

import pytest
import torch

import cuda_impl.launches.topk
import triton_impl.topk
from compare import registry
from compare.model.op import Implementation
from on_device import each_of

OP = registry.get_op("topk")


def rows(N: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows in which few, many and all elements of later tiles are among the largest of those before."""
    n = torch.arange(N)
    random = torch.randn(N, generator=torch.Generator().manual_seed(0))
    late = torch.where(n >= N // 2, 1.0, -1.0)
    last = torch.where(n >= N - 5, 2.0, -math.inf)
    kinds = (
        random,
        n / N,
        -n / N,
        torch.zeros(N),
        n // 37 / N,
        late,
        last,
        random.where(n % 3 > 0, math.nan),
    )
    return torch.stack(kinds).to(dtype)


@pytest.mark.thorough
@each_of("topk", only=("*.filtered",))
def test_a_block_selects_among_all_tiles_of_a_row(
    impl: Implementation, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cuda_impl.launches.topk, triton_impl.topk):
        monkeypatch.setattr(module, "multiprocessors", lambda device: 0)
    for N, K, dtype in ((17001, 100, torch.float32), (17008, 256, torch.bfloat16), (9301, 1, torch.float16)):
        x = rows(N, dtype).to(device)
        values, indices = impl.run(x, K=K)
        assert torch.equal(values.double().nan_to_num(9.0), OP.oracle(x, K).double().nan_to_num(9.0))
        assert torch.equal(indices.double(), OP.further[0].oracle(x, K))
