"""An implementation on the device at hand: skipped where it cannot run, checked where it can."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from compare import registry
from compare.checking.check import check
from compare.device import supports
from compare.spec import Case, Implementation


def skip_unless_supported(impl: Implementation, device: torch.device) -> None:
    if (reason := supports(impl, device)) is not None:
        pytest.skip(reason)


def skip_unless_quick(impl: Implementation, device: torch.device) -> None:
    """Skip torch.compile on a CPU too: it takes seconds a shape, and runs no kernel of ours."""
    skip_unless_supported(impl, device)
    if impl.label == "torch.compile" and device.type == "cpu":
        pytest.skip("torch.compile on a CPU is PyTorch's own")


def outputs_of(impl: Implementation, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What a call with the implementation's options returns, as a tuple of one or several tensors."""
    outputs = impl.call(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def assert_correct(
    impl: Implementation, case: Case, device: torch.device, seeds: Sequence[int] = (0,)
) -> None:
    skip_unless_supported(impl, device)
    agreement = check(registry.get_op(impl.op), impl, case, device, seeds)
    assert agreement.passed, agreement.reason
