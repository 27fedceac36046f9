"""The errors of an output against the fp64 reference, block by block, and where the first wrong element is.

The unit of an error and its scale are defined by `compare.model.op.Tolerance`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from compare.checking.mismatch import mismatch
from compare.checking.reference import Reference, largest, piece_length
from compare.model.op import ROUNDOFF, Case, Op, Tolerance
from compare.model.result import Mismatch

_QUANTILE_ELEMENTS = 1 << 18
"""Elements that the quantiles are computed from; maxima are over all elements."""
_MOST_LOCATED = 1 << 26
"""Elements of a larger output are not located: its fp64 reference would take more than 0.5 GB."""


@dataclass
class Errors:
    """The errors of one output, accumulated over its blocks."""

    limit: float = 0.0
    """The largest error that is allowed, in the tolerance's unit."""
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

    def add(self, compared: _Compared, step: int) -> None:
        """Add a block's, with a single synchronization of the GPU; every ``step``-th ulp is kept."""
        finite_there, *_, ulp = compared
        counts = (x.sum().double() for x in compared[:3])
        maxima = (x.max().double() for x in compared[3:])
        finite, special, accepted, *largest = torch.stack([*counts, *maxima]).tolist()
        self.compared += ulp.numel()
        self.misplaced += ulp.numel() - int(finite) - int(special)
        self.within += int(accepted) + int(special)
        self.wrong += int(finite) - int(accepted)
        # In this order, so that NaN is ignored.
        so_far = self.score, self.max_abs, self.max_rel, self.max_ulp
        self.score, self.max_abs, self.max_rel, self.max_ulp = map(max, so_far, largest)
        if step:
            # Kept on the device: sorting all of them on a CPU would take long.
            sample = slice(None, None, step)
            self.ulps.append(torch.where(finite_there.flatten()[sample], ulp.flatten()[sample], math.nan))


class _Compared(NamedTuple):
    """The elements of a block.  Two finite numbers have an error; of others it counts as 0."""

    finite: torch.Tensor
    special: torch.Tensor
    """NaN or the same infinity in both."""
    accepted: torch.Tensor
    """Finite, and the error is within the limit."""
    score: torch.Tensor
    """Errors in the tolerance's unit."""
    difference: torch.Tensor
    relative: torch.Tensor
    ulp: torch.Tensor


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
    tolerance, unit, errors = op.tolerance(case), ROUNDOFF[accumulator], Errors(limit)
    for block in _blocks(tolerance, reference, output):
        errors.add(_compared(block, tolerance, unit, limit), step)
    return errors


def mismatch_of(
    op: Op,
    case: Case,
    reference: Reference,
    output: torch.Tensor,
    limit: float,
    accumulator: str = "fp32",
    unwritten: torch.Tensor | None = None,
) -> Mismatch | None:
    """The first wrong element of an output and a guess from the pattern of all.

    None where nothing is wrong, and where the output is too large or has gaps in memory.
    """
    if output.numel() > _MOST_LOCATED or output.stride() != torch.empty_like(output).stride():
        return None
    expected = torch.zeros_like(output, dtype=torch.float64)
    wrong = torch.zeros_like(output, dtype=torch.bool)
    tolerance, unit = op.tolerance(case), ROUNDOFF[accumulator]
    for block in _blocks(tolerance, reference, output):
        compared = _compared(block, tolerance, unit, limit)
        offset = block.out.storage_offset() - output.storage_offset()
        for whole, part in ((expected, block.ref), (wrong, ~(compared.accepted | compared.special))):
            whole.as_strided(part.shape, block.out.stride(), offset).copy_(part)
    plain = case.fill == "normal" and case.layout == "contiguous"
    moves = op.is_copy_only
    return mismatch(
        output, expected, wrong, plain=plain, formula=op.summary, moves=moves, unwritten=unwritten
    )


class _OutputBlock(NamedTuple):
    """A part of an output, small enough for some ten fp64 tensors of its size."""

    out: torch.Tensor
    ref: torch.Tensor
    """The reference, in fp64."""
    scale: torch.Tensor | None
    """The tolerance's absolute floor."""
    intermediate: torch.Tensor | None


def _blocks(tolerance: Tolerance, reference: Reference, output: torch.Tensor) -> Iterator[_OutputBlock]:
    """The pieces of the reference; those of long rows in several blocks."""
    for piece, out in reference.pieces(output):
        ref, scale = piece.values, None
        if piece.sizes is not None:
            scale = tolerance.floor * piece.sizes
        elif tolerance.reduced_dim is not None:
            scale = tolerance.floor * largest(ref, tolerance.reduced_dim)
        intermediate = piece.intermediate
        if ref.dim() == 0:  # a scalar is a row of one element
            out, ref = out[None], ref[None]
        row = ref.shape[-1]
        columns = piece_length(row, ref.numel())
        for begin in range(0, row, columns):
            part = slice(begin, begin + columns)
            of_rows = (
                x if x is None or x.dim() == 0 or x.shape[-1] < row else x[..., part]
                for x in (scale, intermediate)
            )
            yield _OutputBlock(out[..., part], ref[..., part], *of_rows)


def _compared(block: _OutputBlock, tolerance: Tolerance, unit: float, limit: float) -> _Compared:
    """The errors of a block's elements; ``unit`` is the roundoff of the accumulator's dtype."""
    out, ref, scale, intermediate = block
    if not out.is_floating_point():  # integers are not rounded: any difference is wrong
        difference = (out.double() - ref).abs()
        same = difference == 0
        score, relative = torch.where(same, 0.0, math.inf), difference / ref.abs().clamp(min=1.0)
        finite = torch.ones_like(same)
        return _Compared(finite, ~finite, same, score, difference, relative, difference)
    # A value that rounds to infinity in the output's dtype must be infinite there.
    rounded, got = ref.to(out.dtype).double(), out.double()
    finite = rounded.isfinite() & got.isfinite()
    special = ((rounded.isnan() & got.isnan()) | (rounded == got)) & ~finite
    magnitude = torch.where(finite, ref.abs(), 0.0)
    difference = torch.where(finite, (got - ref).abs(), 0.0)
    half_ulp = _half_ulp(magnitude, out.dtype)
    excess = difference if tolerance.exact else difference - half_ulp
    if intermediate is not None:
        rounding = torch.finfo(out.dtype).eps / 2 * intermediate
        # The value that is rounded in the end may lie beyond a power of two.
        excess = difference - rounding - _half_ulp(magnitude + rounding, out.dtype)
    allowed = unit * (magnitude if scale is None else magnitude + scale)
    score = torch.where(excess > 0, excess / allowed, 0.0)  # infinite where nothing is allowed
    normal = magnitude >= torch.finfo(out.dtype).smallest_normal
    relative = torch.where(normal, difference / magnitude, 0.0)
    accepted = (score <= limit) & finite
    return _Compared(finite, special, accepted, score, difference, relative, difference / (2 * half_ulp))


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
