"""attention_backward: what its cases do not show by themselves."""

from __future__ import annotations

import pytest
import torch

from compare import registry
from compare.model.op import Case, Implementation
from on_device import each_of
from ops import attention

pytestmark = pytest.mark.thorough

OP = registry.get_op("attention_backward")
# Five of the seven queries see no key.
MASKED = Case.parse("B=1,Sq=7,Skv=2,Hq=2,Hk=1,D=64,causal=1,fp16", OP)


def inputs_of(case: Case, device: torch.device) -> tuple[torch.Tensor, ...]:
    return OP.make_inputs(case, torch.Generator(device).manual_seed(0), device)


def test_its_inputs_are_attention_s_own() -> None:
    """o and lse are those of the forward; rows that see no key have 0 and -inf."""
    q, k, v, o, lse, _ = inputs_of(MASKED, torch.device("cpu"))
    wide = [x.double() for x in (q, k, v)]
    torch.testing.assert_close(attention.oracle(*wide, True).half(), o, rtol=2e-3, atol=1e-3)
    torch.testing.assert_close(attention.oracle_lse(*wide, True).float(), lse, rtol=1e-6, atol=1e-5)
    assert lse[:, :, :-2].isneginf().all()
    assert (o[:, :-2] == 0).all()


@each_of("attention_backward")
def test_a_query_that_sees_no_key_gets_no_gradient(impl: Implementation, device: torch.device) -> None:
    try:
        dq, dk, dv = impl.run(*inputs_of(MASKED, device), causal=True)
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))
    assert (dq[:, :-2] == 0).all()
    assert all(bool(x.isfinite().all()) for x in (dq, dk, dv))
