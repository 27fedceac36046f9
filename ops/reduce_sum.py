"""reduce_sum: the sum of all elements of a vector.  Everything is read, one number is written.

The output is fp32 for every input type, as with ``torch.sum(x, dtype=torch.float32)``: a sum of many fp16
elements would overflow, and a bf16 result would keep only 8 of the accumulator's 24 bits.
"""

from __future__ import annotations

import math

import torch

from compare.inputs import stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, SensitiveInputs, Tolerance, case


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[N]``."""
    return (tensor(case.shape, case, generator, device),)


def oracle(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def magnitude(x: torch.Tensor) -> torch.Tensor:
    """The sum of magnitudes: where terms cancel, their rounding errors do not."""
    return x.abs().sum()


def cost(case: Case) -> Cost:
    return Cost(flops=case["N"], read_bytes=stored_bytes(case.shape, case), written_bytes=4)


def tolerance(case: Case) -> Tolerance:
    """Error of a sum in parts, relative to the sum of magnitudes.

    A running sum of n terms of random signs is a random walk, and so is its error: 0.35 roundings of the
    magnitudes, up to 1.5, however large n.  Errors of parts have random signs: with parts of 4096 elements
    the total loses (4096 / N)^1/2 of that.
    """
    return Tolerance(least=1.5 * min(1.0, 64 / math.sqrt(max(case["N"], 1))))


_MANY_DIGITS = {
    torch.float32: (2049.0, -2051.0),
    torch.float16: (2047.0, -2045.0),
    torch.bfloat16: (255.0, -253.0),
}
"""Numbers that need every digit of their dtype, of fp32 one more than fp16 has."""

_PIECE = 1 << 24


def whole_numbers(inputs: tuple[torch.Tensor, ...]) -> None:
    """Whole numbers from 1 to 4 of either sign, and few of up to 12 bits: all sums of them are exact in fp32.

    So a term shows that is lost, counted twice or rounded, among however many.
    """
    (x,) = inputs
    for piece in x.split(_PIECE):
        piece.copy_(piece.abs().mul_(2).floor_().clamp_(max=3).add_(1).copysign_(piece))
        few = piece[7::4096]
        few.copy_(torch.where(few > 0, *_MANY_DIGITS[x.dtype]))


DTYPES = ("fp32", "fp16", "bf16")

# For every op on a vector: smoke cases, layouts, and more than 2^31 elements.
SMOKE = (case("fp32", N=4096), case("fp16", N=1000), case("bf16", N=16383))
LYING = tuple(
    case(dtype, layout, N=1031) for dtype in DTYPES for layout in ("sliced", "misaligned", "expanded")
)
HUGE = (case("bf16", N=2**31 + 5), case("fp32", N=2**31 + 8))

_SIZES = (0, 1, 127, 256, 257, 70001)

CASES = Cases(
    default=case("fp32", N=2**28),
    smoke=SMOKE,
    edge=(
        *(case(dtype, N=size) for dtype in DTYPES for size in _SIZES),
        *LYING,
        *(case(dtype, fill=fill, N=515) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # With more than two elements, some summation orders overflow and others do not.
        case("fp16", fill="huge", N=515),
        case("fp32", fill="huge", N=2),
        case("bf16", fill="huge", N=2),
        *HUGE,
    ),
    sweep=(
        *(case("fp32", N=2**power) for power in (10, 16, 20, 24, 28, 30)),
        *(case("bf16", N=2**power) for power in (20, 24, 28, 30)),
        case("fp16", N=2**28),
        case("fp32", "misaligned", N=2**26),
    ),
)

OP = Op(
    name="reduce_sum",
    summary="y = sum of all x[n]: reading, and threads that meet",
    signature="x[N] -> y[]",
    dims=("N",),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    magnitude=magnitude,
    sensitive_inputs=SensitiveInputs(whole_numbers, exact=True),
    output_dtype="fp32",
)
