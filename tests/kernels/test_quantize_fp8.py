"""quantize_fp8: codes bit for bit, on every value of e4m3, every midpoint, saturation and NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compare import registry
from compare.model.op import Implementation, case
from cuda_impl.loader import kernel
from on_device import each_of
from ops.quantize_fp8 import LARGEST, oracle, oracle_scales

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")
E4M3 = torch.float8_e4m3fn
EVERY = torch.arange(256, dtype=torch.uint8).view(E4M3).float()
FINITE = EVERY[~EVERY.isnan()]
POSITIVE = EVERY[:127]
MIDDLE = (POSITIVE[1:] + POSITIVE[:-1]) / 2
"""Between each two neighbours: fp32 holds them exactly."""

CONVERT = """
#include "quantize_fp8.cuh"
__global__ void codes(const float* x, unsigned char* one, unsigned short* pair, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        one[i] = to_e4m3(x[i]);
        pair[i] = to_e4m3_pair(x[i], x[count - 1 - i]);
    }
}
__global__ void quotients(const float* x, const float* scale, float* q, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) q[i] = Divisor(scale[i]).quotient(x[i]);
}
"""


def codes_of(x: torch.Tensor) -> torch.Tensor:
    """By the kernels' conversion, of one element and of two at a time."""
    one = torch.zeros(len(x), dtype=torch.uint8)
    pair = torch.zeros(len(x), dtype=torch.int16)
    arguments = (x.data_ptr(), one.data_ptr(), pair.data_ptr(), np.int32(len(x)))
    kernel(CONVERT, "codes", CPU)((1,), (32,), arguments)
    assert torch.equal((pair & 0xFF).to(torch.uint8), one)
    assert torch.equal((pair >> 8 & 0xFF).to(torch.uint8), one.flip(0))
    return one


def test_every_code_and_every_midpoint_are_converted_as_pytorch_does() -> None:
    above, below = (torch.nextafter(MIDDLE, torch.full_like(MIDDLE, end)) for end in (1e9, 0.0))
    x = torch.cat((FINITE, *(sign * near for near in (MIDDLE, above, below) for sign in (1, -1))))
    assert torch.equal(codes_of(x), x.to(E4M3).view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_number_is_converted_as_pytorch_does(dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    x = x[x.abs() < 464]  # PyTorch makes NaN of the larger ones
    assert torch.equal(codes_of(x), x.to(E4M3).view(torch.uint8))


def test_what_is_too_large_saturates_and_nan_stays() -> None:
    huge = torch.tensor([448.0, 448.1, 463.9, 464.0, 465.0, 480.0, 1e9, torch.inf])
    assert codes_of(torch.cat((huge, -huge))).tolist() == [0x7E] * 8 + [0xFE] * 8
    assert codes_of(torch.tensor([torch.nan])).tolist() in ([0x7F], [0xFF])
    assert codes_of(torch.tensor([0.0, -0.0, 1e-30, -1e-30])).tolist() == [0, 0x80, 0, 0x80]


def quotients_of(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(x)
    arguments = (x.data_ptr(), scale.data_ptr(), found.data_ptr(), np.int32(len(x)))
    kernel(CONVERT, "quotients", CPU)((1,), (32,), arguments)
    return found


def test_a_corrected_product_with_the_reciprocal_is_the_quotient() -> None:
    """Of random numbers, and of those next to a scale times a midpoint, where a rounding changes the code."""
    generator = torch.Generator().manual_seed(0)
    count = 1 << 20
    scale = torch.rand(count, generator=generator) * 2.0 ** torch.randint(
        -40, 40, (count,), generator=generator
    )
    scale = scale.clamp(min=1e-12 / LARGEST)
    middle = MIDDLE[torch.randint(len(MIDDLE), (count,), generator=generator)]
    near = middle * scale
    moved = near.view(torch.int32) + torch.randint(-2, 3, (count,), generator=generator, dtype=torch.int32)
    for x in (near, moved.view(torch.float32), torch.randn(count, generator=generator) * scale):
        assert torch.equal(quotients_of(x, scale), x / scale)


def test_quotients_of_special_numbers() -> None:
    """No number is greater than its group's largest magnitude, whose scale it is divided by."""
    largest = 3.4028235e38
    for scale, numbers in (
        (torch.inf, [0.0, 1.0, -largest, torch.inf, -torch.inf]),
        (torch.nan, [0.0, 1.0, torch.nan, torch.inf]),
        (1e-12 / LARGEST, [1e-45, 1e-12, -1e-12, 1e-13]),
        (largest / LARGEST, [1e-45, 1.0, largest, -largest, 1e38]),
    ):
        x = torch.tensor(numbers)
        found, wanted = quotients_of(x, torch.full_like(x, scale)), x / scale
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num().to(E4M3).float(), wanted.nan_to_num().to(E4M3).float())


@each_of("quantize_fp8")
def test_every_code_is_quantized_to_itself(impl: Implementation) -> None:
    """A row of all values has the scale 1; the midpoints beside them go to the even neighbour."""
    x = torch.cat((FINITE[FINITE.view(torch.int32) != -(2**31)], MIDDLE, -MIDDLE, torch.zeros(7)))[None]
    for row in (x, x.to(torch.bfloat16), x.half()):
        assert row.size(1) % 8 == 0
        values, scales = impl.run(row, group=0)
        assert scales.tolist() == [1.0]
        assert torch.equal(values.view(torch.uint8), row.float().to(E4M3).view(torch.uint8))


@each_of("quantize_fp8")
def test_groups_of_zeros_and_of_the_least_maximum(impl: Implementation) -> None:
    x = torch.zeros(2, 256)
    x[1, 3], x[1, 200] = 5e-13, 2e-12
    values, scales = impl.run(x, group=128)
    least = np.float32(1e-12) / np.float32(LARGEST)
    assert scales[0].tolist() == [least, least]
    assert scales[1].tolist() == [least, float(np.float32(2e-12) / np.float32(LARGEST))]
    assert int(values.view(torch.uint8).count_nonzero()) == 2
    assert float(values[1, 200].float()) == LARGEST


@each_of("quantize_fp8")
def test_a_group_that_is_no_number_of_columns_is_refused(impl: Implementation) -> None:
    x = torch.ones(2, 16)
    with pytest.raises(
        ValueError, match="quantize_fp8: group is -1; it takes 0, for a whole row, or a number"
    ):
        impl.run(x, group=-1)
    with pytest.raises(TypeError, match="quantize_fp8: group is a float; it takes an int"):
        impl.run(x, group=2.0)


@pytest.mark.parametrize("group", [0, 128, 100])
def test_the_oracle_s_values_times_scales_are_near_x(group: int) -> None:
    op = registry.get_op("quantize_fp8")
    c = case("fp32", M=9, K=333, group=group)
    (x,) = op.make_inputs(c, torch.Generator().manual_seed(1), CPU)
    wide = x.double()
    scales = oracle_scales(wide, group).view(9, -1)
    of_column = scales[:, torch.arange(333) // (group or 333)]
    off = (oracle(wide, group) * of_column - wide).abs()
    # Half a unit of the last of 4 digits, or of the least number.
    assert (off <= wide.abs() * 2.0**-4 + of_column * 2.0**-10).all()
    assert float(scales.max() / scales.min()) > 1e9


def test_the_seeded_rows_have_scales_of_many_sizes() -> None:
    op = registry.get_op("quantize_fp8")
    for c in op.cases.smoke:
        (x,) = op.make_inputs(c, torch.Generator().manual_seed(0), CPU)
        scales = oracle_scales(x.double(), c["group"])
        assert len(scales.unique()) > scales.numel() / 2
