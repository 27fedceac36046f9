"""transpose: rows become columns, in memory.  No arithmetic: the cost is the order of accesses."""

from __future__ import annotations

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Invariant, Op, Tolerance, case


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[M,N]``."""
    return (tensor(case.shape, case, generator, device),)


def oracle(x: torch.Tensor) -> torch.Tensor:
    return x.t()


def cost(case: Case) -> Cost:
    return Cost(
        flops=0,
        read_bytes=stored_bytes(case.shape, case),
        written_bytes=case["M"] * case["N"] * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Values are moved, not computed: subnormal ones too."""
    return Tolerance(least=0.0, exact=True)


def every_bit_is_kept(inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> str | None:
    """A copy keeps every bit: zero keeps its sign.  A NaN must stay a NaN, with any payload."""
    (x,) = inputs
    bits = torch.int32 if x.itemsize == 4 else torch.int16
    y = output.t()
    if torch.equal(y.view(bits), x.view(bits)):
        return None
    changed = int(((y.view(bits) != x.view(bits)) & ~(y.isnan() & x.isnan())).sum())
    return f"{changed} of {x.numel()} elements have other bits" if changed else None


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("padded", "transposed", "sliced", "misaligned", "expanded")
_SIZES = ((0, 16), (16, 0), (1, 1), (1, 129), (127, 3), (33, 65), (64, 128), (523, 45))

CASES = Cases(
    default=case("fp32", M=8192, N=8192),
    # First whole 16-byte vectors and 32-byte sectors, more than one tile of each size; then neither.
    smoke=(
        case("fp32", M=72, N=100),
        case("fp16", M=144, N=104),
        case("bf16", M=211, N=67),
    ),
    edge=(
        *(case(dtype, M=rows, N=columns) for dtype in DTYPES for rows, columns in _SIZES),
        *(case(dtype, layout, M=144, N=72) for dtype in DTYPES for layout in _LAYOUTS),
        *(case(dtype, fill=fill, M=24, N=40) for dtype in DTYPES for fill in ("huge", "neg_inf", "nan")),
        case("bf16", M=65552, N=32768),
        case("bf16", M=65541, N=32771),
        case("bf16", M=2, N=2**30 + 3),
    ),
    sweep=(
        *(case("fp32", M=size, N=size) for size in (512, 2048, 8192)),
        *(case("bf16", M=size, N=size) for size in (2048, 8192, 16384)),
        case("fp16", M=8192, N=8192),
        case("bf16", M=131072, N=1024),
        case("bf16", M=1024, N=131072),
        *(case(dtype, M=8191, N=8193) for dtype in ("fp32", "bf16")),
        *(case(dtype, "transposed", M=8192, N=8192) for dtype in ("fp32", "bf16")),
    ),
)

OP = Op(
    name="transpose",
    summary="y[n,m] = x[m,n]: what the order of accesses costs",
    signature="x[M,N] -> y[N,M]",
    dims=("M", "N"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    invariants=(Invariant("every bit is kept", every_bit_is_kept),),
    independent="M",
)
