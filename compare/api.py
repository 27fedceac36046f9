"""A function of your own, checked where its tests run: ``from compare import check``."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from triton.runtime.jit import JITFunction

from compare import registry
from compare.capture import replaced
from compare.checking import check as checking
from compare.checking.tolerance import USERS_SLACK
from compare.model.op import ROUNDOFF, Case, Implementation, Op, UsageError
from compare.model.result import HARD_INPUTS, Agreement, Row
from compare.report import screen
from compare.worker.hard_inputs import each_hard_input
from compare.worker.process import Raised

_SEEDS = (0, 1)
_OPTIONS = checking.CheckOptions(slack=USERS_SLACK)


def check(
    op: str,
    fn: Callable[..., Any],
    *,
    device: str | torch.device | None = None,
    cases: Sequence[str | Case] = (),
    label: str = "",
    hard_inputs: bool = True,
    accumulator: str = "fp32",
) -> Agreement:
    """Check a function against the fp64 reference of an op; returns quietly if it is correct.

    Args:
        op: the op's name, ``softmax``.
        fn: takes the op's tensors, and its options as keywords; returns a fresh tensor or a tuple of them.
            It raises NotImplementedError for inputs that it does not support.
        device: where the tensors are; None: a GPU if there is one, else the CPU.
        cases: sizes and dtype, ``M=4,N=781,fp16``; none: the op's first small case that ``fn`` supports.
        label: what the message calls it; by default the function's name.  With one such as ``torch.mine`` the
            outputs get no guard zones, which torch.compile does not take.
        hard_inputs: check it on the op's small hard cases too, as ``--load`` does, without a time limit.
        accumulator: the precision it computes in, as of `compare.registry.implementation`.

    Returns:
        The agreement on the first case, with a finding on the hard inputs.

    Raises:
        AssertionError: it is wrong; the text is that of ``python -m compare``.
        UsageError: there is no such op, case or accumulator, or a Triton kernel needs its interpreter here.
        Exception: what ``fn`` raised on one of ``cases``.
    """
    __tracebackhide__ = True  # pytest shows the caller
    description = registry.get_op(op)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if accumulator not in ROUNDOFF:
        raise UsageError(registry.unknown("accumulator", accumulator, ROUNDOFF))
    name = label or str(getattr(getattr(fn, "func", fn), "__name__", type(fn).__name__))  # partial has func
    impl = Implementation(op, name, "naive", fn, accumulator=accumulator)
    asked = [case if isinstance(case, Case) else Case.parse(case, description) for case in cases]
    with _interpreter_on_cpu(where):
        agreements = _asked(description, impl, where, asked)
        for case, agreement in agreements.items():
            _refuse(impl, case, agreement, agreement.reason)
        first = next(iter(agreements.values()))
        if not hard_inputs:
            return first
        check_case = functools.partial(_on_hard_input, description, impl, where)
        result = each_hard_input(description, [*agreements], check_case, math.inf)
    finding = result.finding(description)
    agreement = replace(
        first, passed=finding.passed, findings=(*first.findings, finding), mismatch=result.mismatch
    )
    _refuse(impl, next(iter(agreements)), agreement, f"{HARD_INPUTS}: {finding.detail}")
    return agreement


def _asked(
    op: Op, impl: Implementation, device: torch.device, cases: Sequence[Case]
) -> dict[Case, Agreement]:
    """The agreement on each of ``cases``; on the op's first small one that is supported if there are none."""
    if cases:
        return {case: checking.check(op, impl, case, device, _SEEDS, _OPTIONS) for case in cases}
    for case in op.cases.smoke[:-1]:
        with contextlib.suppress(NotImplementedError):
            return {case: checking.check(op, impl, case, device, _SEEDS, _OPTIONS)}
    last = op.cases.smoke[-1]
    return {last: checking.check(op, impl, last, device, _SEEDS, _OPTIONS)}


def _on_hard_input(op: Op, impl: Implementation, device: torch.device, case: Case) -> Agreement:
    """The agreement on one case, with exceptions as a worker reports them."""
    try:
        return checking.check(op, impl, case, device, _SEEDS[:1], _OPTIONS)
    except (NotImplementedError, UsageError, MemoryError):
        raise
    except Exception as error:
        raise Raised(type(error).__name__, str(error)) from error


def _refuse(impl: Implementation, case: Case, agreement: Agreement, reason: str) -> None:
    """Raise an AssertionError with the screen's lines unless all is correct."""
    __tracebackhide__ = True
    if not agreement.passed:
        row = Row(impl.label, impl.level, "disagrees", reason, impl.accumulator, agreement=agreement)
        raise AssertionError("\n".join(screen.failure(str(case), [row])))


def _interpreter_on_cpu(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """On a CPU, refuse Triton kernels that were not decorated for its interpreter."""
    if device.type != "cpu":
        return contextlib.nullcontext()
    return replaced(JITFunction, "run", _refuse_compiled)


def _refuse_compiled(kernel: Any, *_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        f"{kernel.fn.__name__} got CPU tensors, which only Triton's interpreter takes: set "
        "TRITON_INTERPRET=1 before triton is imported, e.g. by os.environ in the first lines of conftest.py"
    )
