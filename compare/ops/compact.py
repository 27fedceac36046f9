"""compact: the elements of a vector that are greater than 0, in order and without gaps: stream compaction.

How many are kept depends on values, and outputs have a shape that does not.  So y has room for all of x, and
ends early, as text does in C: behind the last kept element stands a NaN, if there is room.  A NaN is greater
than nothing, so no element that is kept looks like that end.  What stands behind it is left open, and nobody
looks at it: filling it would be up to as many writes again, and a compaction that made them would not be one.
With the end in y a wrong count shows in the values, and y is a tensor like every other op's.

A case says how many are kept: ``N=4096,K=2048`` has 2048 of 4096 elements above 0, in places drawn at random.
The ways are not told K.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.spec import Case, Cases, Cost, Op, Tolerance, UsageError, case

_PIECE = 1 << 24
"""Elements whose places are drawn together; each piece keeps its share."""


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[N]``; K elements are above 0, some by less than any normal number, and of the rest some are 0.

    What a fill says holds of either: ``nan`` has infinities among the kept and NaN among the rest.

    Raises:
        UsageError: K is greater than N.
    """
    N, K = case["N"], case["K"]
    if K > N:
        raise UsageError(f"case {case}: of N={N} elements no K={K} can be kept. Say K={N} or less")
    # Not with the fill's own infinities and NaN: signs are given below.
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
    for piece in x.split(_PIECE):  # what PyTorch needs to select from a piece is several times its size
        kept = piece[piece > 0]
        y[count : count + kept.numel()] = kept
        count += kept.numel()
    y[count : count + 1] = math.nan
    return y


def settle(inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    """Zeros behind the end, where anything may stand."""
    (x,) = inputs
    output[int((x > 0).sum()) + 1 :] = 0.0


def cost(case: Case) -> Cost:
    """Every element read, those that are kept written, and the end of them."""
    N, K = case["N"], case["K"]
    written = min(K + 1, N)
    return Cost(flops=0, read_bytes=stored_bytes((N,), case), written_bytes=written * ITEM_BYTES[case.dtype])


def tolerance(case: Case) -> Tolerance:
    """Nothing is lost: an element of fp32 that is off by its last bit is off by half a rounding and more."""
    return Tolerance(least=0.25)


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("sliced", "misaligned")
_EDGES = ((0, 0), (1, 0), (1, 1), (127, 60), (1025, 0), (1025, 1), (1025, 1024), (1025, 1025), (70001, 30000))
"""Nothing, one element, all but one and everything kept; several tiles."""

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
        *(case("fp32", N=2**power, K=2 ** (power - 1)) for power in (12, 16, 20, 24, 26, 28)),
        *(case("fp32", N=2**28, K=K) for K in (0, 2**28 // 10, 2**28 * 9 // 10, 2**28)),
        *(case(dtype, N=2**28, K=2**27) for dtype in ("fp16", "bf16")),
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
    settle=settle,
)
