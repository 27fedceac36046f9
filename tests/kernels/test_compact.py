"""What compact promises beyond its values: an end that can be found, and nothing looked at behind it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from compare import registry
from compare.model.op import Case, Implementation, case
from cuda_impl.loader import kernel
from loops import for_each
from mutants import baseline, checked, failed, spoiled
from on_device import each_of
from rows import labelled

pytestmark = pytest.mark.thorough

OP = registry.get_op("compact")


def inputs_of(c: Case) -> torch.Tensor:
    (x,) = OP.make_inputs(c, torch.Generator().manual_seed(0), torch.device("cpu"))
    return x


@for_each(
    "N, K, fill",
    [
        (N, K, fill)
        for N, K in ((1000, 0), (1000, 1), (1000, 333), (1000, 999), (1000, 1000), (1, 1))
        for fill in ("normal", "huge", "neg_inf", "nan")
    ],
)
def test_a_case_says_how_many_are_kept(N: int, K: int, fill: str) -> None:
    x = inputs_of(case("fp16", fill=fill, N=N, K=K))
    assert int((x > 0).sum()) == K
    if K < N // 2:
        assert (x == 0).any()
        assert bool(x.isnan().any()) == (fill == "nan")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_some_that_are_kept_are_subnormal(dtype: str) -> None:
    """Which kernels that flush them compare as 0."""
    x = inputs_of(case(dtype, N=1000, K=333))
    assert int(((x > 0) & (x < torch.finfo(x.dtype).tiny)).sum()) == 48


def test_what_is_kept_lies_anywhere() -> None:
    places = (inputs_of(case(N=10000, K=100)) > 0).nonzero().flatten()
    gaps = places.diff()
    assert gaps.unique().numel() > 30
    assert gaps.max() > 200


def test_a_right_output_passes_whatever_stands_behind_its_end() -> None:
    c = case(N=1000, K=400)
    for behind in (0.0, math.nan, 7.0):
        assert spoiled(OP, c, lambda y, behind=behind: y[401:].fill_(behind)).passed


@pytest.mark.parametrize(
    ("K", "spoil", "finding"),
    [
        (400, lambda y: y[400:401].fill_(1.0), "NaN and infinity"),  # no end: as if one more were kept
        (400, lambda y: y[399:400].fill_(math.nan), "NaN and infinity"),  # one too few
        (400, lambda y: y[399:400].fill_(-1.0), "values"),
        (1000, lambda y: y[999:].fill_(-1.0), "values"),
        (1000, lambda y: y[999:].fill_(math.nan), "NaN and infinity"),
        (0, lambda y: y[:1].fill_(0.0), "NaN and infinity"),
    ],
)
def test_a_wrong_count_is_caught(K: int, spoil: Callable[[torch.Tensor], None], finding: str) -> None:
    assert finding in failed(spoiled(OP, case(N=1000, K=K), spoil))


@pytest.mark.parametrize(
    ("K", "caught"), [(400, {"all written", "NaN and infinity"}), (1000, {"all written"})]
)
def test_an_element_that_is_left_out_is_caught(K: int, caught: set[str]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        right = baseline(OP)(x)
        y[: K - 1] = right[: K - 1]
        y[K:] = right[K:]
        return y

    assert caught <= failed(checked(OP, case(N=1000, K=K), torch.device("cpu"), run))


@each_of("compact")
def test_infinity_is_kept_and_nan_and_zero_are_not(impl: Implementation, device: torch.device) -> None:
    least = 2.0**-24  # of fp16, below its normal numbers
    x = torch.tensor(
        [-0.0, math.inf, math.nan, least, 0.0, -math.inf, -1.0, 2.0, math.nan], device=device
    ).half()
    y = impl.run(x)
    assert y[:3].tolist() == [math.inf, least, 2.0]
    assert y[3].isnan()


LATE = """
#include "compact.cuh"
__global__ void looks_back(word_t* of_tile, int tile, index_t* y, int late, word_t word) {
    if (blockIdx.x == 0) {
        const index_t before = look_back(of_tile, tile);
        if (threadIdx.x == 0) y[0] = before;
    } else if (threadIdx.x == 0) {
        publish(of_tile + late, word & 3, word >> 2);
    }
}
"""
UNKNOWN, OWN, ALL = 0, 1, 2


@for_each("tile, known", list(itertools.product((1, 32, 33, 128, 129, 300), (1, 31, 32, 33, 140, 299))))
def test_a_look_back_adds_up_to_the_first_that_knows_all(known: int, tile: int, device: torch.device) -> None:
    """Whatever stands behind that one, and though one of those before it comes late."""
    generator = torch.Generator().manual_seed(known)
    count = torch.randint(2**33, (tile,), generator=generator)
    state = torch.full((tile,), OWN)
    first = tile - known
    if first >= 0:
        state[:first] = torch.randint(3, (first,), generator=generator)
        state[first] = ALL
    else:
        state[0] = ALL
    word = count * 4 + state
    expected = int(count[max(first, 0) :].sum())
    for late in {max(first, 0), (max(first, 0) + tile) // 2, tile - 1}:
        words = word.clone()
        words[late] = UNKNOWN
        words, y = words.to(device), torch.zeros(1, dtype=torch.int64, device=device)
        arguments = (
            words.data_ptr(),
            np.int32(tile),
            y.data_ptr(),
            np.int32(late),
            np.uint64(int(word[late])),
        )
        kernel(LATE, "looks_back", words.device)((2,), (32,), arguments)
        assert int(y) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["cupy.onepass", "pybind.onepass", "triton.onepass"])
def test_tiles_that_wait_for_each_other_come_to_an_end(label: str) -> None:
    """Many more tiles than run at a time, with another kernel in their way."""
    impl, x = labelled("compact", label), torch.randn(2**26 + 3, device="cuda")
    expected = x[x > 0]
    side = torch.cuda.Stream()
    for _ in range(50):
        with torch.cuda.stream(side):
            x.sum()
        y = impl.run(x)
        assert torch.equal(y[: expected.numel()], expected)
        assert y[expected.numel()].isnan()
