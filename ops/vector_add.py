"""vector_add: the elementwise sum of two vectors.  Memory traffic only."""

from __future__ import annotations

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, Tolerance, case


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x[N]`` and ``y[N]``."""
    x = tensor(case.shape, case, generator, device)
    y = tensor(case.shape, case, generator, device)
    return x, y


def oracle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def cost(case: Case) -> Cost:
    return Cost(
        flops=case["N"],
        read_bytes=2 * stored_bytes(case.shape, case),
        written_bytes=case["N"] * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """The exact sum, rounded once: fp32 has so many digits that no second rounding shows in 16 bits."""
    return Tolerance(least=0.25)


DTYPES = ("fp32", "fp16", "bf16")

CASES = Cases(
    default=case("fp32", N=2**26),
    smoke=(
        case("fp32", N=4096),
        case("fp16", N=1000),
        case("bf16", N=2049),
    ),
    edge=(
        *(case(dtype, N=size) for dtype in DTYPES for size in (0, 1, 127, 1024, 1025)),
        *(case(dtype, layout, N=1031) for dtype in DTYPES for layout in ("sliced", "misaligned", "expanded")),
        *(case(dtype, fill=fill, N=515) for dtype in DTYPES for fill in ("huge", "neg_inf", "nan")),
        case("bf16", N=2**31 + 5),
        case("fp32", N=2**31 + 8),
    ),
    sweep=(
        *(case("fp32", N=2**power) for power in (10, 14, 18, 22, 26, 28)),
        *(case("bf16", N=2**power) for power in (10, 18, 26, 28)),
        case("fp16", N=2**28),
        case("fp32", "misaligned", N=2**26),
    ),
)

OP = Op(
    name="vector_add",
    summary="z = x + y, element by element: pure memory traffic",
    signature="x[N], y[N] -> z[N]",
    dims=("N",),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    independent="N",
)
