"""scan beyond its values: a tree of sums that is the same in every run, whatever comes late."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compare import registry
from compare.model.op import Implementation, case
from cuda_impl.loader import kernel
from loops import for_each
from on_device import each_of
from rows import labelled

pytestmark = pytest.mark.thorough

OP = registry.get_op("scan")
GROUP = 32
TILES = 3000

LATE = """
#include "scan.cuh"
__global__ void looks_back(word_t* words, int tiles, int c, float tile_sum, float* y, int late, word_t word) {
    if (blockIdx.x == 0) {
        const float before = look_back(words, tiles, c, tile_sum);
        if (threadIdx.x == 0) y[0] = before;
    } else if (threadIdx.x == 0) {
        publish(words + late, __uint_as_float(unsigned(word)));
    }
}
"""


def word(total: float) -> int:
    return 1 << 32 | int(np.float32(total).view(np.uint32))


@for_each("c", (0, 1, 31, 32, 40, 1023, 1024, 1031, 1055, 2047, 2048, 2999))
def test_a_look_back_adds_the_tree_of_sums_though_one_comes_late(c: int, device: torch.device) -> None:
    """Words that it does not need stay unknown.  The bits are the same whichever comes late."""
    sums = torch.randn(TILES, generator=torch.Generator().manual_seed(c))
    group, prefix = c // GROUP, c // GROUP**2
    groups, prefixes = TILES, TILES + TILES // GROUP
    needed = {i: float(sums[i]) for i in range(group * GROUP, c)}
    for g in range(prefix * GROUP, group):
        needed[groups + g] = float(sums[g * GROUP : (g + 1) * GROUP].sum())
    if prefix > 0:
        needed[prefixes + prefix - 1] = float(sums[: prefix * GROUP**2].sum())
    words = torch.zeros(prefixes + TILES // GROUP**2, dtype=torch.int64)
    for place, total in needed.items():
        words[place] = word(total)
    seen = set()
    for late in sorted(needed)[:: max(1, len(needed) - 1)] or [len(words) - 1]:
        given = words.clone()
        given[late] = 0
        given, y = given.to(device), torch.zeros(1, device=device)
        arguments = (
            given.data_ptr(),
            *(np.int32(TILES), np.int32(c), np.float32(sums[c]), y.data_ptr(), np.int32(late)),
            np.uint64(int(words[late])),
        )
        kernel(LATE, "looks_back", given.device)((2,), (32,), arguments)
        seen.add(float(y))
        published = {}
        if c % GROUP == GROUP - 1:
            published[groups + group] = sums[group * GROUP : c + 1].sum()
        if c % GROUP**2 == GROUP**2 - 1:
            published[prefixes + prefix] = sums[: c + 1].sum()
        for place, total in published.items():
            found = given.cpu()[place : place + 1].view(torch.float32)[0]
            torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-4)
    (before,) = seen
    assert before == pytest.approx(float(sums[:c].double().sum()), rel=1e-4, abs=1e-4)


SMALLEST = {"cuda": (128, {"VECTORS": 1, "THREADS": 32}), "triton": (64, {"BLOCK_N": 64})}
"""Columns of a tile of fp32, and the parameters that choose it."""


@each_of("scan", where=lambda impl: impl.label in ("cupy.lookback", "triton.lookback"))
def test_a_row_has_more_tiles_than_a_prefix(impl: Implementation, device: torch.device) -> None:
    columns, choices = SMALLEST[impl.way]
    c = case("fp32", M=1, N=columns * (GROUP**2 + 2) + 1)
    inputs = OP.make_inputs(c, torch.Generator().manual_seed(0), torch.device("cpu"))
    OP.sensitive_inputs.change(inputs)
    y = impl.run(inputs[0].to(device), **choices)
    assert torch.equal(y.cpu().double(), OP.oracle(inputs[0].double()))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_whole_steps_have_outputs_that_every_dtype_holds(dtype: str) -> None:
    (x,) = inputs = OP.make_inputs(
        case(dtype, M=3, N=70001), torch.Generator().manual_seed(0), torch.device("cpu")
    )
    OP.sensitive_inputs.change(inputs)
    y = OP.oracle(x.double())
    assert y.to(x.dtype).double().equal(y)
    assert y.abs().max() <= 120
    assert (x != 0).float().mean() > 0.9


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["cupy.lookback", "pybind.lookback", "triton.lookback"])
def test_the_same_bits_come_back(label: str) -> None:
    """Of many more tiles than run at a time, with another kernel in their way."""
    impl, x = labelled("scan", label), torch.randn(1, 2**26 + 3, device="cuda")
    first = impl.run(x)
    side = torch.cuda.Stream()
    for _ in range(50):
        with torch.cuda.stream(side):
            x.sum()
        assert torch.equal(impl.run(x), first)
