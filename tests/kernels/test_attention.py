"""Attention: scores of infinity, and its cost counts the pairs that are visible."""

from __future__ import annotations

import math

import pytest
import torch

from compare.model.op import Implementation
from on_device import each_of, outputs_of
from ops.attention import visible_pairs

pytestmark = pytest.mark.thorough


@each_of("attention", where=lambda impl: impl.level != "vendor")
def test_a_score_of_infinity_reaches_its_row_only(impl: Implementation, device: torch.device) -> None:
    """A row whose every score is -inf sees no key, and one of +inf makes NaN."""
    q, k, v = (torch.ones(1, 3, 1, 64, dtype=torch.float16, device=device) for _ in range(3))
    q[0, 0, 0, 0], q[0, 1, 0, 0] = -math.inf, math.inf
    try:
        o, lse = outputs_of(impl.given({"causal": False}), (q, k, v))
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))
    assert lse[0, 0].isnan().tolist() == [False, True, False]
    assert lse[0, 0, 0] == -math.inf
    assert o[0, 1].isnan().all()
    assert torch.equal(o[0, ::2, 0, 0].cpu(), torch.tensor([0, 1], dtype=torch.float16))


def test_visible_pairs_are_those_of_the_mask() -> None:
    for Sq in range(6):
        for Skv in range(6):
            mask = torch.ones(Sq, Skv).tril(Skv - Sq)
            assert visible_pairs(Sq, Skv, 1) == int(mask.sum())
            assert visible_pairs(Sq, Skv, 0) == Sq * Skv
