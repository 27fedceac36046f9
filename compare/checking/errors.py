"""The errors of an output against the fp64 reference, piece by piece.

The unit of an error and its scale are defined by `compare.model.op.Tolerance`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from compare.checking.mismatch import Located
from compare.checking.reference import Piece, Reference, largest, piece_length
from compare.model.op import ROUNDOFF, Case, Op, Tolerance
from compare.model.result import Mismatch

_QUANTILE_ELEMENTS = 1 << 18
"""Elements that the quantiles are computed from; maxima are over all elements."""


@dataclass
class Errors:
    """The errors of one output, accumulated over its pieces."""

    score: float = 0.0
    """Largest error in the tolerance's unit."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    compared: int = 0
    within: int = 0
    ulps: list[torch.Tensor] = field(default_factory=list)
    """A sample of the elements; NaN where no error can be measured."""
    wrong: int = 0
    """Elements beyond the limit."""
    misplaced: int = 0
    """Elements where NaN or infinity differ from the reference."""

    @property
    def measured(self) -> bool:
        """Whether any error could be measured: not where the shape is wrong or all elements are NaN."""
        return self.compared == 0 or self.within + self.wrong > 0

    def enlarge(self, score: float, max_abs: float, max_rel: float, max_ulp: float) -> None:
        """Take the maximum with another piece's figures; NaN is ignored."""
        self.score = max(self.score, score)
        self.max_abs = max(self.max_abs, max_abs)
        self.max_rel = max(self.max_rel, max_rel)
        self.max_ulp = max(self.max_ulp, max_ulp)


