"""Attention: scores of infinity, and its cost counts the pairs that are visible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from compare.model.op import Implementation
from on_device import each_of, outputs_of
from ops.attention import oracle, oracle_lse, visible_pairs

pytestmark = pytest.mark.thorough


def attention(impl: Implementation, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """o and lse, not causal; the test is skipped where the implementation does not take such inputs."""
    try:
        return outputs_of(impl.given({"causal": False}), inputs)
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))


@each_of("attention", where=lambda impl: impl.level != "vendor")
def test_a_score_of_infinity_reaches_its_row_only(impl: Implementation, device: torch.device) -> None:
    """A row whose every score is -inf sees no key, and one of +inf makes NaN."""
    q, k, v = (torch.ones(1, 3, 1, 64, dtype=torch.float16, device=device) for _ in range(3))
    q[0, 0, 0, 0], q[0, 1, 0, 0] = -math.inf, math.inf
    o, lse = attention(impl, (q, k, v))
    assert lse[0, 0].isnan().tolist() == [False, True, False]
    assert lse[0, 0, 0] == -math.inf
    assert o[0, 1].isnan().all()
    assert torch.equal(o[0, ::2, 0, 0].cpu(), torch.tensor([0, 1], dtype=torch.float16))


@each_of("attention", where=lambda impl: impl.level != "vendor")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("step", [0.05, 2.0, 40.0])
def test_scores_may_grow_along_the_keys(
    impl: Implementation, device: torch.device, step: float, dtype: torch.dtype
) -> None:
    """By a little, or from tile to tile by more than an fp32 exponential holds: in the last two rows.

    Those of the first eight are equal, those of the next fall.  Then there is a row where the key 250 has a
    score of infinity; in the others it has -infinity.
    """
    q, k, v = (torch.zeros(1, S, 1, 64) for S in (12, 300, 300))
    q[0, :, 0, :2] = torch.tensor([[0, -1]] * 8 + [[-1, -1], [0, 1], [1, -1], [0.5, -1]])
    k[0, :, 0, 0] = torch.arange(300) * step
    k[0, 250, 0, 1] = math.inf
    v[0, :, 0] = torch.arange(300)[:, None] % 7
    inputs = [x.to(device, dtype) for x in (q, k, v)]
    o, lse = (x.cpu().double() for x in attention(impl, inputs))
    exact = [x.cpu().double() for x in inputs]
    torch.testing.assert_close(o, oracle(*exact, False), rtol=0, atol=0.05, equal_nan=True)
    torch.testing.assert_close(lse, oracle_lse(*exact, False), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_visible_pairs_are_those_of_the_mask() -> None:
    for Sq in range(6):
        for Skv in range(6):
            mask = torch.ones(Sq, Skv).tril(Skv - Sq)
            assert visible_pairs(Sq, Skv, 1) == int(mask.sum())
            assert visible_pairs(Sq, Skv, 0) == Sq * Skv
