"""stream_copy: a vector is copied.  Memory traffic only, requested in several ways."""

from __future__ import annotations

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Invariant, Op, Tolerance, case
from ops.reduce_sum import DTYPES, HUGE, LYING, SMOKE


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[N]``."""
    return (tensor(case.shape, case, generator, device),)


def oracle(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def cost(case: Case) -> Cost:
    return Cost(
        flops=0,
        read_bytes=stored_bytes(case.shape, case),
        written_bytes=case["N"] * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Values are moved, not computed: subnormal ones too."""
    return Tolerance(least=0.0, exact=True)


def every_bit_is_kept(inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> str | None:
    """A copy keeps every bit: zero keeps its sign.  A NaN must stay a NaN, with any payload."""
    (x,) = inputs
    bits = torch.int32 if x.itemsize == 4 else torch.int16
    if torch.equal(output.view(bits), x.view(bits)):
        return None
    changed = int(((output.view(bits) != x.view(bits)) & ~(output.isnan() & x.isnan())).sum())
    return f"{changed} of {x.numel()} elements have other bits" if changed else None


CASES = Cases(
    default=case("fp32", N=2**26),
    smoke=SMOKE,
    edge=(
        *(case(dtype, N=size) for dtype in DTYPES for size in (0, 1, 127, 1024, 1025)),
        # Large enough that persistent blocks loop, past every stage of a ring and around again.
        case("fp32", N=200003),
        case("bf16", N=300007),
        case("bf16", N=2**24 + 5),  # the same on a GPU
        *LYING,
        *(case(dtype, fill=fill, N=515) for dtype in DTYPES for fill in ("huge", "neg_inf", "nan")),
        *HUGE,
    ),
    sweep=(
        *(case("fp32", N=2**power) for power in (10, 16, 20, 24, 26, 28)),
        *(case("bf16", N=2**power) for power in (20, 26, 28)),
        case("fp16", N=2**28),
        case("fp32", "misaligned", N=2**26),
    ),
)

OP = Op(
    name="stream_copy",
    summary="y = x: what there is to say to the memory, and what it buys",
    signature="x[N] -> y[N]",
    dims=("N",),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    invariants=(Invariant("every bit is kept", every_bit_is_kept),),
    independent="N",
)
