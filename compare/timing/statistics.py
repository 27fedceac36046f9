"""Medians with distribution-free confidence intervals.

Times are neither normal nor symmetric, so the interval of a median comes from the ordered samples.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from compare.model.result import Estimate

CONFIDENCE = 0.95

ENOUGH = 6
"""Least number of samples whose range covers the median with that confidence."""
FEW = 10.0
"""With fewer samples, the interval holds this multiple of the variance between processes."""

ACROSS = 2.0
"""Between two runs, clocks and temperature differ more: there the interval holds this multiple."""

RatioVerdict = Literal["faster", "slower", "same", "ambiguous"]

OUTLIER = 5.0
"""Distance of an outlier from the median, as a multiple of the usual spread."""


def estimate(samples: Sequence[float]) -> Estimate:
    """The median of ``samples``, its 95% confidence interval and the samples in their order.

    Below six samples no pair of them covers the median with 95% confidence: the interval is their range.

    Raises:
        ValueError: there is no sample, or one is NaN.
    """
    if not samples:
        raise ValueError("no samples to take a median of")
    if any(math.isnan(sample) for sample in samples):
        raise ValueError("a sample is NaN")
    ordered = sorted(samples)
    rank = lower_rank(len(ordered))
    return Estimate(statistics.median(ordered), ordered[rank - 1], ordered[-rank], tuple(samples))


@functools.cache
def lower_rank(count: int) -> int:
    """The rank, from 1, of the ordered sample that bounds the median from below (from above: from the end).

    The number of independent samples below the true median is binomial with p = 1/2 for any distribution.
    """
    # ways: outcomes, of 2^count, with `rank` samples below the median; so_far: with at most `rank`.
    rank, ways, so_far = 0, 1, 1
    allowed = math.floor(Fraction((1 - CONFIDENCE) / 2) * 2**count)
    while so_far <= allowed:
        rank += 1
        ways = ways * (count - rank + 1) // rank
        so_far += ways
    return max(1, rank)


def paired(mine: Sequence[float], others: Sequence[float]) -> list[float]:
    """Speedups of one implementation vs. another, from pairs of samples of the same round.

    One that is left out of a round is left out of all later ones: its samples are those of the first rounds.
    """
    pairs = zip(mine, others, strict=False)
    return [theirs / ours for ours, theirs in pairs if ours > 0 and theirs > 0]


def within(value: Estimate, share: float) -> bool:
    """Whether both ends of a real 95% interval lie within ``share`` of the median."""
    if len(value.samples) < ENOUGH:
        return False
    margin = share * abs(value.median)
    return value.high - value.median <= margin and value.median - value.low <= margin


def widened(ratio: Estimate, between: float) -> Estimate:
    """``ratio`` with an interval that also holds the variance between processes.

    One process is one draw: addresses of code and memory change its times, and more samples of the same
    process do not show by how much.  Pairs of equals in two processes do (`compare.timing.calibration`).  The
    two parts are independent, so their squares add up, in logarithms.

    Args:
        ratio: a ratio, and the interval of its samples.
        between: the largest difference that equals show in two processes, as a share.
    """
    if ratio.median <= 0 or ratio.low <= 0:
        return ratio
    limit = math.log1p(between)
    down = math.hypot(math.log(ratio.median / ratio.low), limit)
    up = math.hypot(math.log(ratio.high / ratio.median), limit)
    return replace(ratio, low=ratio.median * math.exp(-down), high=ratio.median * math.exp(up))


def differs(ratio: Estimate) -> bool:
    """Whether a ratio counts as a difference: its interval, `widened`, excludes 1."""
    return ratio.median > 0 and not ratio.low <= 1 <= ratio.high


def verdict(ratio: Estimate, between: float) -> RatioVerdict:
    """The verdict on a ratio (above 1: faster), from the interval of its samples.

    A difference, as in `differs`; the same where the whole interval lies within ``between`` of 1; else
    ambiguous, and more samples would decide.
    """
    if differs(widened(ratio, between)):
        return "faster" if ratio.median > 1 else "slower"
    same = 1 / (1 + between) <= ratio.low and ratio.high <= 1 + between
    return "same" if same else "ambiguous"


def outliers(samples: Sequence[float]) -> int:
    """How many samples are further from the median than `OUTLIER` median deviations and than 1%."""
    if not samples:
        return 0
    middle = statistics.median(samples)
    spread = statistics.median(abs(sample - middle) for sample in samples)
    limit = max(OUTLIER * 1.4826 * spread, 0.01 * abs(middle))
    return sum(abs(sample - middle) > limit for sample in samples)


def between(old: Estimate, new: Estimate) -> Estimate:
    """Speedup of ``new`` over ``old``, from two independent medians and their intervals.

    The squared distances to the ends, in logarithms, add up: G. Y. Zou and A. Donner, "Construction of
    confidence limits about effect measures", Statistics in Medicine 27 (2008).
    """
    down = math.hypot(math.log(old.median / old.low), math.log(new.high / new.median))
    up = math.hypot(math.log(old.high / old.median), math.log(new.median / new.low))
    ratio = old.median / new.median
    return Estimate(ratio, ratio * math.exp(-down), ratio * math.exp(up))
