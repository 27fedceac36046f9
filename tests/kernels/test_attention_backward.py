"""attention_backward: what its cases do not show by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compare import registry
from compare.spec import Case, Implementation
from on_device import skip_unless_supported

pytestmark = pytest.mark.thorough

OP = registry.get_op("attention_backward")
IMPLEMENTATIONS = [pytest.param(impl, id=impl.label) for impl in registry.implementations(OP.name)]
# Five of the seven queries see no key.
MASKED = Case.parse("B=1,Sq=7,Skv=2,Hq=2,Hk=1,D=64,causal=1,fp16", OP)


def inputs_of(case: Case, device: torch.device) -> tuple[torch.Tensor, ...]:
    return OP.make_inputs(case, torch.Generator(device).manual_seed(0), device)


def test_its_inputs_are_attention_s_own() -> None:
    """o and lse are those of the forward, and the oracle is autograd's gradient."""
    q, k, v, o, lse, do = (x.double() for x in inputs_of(MASKED, torch.device("cpu")))
    leaves = [x[:, -2:] if x is q else x for x in (q, k, v)]  # rows that see a key
    for x in leaves:
        x.requires_grad_()
    scores = torch.einsum("bihd,bjkd->bhij", leaves[0], leaves[1]) / 8
    scores = scores.masked_fill(torch.ones(2, 2).triu(1).bool(), -torch.inf)
    out = torch.einsum("bhij,bjkd->bihd", scores.softmax(-1), leaves[2])
    torch.testing.assert_close(out.half(), o[:, -2:].half(), rtol=2e-3, atol=1e-3)
    torch.testing.assert_close(scores.logsumexp(-1), lse[:, :, -2:], rtol=1e-6, atol=1e-5)
    assert lse[:, :, :-2].isneginf().all()
    assert (o[:, :-2] == 0).all()
    dq, dk, dv = torch.autograd.grad(out, leaves, do[:, -2:])
    arguments = q.detach(), k.detach(), v.detach(), o, lse, do
    oracles = [OP.oracle, *(further.oracle for further in OP.further)]
    ours = [oracle(*arguments, causal=True) for oracle in oracles]
    for mine, theirs in zip((ours[0][:, -2:], *ours[1:]), (dq, dk, dv), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=2e-2)  # o is rounded to fp16


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_query_that_sees_no_key_gets_no_gradient(impl: Implementation, device: torch.device) -> None:
    skip_unless_supported(impl, device)
    try:
        dq, dk, dv = impl.run(*inputs_of(MASKED, device), causal=True)
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))
    assert (dq[:, :-2] == 0).all()
    assert all(bool(x.isfinite().all()) for x in (dq, dk, dv))


Spoil = Callable[[torch.Tensor], Any]
REFUSED: dict[str, tuple[str, Spoil, str]] = {
    "lse in 16 bits": ("lse", lambda x: x.half(), r"lse is torch.float16; it takes torch.float32"),
    "lse of another layout": (
        "lse",
        lambda x: x.mT,
        r"lse has shape .* and q .*; it takes \(1, 2, 7\) for lse",
    ),
    "o of one head": ("o", lambda x: x[:, :, :1], r"do has shape .* and o .*; it takes equal shapes"),
    "do of one query": ("do", lambda x: x[:, :1], r"do has shape .* and o .*; it takes equal shapes"),
    "heads of k": ("q", lambda x: x[:, :, :1].expand(-1, -1, 3, -1), "it takes equal shapes|heads of k"),
    "q in fp32": ("q", lambda x: x.float(), "it takes one dtype"),
    "v of one key": ("v", lambda x: x[:, :1], r"v has shape .* and k .*; it takes equal shapes"),
}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_it_says_what_does_not_go_together(impl: Implementation, device: torch.device) -> None:
    skip_unless_supported(impl, device)
    names = ("q", "k", "v", "o", "lse", "do")
    for name, spoil, message in REFUSED.values():
        arguments = list(inputs_of(MASKED, device))
        place = names.index(name)
        arguments[place] = spoil(arguments[place])
        with pytest.raises((TypeError, ValueError), match=message):
            impl.run(*arguments, causal=True)
