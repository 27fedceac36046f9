"""compact: the elements of a vector that are greater than 0, in order and without gaps (stream compaction).

The number kept depends on the values, but an output's shape cannot.  So y has x's size and ends early, as a
string does in C: after the last kept element comes a NaN, if there is room.  No kept element is a NaN,
because a NaN is not greater than 0.  What follows the NaN is unspecified and not checked: filling it could
double the writes, and would no longer be a compaction.  With the NaN inside y, a wrong count shows in the
values, and y is an ordinary tensor.

A case gives the number kept: ``N=4096,K=2048`` has 2048 of 4096 elements above 0, at random places.
Implementations do not receive K.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, Tolerance, UsageError, case

_PIECE = 1 << 24
"""Elements whose places are drawn together; each piece keeps its share of K."""


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[N]`` with K elements above 0, some of them subnormal; some of the others are 0.

    A special fill applies to both: ``nan`` puts infinities among the kept elements and NaN among the others.

    Raises:
        UsageError: K is greater than N.
    """
    N, K = case["N"], case["K"]
    if K > N:
        raise UsageError(f"case {case}: of N={N} elements no K={K} can be kept. Say K={N} or less")
    # Without the fill's own infinities and NaN: signs are set below.
    drawn = replace(case, fill="huge" if case.fill == "huge" else "normal")
    x = tensor((N,), drawn, generator, device)
    if device.type == "meta":
        return (x,)
    for begin in range(0, N, _PIECE):
        piece = x[begin : begin + _PIECE]
        end = begin + piece.numel()
        share = end * K // N - begin * K // N
        shuffled = torch.randperm(piece.numel(), generator=generator, device=generator.device).to(device)
        kept, rest = shuffled[:share], shuffled[share:]
        sizes = piece.abs().clamp(min=torch.finfo(x.dtype).tiny)
        piece[kept] = sizes[kept]
        piece[kept[1::7]] = torch.finfo(x.dtype).tiny / 4  # subnormal
        piece[rest] = -sizes[rest]
        piece[rest[::5]] = 0.0
        if case.fill == "neg_inf":
            piece[rest[1::2]] = -math.inf
        elif case.fill == "nan":
            piece[kept[::5]] = math.inf
            piece[rest[1::5]] = math.nan
    return (x,)


def oracle(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    if x.is_meta:
        return y
    count = 0
    for piece in x.split(_PIECE):  # selecting takes several times a piece's memory
        kept = piece[piece > 0]
        y[count : count + kept.numel()] = kept
        count += kept.numel()
    y[count : count + 1] = math.nan
    return y


def mask_unspecified(inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    """Zeros after the end, where any value is allowed."""
    (x,) = inputs
    output[int((x > 0).sum()) + 1 :] = 0.0


def cost(case: Case) -> Cost:
    """Every element read; the kept elements and the NaN after them written."""
    N, K = case["N"], case["K"]
    written = min(K + 1, N)
    return Cost(flops=0, read_bytes=stored_bytes((N,), case), written_bytes=written * ITEM_BYTES[case.dtype])


def tolerance(case: Case) -> Tolerance:
    """Values are moved, not computed: subnormal ones too."""
    return Tolerance(least=0.0, exact=True)


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("sliced", "misaligned")
_EDGES = ((0, 0), (1, 0), (1, 1), (127, 60), (1025, 0), (1025, 1), (1025, 1024), (1025, 1025), (70001, 30000))
"""Empty, one element; nothing, one, all but one and all kept; several tiles."""

CASES = Cases(
    default=case("fp32", N=2**28, K=2**27),
    smoke=(
        case("fp32", N=4096, K=2048),
        case("fp16", N=10000, K=3000),
        case("bf16", N=16383, K=15000),
    ),
    edge=(
        *(case(dtype, N=N, K=K) for dtype in DTYPES for N, K in _EDGES),
        *(case(dtype, layout, N=13009, K=5000) for dtype in DTYPES for layout in _LAYOUTS),
        case("fp16", "misaligned", N=80007, K=30000),
        *(case(dtype, fill=fill, N=515, K=250) for dtype in DTYPES for fill in ("huge", "neg_inf", "nan")),
        case("bf16", N=2**31 + 5, K=2**31 + 1),
        case("fp32", N=2**31 + 8, K=2**20),
    ),
    sweep=(
        *(case("fp32", N=2**power, K=2 ** (power - 1)) for power in (12, 20, 24, 28)),
        *(case("fp32", N=2**28, K=K) for K in (0, 2**28 // 10, 2**28)),
        case("fp16", N=2**28, K=2**27),
        case("bf16", N=2**20, K=2**19),
        case("fp32", "misaligned", N=2**26, K=2**25),
    ),
)

OP = Op(
    name="compact",
    summary="y = the x[n] that are greater than 0, in order: where does each go?",
    signature="x[N], K of them above 0 -> y[N]",
    dims=("N", "K"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    layouts=("contiguous", *_LAYOUTS),
    mask_unspecified=mask_unspecified,
)
