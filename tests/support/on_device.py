"""An implementation on the device at hand: skipped where it cannot run, checked where it can."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from compare import registry
from compare.checking.check import check
from compare.device import supports
from compare.model.op import Case, Implementation, Op
from loops import for_each_of_group

CPU = torch.device("cpu")


def skip_unless_supported(impl: Implementation, device: torch.device) -> None:
    if (reason := supports(impl, device)) is not None:
        pytest.skip(reason)


def skip_unless_quick(impl: Implementation, device: torch.device) -> None:
    """Skip torch.compile on a CPU too: it takes seconds a shape, and runs no kernel of ours."""
    skip_unless_supported(impl, device)
    if impl.label == "torch.compile" and device.type == "cpu":
        pytest.skip("torch.compile on a CPU is PyTorch's own")


def each_of(
    *ops: str, only: Sequence[str] = (), where: Callable[[Implementation], bool] = lambda impl: True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test once for each implementation of an op that runs here: a test an op.

    On the test's fixture ``device`` if it has that, or else on the CPU, where torch.compile is left out.

    Args:
        only: patterns of labels; empty: all.
        where: leaves out those of which it is false.
    """
    groups = {op: list(filter(where, registry.implementations(op, only))) for op in ops}

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def on_this_device(impl: Implementation, **arguments: Any) -> None:
            skip_unless_quick(impl, arguments.get("device", CPU))
            test(impl=impl, **arguments)

        return for_each_of_group("impl", groups, ids=lambda impl: impl.label)(on_this_device)

    return decorate


def argument_names(op: Op) -> list[str]:
    return re.findall(r"(\w+)\[", op.signature.partition("->")[0])


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
