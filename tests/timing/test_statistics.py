"""Medians: their 95% intervals cover the true median in 95% of cases, for any distribution."""

from __future__ import annotations

import math
import random
import statistics as standard
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.spec import Estimate
from compare.timing import statistics
from loops import for_each


def test_ranks_are_the_tightest_that_still_cover() -> None:
    for count in (6, 7, 10, 11, 20, 51, 100, 333, 1000):
        rank = statistics.lower_rank(count)
        # Probability that both samples of a rank, from either end, are on one side of the median.
        missed = [
            2 * sum(math.comb(count, below) for below in range(each)) / 2**count for each in (rank, rank + 1)
        ]
        assert missed[0] <= 0.05 < missed[1]


@pytest.mark.timeout(20)
def test_scipy_reads_off_the_same_interval() -> None:
    from scipy.stats import binom, quantile_test

    for count in (6, 10, 51, 200):
        generator = random.Random(count)
        samples = [generator.random() for _ in range(count)]
        theirs = quantile_test(samples, p=0.5).confidence_interval(0.95)
        ours = statistics.estimate(samples)
        assert (ours.low, ours.high) == (theirs.low, theirs.high)
    assert statistics.lower_rank(50_000) == binom.ppf(0.025, 50_000, 0.5)  # a series may be long


DRAWS: dict[str, tuple[Callable[[random.Random], float], float | None]] = {
    "normal": (lambda g: g.gauss(5, 1), 5.0),
    "long tail": (lambda g: g.lognormvariate(0, 2), 1.0),
    "hiccups": (lambda g: g.gauss(5, 1) if g.random() < 0.9 else g.uniform(5, 5000), None),
}


@for_each("name", DRAWS)
def test_the_interval_holds_the_median_as_often_as_it_says(name: str) -> None:
    generator, (draw, median) = random.Random(7), DRAWS[name]
    if median is None:
        median = standard.median(draw(generator) for _ in range(200_000))
    held = 0
    for _ in range(2000):
        found = statistics.estimate([draw(generator) for _ in range(25)])
        held += found.low <= median <= found.high
    assert 0.94 <= held / 2000 <= 0.98


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_an_estimate_keeps_every_sample_in_order(samples: list[float]) -> None:
    found = statistics.estimate(samples)
    assert found.samples == tuple(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.median == standard.median(samples)


def test_no_samples_and_nan_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        statistics.estimate([])
    with pytest.raises(ValueError, match="NaN"):
        statistics.estimate([1.0, math.nan])


def test_tight_means_both_ends_and_enough_samples() -> None:
    assert not statistics.within(statistics.estimate([1.0] * 5), 0.01)
    assert statistics.within(statistics.estimate([1.0] * 6), 0.01)
    samples = (0.0,) * 20
    assert statistics.within(Estimate(100.0, 99.0, 101.0, samples), 0.01)
    assert not statistics.within(Estimate(100.0, 98.9, 100.0, samples), 0.01)
    assert not statistics.within(Estimate(100.0, 100.0, 101.1, samples), 0.01)


def test_outliers_are_counted_and_ordinary_spread_is_not() -> None:
    generator = random.Random(1)
    usual = [generator.gauss(100, 1) for _ in range(200)]
    assert statistics.outliers(usual) <= 1
    assert statistics.outliers([*usual, 150.0, 40.0]) >= 2
    assert statistics.outliers([100.0] * 20) == 0
    assert statistics.outliers([100.0] * 20 + [100.5]) == 0  # within 1%: the clock's own grain
    assert statistics.outliers([]) == 0