def errors_of(
    op: Op,
    case: Case,
    reference: Reference,
    output: torch.Tensor,
    limit: float,
    accumulator: str = "fp32",
    quantile_elements: int = _QUANTILE_ELEMENTS,
) -> Errors:
    """The errors of an output against the oracle, in roundings of ``accumulator``."""
    step = max(1, output.numel() // quantile_elements) if quantile_elements else 0
    comparison = _ErrorStatistics(op.tolerance(case), ROUNDOFF[accumulator], limit, step)
    for piece, out in reference.pieces(output):
        comparison.add(piece, out)
    return comparison.errors


def mismatch_of(
    op: Op, case: Case, reference: Reference, output: torch.Tensor, limit: float, accumulator: str = "fp32"
) -> Mismatch | None:
    """The first wrong element of an output and a guess from the pattern; None where it cannot be located."""
    located = Located.of(output)
    if located is None:
        return None
    comparison = _ErrorStatistics(op.tolerance(case), ROUNDOFF[accumulator], limit, 0, located=located)
    for piece, out in reference.pieces(output):
        comparison.add(piece, out)
    return located.found()


@dataclass
class _ErrorStatistics:
    tolerance: Tolerance
    unit: float
    """The roundoff of the accumulator's dtype."""
    limit: float
    step: int
    """Every ``step``-th element goes into the quantiles; 0: none."""
    errors: Errors = field(default_factory=Errors)
    located: Located | None = None
    """Records where the wrong elements are."""

    def add(self, piece: Piece, out: torch.Tensor) -> None:
        """Add the errors of one piece: of ``out`` against the fp64 reference."""
        ref = piece.values
        of_each = [self._scale(ref, piece.sizes), piece.intermediate]
        if ref.dim() == 0:  # a scalar is a row of one element
            ref, out, of_each = ref[None], out[None], [x if x is None else x[None] for x in of_each]
        columns = piece_length(ref.shape[-1], ref.numel())
        for begin in range(0, ref.shape[-1], columns):
            length = min(columns, ref.shape[-1] - begin)
            scale, intermediate = (
                x.narrow(-1, begin, length) if x is not None and x.shape[-1] > 1 else x for x in of_each
            )
            part, of_part = (x.narrow(-1, begin, length) for x in (ref, out))
            self._add_block(part, of_part, scale, intermediate)

    def _scale(self, ref: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor | None:
        """The tolerance's absolute floor: relative to ``sizes``, else to the largest value of the row."""
        if sizes is not None:
            return self.tolerance.floor * sizes
        if self.tolerance.reduced_dim is None:
            return None
        return self.tolerance.floor * largest(ref, self.tolerance.reduced_dim)

    def _add_block(
        self,
        ref: torch.Tensor,
        out: torch.Tensor,
        scale: torch.Tensor | None,
        intermediate: torch.Tensor | None,
    ) -> None:
        """Add one block's errors, with a single synchronization of the GPU."""
        if not out.is_floating_point():
            self._add_integers(ref, out)
            return
        # A value that rounds to infinity in the output's dtype must be infinite there.
        rounded, got = ref.to(out.dtype).double(), out.double()
        both = rounded.isfinite() & got.isfinite()
        same_special = ((rounded.isnan() & got.isnan()) | (rounded == got)) & ~both
        # Only two finite numbers have an error; others count as 0, and in no quantile.
        magnitude = torch.where(both, ref.abs(), 0.0)
        difference = torch.where(both, (got - ref).abs(), 0.0)
        half_ulp = _half_ulp(magnitude, out.dtype)
        excess = difference if self.tolerance.exact else difference - half_ulp
        if intermediate is not None:
            rounding = torch.finfo(out.dtype).eps / 2 * intermediate
            # The value that is rounded in the end may lie beyond a power of two.
            excess = difference - rounding - _half_ulp(magnitude + rounding, out.dtype)
        allowed = self.unit * (magnitude if scale is None else magnitude + scale)
        score = torch.where(excess > 0, excess / allowed, 0.0)  # infinite where nothing is allowed
        accepted = (score <= self.limit) & both
        if self.located is not None:
            self.located.mark(out, ref, ~(accepted | same_special))
        normal = magnitude >= torch.finfo(out.dtype).smallest_normal
        relative = torch.where(normal, difference / magnitude, 0.0)
        ulp = difference / (2 * half_ulp)

        special, measured, within, *largest = _together(
            *(same_special.sum(), both.sum(), accepted.sum()),
            *(score.max(), difference.max(), relative.max(), ulp.max()),
        )
        errors = self.errors
        errors.compared += ref.numel()
        errors.misplaced += ref.numel() - int(measured) - int(special)
        errors.within += int(within) + int(special)
        errors.wrong += int(measured) - int(within)
        errors.enlarge(*largest)
        if self.step:
            # Kept on the device: sorting all of them on a CPU would take long.
            sample = slice(None, None, self.step)
            errors.ulps.append(torch.where(both.flatten()[sample], ulp.flatten()[sample], math.nan))

    def _add_integers(self, ref: torch.Tensor, out: torch.Tensor) -> None:
        """Integers are not rounded: any difference is wrong."""
        difference = (out.double() - ref).abs()
        relative = difference / ref.abs().clamp(min=1.0)
        if self.located is not None:
            self.located.mark(out, ref, difference > 0)
        wrong, max_abs, max_rel = _together((difference > 0).sum(), difference.max(), relative.max())
        errors = self.errors
        errors.compared += ref.numel()
        errors.within += ref.numel() - int(wrong)
        errors.wrong += int(wrong)
        errors.enlarge(math.inf if wrong else 0.0, max_abs, max_rel, max_abs)
        if self.step:
            errors.ulps.append(difference.flatten()[:: self.step].clone())


def _together(*scalars: torch.Tensor) -> list[float]:
    """The values of one-element tensors, with a single synchronization of the GPU."""
    return torch.stack([scalar.double() for scalar in scalars]).tolist()


def _half_ulp(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half a unit in the last place of ``dtype`` at these fp64 values: the error of correct rounding.

    Below the smallest normal number of fp32 and bf16 it is that number: GPUs flush their subnormals to zero.
    """
    finfo = torch.finfo(dtype)
    exponent_bits = 0x7FF0000000000000
    binade = (magnitude.view(torch.int64) & exponent_bits).view(torch.float64)
    half = (binade * (finfo.eps / 2)).clamp(min=finfo.smallest_normal * finfo.eps / 2)
    if dtype in (torch.float16, torch.float8_e4m3fn):
        return half
    return torch.where(magnitude < finfo.smallest_normal, finfo.smallest_normal, half)
