"""new_op: the square of each element.  Memory traffic only."""

from __future__ import annotations

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, Tolerance, case


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[N]``."""
    return (tensor(case.shape, case, generator, device),)


def oracle(x: torch.Tensor) -> torch.Tensor:
    return x * x


def cost(case: Case) -> Cost:
    """One multiplication per element."""
    return Cost(
        flops=case["N"],
        read_bytes=stored_bytes(case.shape, case),
        written_bytes=case["N"] * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """One fp32 multiplication, correctly rounded, and one rounding to the dtype."""
    return Tolerance(least=1.0)


DTYPES = ("fp32", "fp16", "bf16")

CASES = Cases(
    default=case("fp32", N=2**26),
    smoke=(case("fp32", N=4096), case("fp16", N=1000), case("bf16", N=2049)),
    edge=(
        *(case(dtype, N=size) for dtype in DTYPES for size in (0, 1, 127, 1025)),
        *(case(dtype, layout, N=1031) for dtype in DTYPES for layout in ("sliced", "misaligned", "expanded")),
        *(case(dtype, fill=fill, N=515) for dtype in DTYPES for fill in ("huge", "neg_inf", "nan")),
        case("bf16", N=2**31 + 5),
    ),
    sweep=tuple(case(dtype, N=2**power) for dtype in ("fp32", "bf16") for power in (16, 20, 24, 26, 28)),
)

OP = Op(
    name="new_op",
    summary="y = x * x, element by element",
    signature="x[N] -> y[N]",
    dims=("N",),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    independent="N",
)
