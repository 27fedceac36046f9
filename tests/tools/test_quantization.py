"""The table of quantization errors: the same on every machine, and what the text beside it says."""

from __future__ import annotations

import pytest
import torch

from tools.docs.quantization import FACTORS, QUANTIZERS, error


def test_an_error_is_the_same_each_time() -> None:
    assert error("int8_matmul", 16) == error("int8_matmul", 16)


def test_what_the_text_says_of_it() -> None:
    int8, rows, blocks = ([error(op, factor) for factor in FACTORS] for op in QUANTIZERS)
    assert int8[0] < blocks[0] < rows[0] < 1 / 16
    assert int8 == sorted(int8)
    assert int8[1] > rows[1] > blocks[1]
    assert rows[2] == pytest.approx(rows[0], rel=0.01)
    assert rows[-1] > 1.5 * blocks[-1] > blocks[0]


@pytest.mark.parametrize("op", QUANTIZERS)
def test_each_scale_makes_its_largest_element_the_largest_code(op: str) -> None:
    x = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    for quantize in QUANTIZERS[op]:
        values, scales = quantize(x)
        largest = 127 if op == "int8_matmul" else 448
        shared = values.float().abs().view(scales.shape[0], 256 // scales.shape[0], *scales.shape[1:], -1)
        assert torch.equal(shared.amax((1, -1)), torch.full(scales.shape, float(largest)))
