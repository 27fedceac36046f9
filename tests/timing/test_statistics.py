"""Medians: their 95% intervals cover the true median in 95% of cases, for any distribution."""

from __future__ import annotations

import math
import random
import statistics as standard

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.model.result import Estimate
from compare.timing import statistics


@pytest.mark.timeout(20)
def test_scipy_reads_off_the_same_interval() -> None:
    """The tightest that covers the median in at least 95% of cases, whatever the distribution."""
    from scipy.stats import binom, quantile_test

    for count in (6, 7, 10, 11, 20, 51, 100, 200, 333, 1000):
        generator = random.Random(count)
        samples = [generator.random() for _ in range(count)]
        theirs = quantile_test(samples, p=0.5).confidence_interval(0.95)
        ours = statistics.estimate(samples)
        assert (ours.low, ours.high) == (theirs.low, theirs.high)
    assert statistics.lower_rank(50_000) == binom.ppf(0.025, 50_000, 0.5)  # a series may be long


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
