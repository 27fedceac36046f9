"""The tolerance of a check: derived from the error of PyTorch's own implementation."""

from __future__ import annotations

import math

import torch

from compare import registry
from compare.checking.errors import errors_of
from compare.checking.reference import Reference, expected_output
from compare.checking.stage import LocalStage, Stage
from compare.spec import Case, Op, Tolerance


def limit_of(tolerance: Tolerance, accumulator: str, allowed: float) -> float:
    """The largest allowed error, in roundings of ``accumulator``; ``allowed`` is the one for fp32."""
    if accumulator != "fp32" and tolerance.least_rounded is not None:
        return tolerance.least_rounded
    return allowed


class ToleranceFromBaseline:
    """Allows twice the error of PyTorch's own implementation.

    Args:
        stage: where that implementation is called; None: the op's floor is the tolerance.
    """

    def __init__(self, op: Op, stage: Stage | None) -> None:
        self._op, self._stage = op, stage

    @classmethod
    def local(cls, op: Op, device: torch.device) -> ToleranceFromBaseline:
        """With that implementation called in this process."""
        baseline = next((i for i in registry.implementations(op.name) if i.label == op.baseline), None)
        return cls(op, None if baseline is None else LocalStage(baseline, device))

    def limit(self, case: Case, reference: Reference) -> float:
        """The allowed error on these inputs, in the tolerance's unit: twice the baseline's, or the floor.

        If twice the baseline's error would let all zeros pass, the baseline is wrong: the floor remains, and
        the baseline's own row fails.
        """
        twice, least = 2 * self._score(case, reference), self._op.tolerance(case).least
        if twice <= least or least < self._score_of_zeros(case, reference) <= twice:
            return least
        return twice

    def _score(self, case: Case, reference: Reference) -> float:
        if self._stage is None:
            return 0.0
        expected = expected_output(self._op, case, reference.device)
        try:
            self._stage.place(reference.inputs)
            output = self._stage.call(expected).output
        except Exception:  # reported in the baseline's own row
            return 0.0
        if output is None:
            return 0.0
        self._op.settle(reference.inputs, output)
        return self._score_of(case, reference, output)

    def _score_of_zeros(self, case: Case, reference: Reference) -> float:
        expected = expected_output(self._op, case, reference.device)
        zeros = torch.zeros((), dtype=expected.dtype, device=reference.device).expand(expected.shape)
        return self._score_of(case, reference, zeros)

    def _score_of(self, case: Case, reference: Reference, output: torch.Tensor) -> float:
        return errors_of(self._op, case, reference, output, math.inf, quantile_elements=0).score
