"""The tolerance of a check: an op's floor, or from the error of PyTorch's own implementation."""

from __future__ import annotations

import math

import torch

from compare import registry
from compare.checking.errors import Errors, errors_of
from compare.checking.reference import Reference, expected_outputs
from compare.checking.stage import LocalStage, Stage
from compare.model.op import Case, Implementation, Op, Tolerance


def limit_of(tolerance: Tolerance, accumulator: str, allowed: float) -> float:
    """The largest allowed error, in roundings of ``accumulator``; ``allowed`` is the one for fp32."""
    if accumulator != "fp32" and tolerance.least_rounded is not None:
        return tolerance.least_rounded
    return allowed


USERS_SLACK = 4.0
"""How many times the tolerance a user's row may be off.  To add a row's terms one after another in fp32 is
right, though less exact than the trees of sums in PyTorch; what is wrong is off by far more."""


def slack_of(impl: Implementation) -> float:
    """How many times the tolerance an implementation may be off."""
    return USERS_SLACK if impl.user_file else 1.0


class ToleranceFromBaseline:
    """Allows the op's floor, or twice the error of PyTorch's own implementation where that is more.

    Args:
        stage: where that implementation is called; None: the op's floor is the tolerance.
    """

    def __init__(self, op: Op, stage: Stage | None) -> None:
        self._op, self._stage = op, stage

    @classmethod
    def local(cls, op: Op, case: Case, device: torch.device) -> ToleranceFromBaseline:
        """With that implementation called in this process, with the case's options."""
        baseline = next((i for i in registry.implementations(op.name) if i.label == op.baseline), None)
        return cls(op, None if baseline is None else LocalStage(baseline.given(op.options(case)), device))

    def limit(self, case: Case, reference: Reference) -> float:
        """The allowed error on these inputs, in the tolerance's unit: twice the baseline's, or the floor.

        All zeros must not pass.  Where they would, because terms cancel in a baseline that computes in bf16,
        and the op has no magnitude, errors become relative to the largest element of a row:
        ``reference.by_row``.  If zeros pass then too, the baseline is wrong itself: the floor remains, its
        own row fails, and ``reference.hint`` says what to look at.
        """
        op, tolerance = reference.op, reference.op.tolerance(case)
        output = self._output(case, reference) if tolerance.from_baseline and not tolerance.exact else None
        if output is None:
            return tolerance.least
        zeros = torch.zeros((), dtype=output.dtype, device=output.device).expand(output.shape)

        def errors(output: torch.Tensor) -> Errors:
            return errors_of(op, case, reference, output, math.inf, quantile_elements=0)

        def judged() -> tuple[float, bool]:
            """Twice the baseline's error, and whether all zeros pass under that."""
            twice = 2 * errors(output).score
            return twice, tolerance.least < twice and tolerance.least < errors(zeros).score <= twice

        twice, zeros_pass = judged()
        if zeros_pass and op.magnitude is None and tolerance.reduced_dim is None:
            reference.by_row = True
            twice, zeros_pass = judged()
            reference.by_row = not zeros_pass
        own = f"{self._op.baseline} itself is wrong here: "
        if case.fill != "normal" and errors(output).misplaced:
            reference.hint = (
                f"{own}intermediate results overflow or become NaN on the fill {case.fill!r}. If that is "
                f"no mistake, leave fill={case.fill!r} out of the op's cases"
            )
        elif zeros_pass and output.is_floating_point():
            change = "add" if op.magnitude is None else "correct"
            reference.hint = (
                f"{own}its error is as large as the result. Either the oracle computes something else, or "
                f"terms cancel: then {change} the op's magnitude, which is the oracle of the terms' absolute "
                "values"
            )
        return tolerance.least if zeros_pass else max(twice, tolerance.least)

    def _output(self, case: Case, reference: Reference) -> torch.Tensor | None:
        """What the baseline returns; None where it fails, which its own row reports."""
        if self._stage is None:
            return None
        try:
            self._stage.place(reference.inputs)
            outputs = self._stage.call(expected_outputs(self._op, case, reference.device)).outputs
        except Exception:
            return None
        if outputs is None:
            return None
        output = outputs[reference.op.output]
        reference.op.mask_unspecified(reference.inputs, output)
        return output
