"""Attention refuses what it does not serve by name, and its cost counts the pairs that are visible."""

from __future__ import annotations

import math

import pytest
import torch

from compare import registry
from compare.spec import Case, Implementation, UsageError
from on_device import outputs_of, skip_unless_supported
from ops.attention import visible_pairs

pytestmark = pytest.mark.thorough

OP = registry.get_op("attention")
IMPLEMENTATIONS = [pytest.param(impl, id=impl.label) for impl in registry.implementations(OP.name)]

REFUSED = (
    ((1, 3, 2, 32), (1, 3, 2, 32), r"q has shape \(1, 3, 2, 32\); it takes heads of length 64 or 128"),
    ((1, 3, 4, 64), (1, 3, 3, 64), "k has shape .* it takes a number of heads of k that divides 4"),
    ((1, 3, 4, 64), (1, 3, 0, 64), "k has shape .* it takes a number of heads of k that divides 4"),
    ((2, 3, 2, 64), (1, 3, 2, 64), r"k has shape .* it takes \(2, any, any, 64\) for k"),
    ((1, 3, 2, 64), (1, 3, 2, 128), r"k has shape .* it takes \(1, any, any, 64\) for k"),
)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_shapes_that_do_not_go_together_are_refused(impl: Implementation, device: torch.device) -> None:
    skip_unless_supported(impl, device)
    for of_q, of_k, said in REFUSED:
        q, k = torch.zeros(of_q, device=device), torch.zeros(of_k, device=device)
        with pytest.raises(ValueError, match=f"attention: {said}"):
            impl.run(q, k, k, causal=False)


@pytest.mark.parametrize("impl", [param for param in IMPLEMENTATIONS if param.values[0].level != "vendor"])
def test_a_score_of_infinity_reaches_its_row_only(impl: Implementation, device: torch.device) -> None:
    """A row whose every score is -inf sees no key, and one of +inf makes NaN."""
    skip_unless_supported(impl, device)
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("D=96", "D=96. Choose one of 64, 128"),
        ("Hk=3", "Hq=4 and Hk=3. Choose an Hq that is a multiple of Hk"),
        ("Hk=0", "Hq=4 and Hk=0"),
        ("causal=2", "causal=2. Choose 0 or 1"),
    ],
)
def test_a_case_that_is_none_is_refused(words: str, said: str) -> None:
    sizes = dict(
        part.split("=") for part in ("B=1", "Sq=3", "Skv=3", "Hq=4", "Hk=2", "D=64", "causal=1", words)
    )
    case = Case.parse(",".join(f"{name}={size}" for name, size in sizes.items()), OP)
    with pytest.raises(UsageError, match=said):
        OP.make_inputs(case, torch.Generator(), torch.device("meta"))


def test_visible_pairs_are_those_of_the_mask() -> None:
    for Sq in range(6):
        for Skv in range(6):
            mask = torch.ones(Sq, Skv).tril(Skv - Sq)
            assert visible_pairs(Sq, Skv, 1) == int(mask.sum())
            assert visible_pairs(Sq, Skv, 0) == Sq * Skv
