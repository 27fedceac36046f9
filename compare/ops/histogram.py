"""histogram: how often each of the 256 values of a byte occurs in a vector.

The field's standard case: grey values of an image, letters of a text, digits of a radix sort; it is what
CUB's ``DeviceHistogram::HistogramEven`` does with 8-bit samples and 256 bins.  An element is its bin, so that
nothing is computed but counts.  They are int64: one value alone may occur more than 2^31 times.

A case says how the values are spread: with ``SKEW=0`` all are equally frequent, with ``SKEW=90`` 90 of 100
elements, in places drawn at random, are one and the same value, and the rest are equally frequent.  Who
counts in shared memory meets others at the same address then.  The ways are not told SKEW.
"""

from __future__ import annotations

import torch

from compare.inputs import laid_out, stored_bytes
from compare.spec import Case, Cases, Cost, Op, Tolerance, UsageError, case

BINS = 256

FREQUENT = 7
"""The value that a skew favours."""

_PIECE = 1 << 24
"""Elements that are worked on together: drawing and counting need several times their bytes."""


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[N]`` of uint8; unless SKEW is 100 the first and the last are 0 and 255, so that a lost end shows.

    Raises:
        UsageError: SKEW is more than 100, as it is in percent.
    """
    N, SKEW = case["N"], case["SKEW"]
    if SKEW > 100:
        raise UsageError(f"case {case}: SKEW={SKEW} of 100 elements cannot be equal. Say SKEW=100 or less")
    if device.type == "meta":
        return (laid_out(torch.empty(N, dtype=torch.uint8, device=device), (N,), case.layout),)
    values = torch.empty(N, dtype=torch.uint8, device=device)
    for piece in values.split(_PIECE):
        drawn = torch.randint(
            BINS, piece.shape, dtype=torch.uint8, device=generator.device, generator=generator
        )
        skewed = torch.randint(100, piece.shape, device=generator.device, generator=generator) < SKEW
        piece.copy_(drawn.masked_fill_(skewed, FREQUENT))
    if SKEW < 100:
        values[:1], values[1:][-1:] = 0, BINS - 1
    return (laid_out(values, (N,), case.layout),)


def oracle(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(BINS, dtype=torch.float64, device=x.device)
    if not x.is_meta:
        for piece in x.split(_PIECE):
            y += torch.bincount(piece.long(), minlength=BINS)
    return y


def all_counted(inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> str | None:
    (x,) = inputs
    found = int(output.sum())
    return None if found == x.numel() else f"it counts {found} of {x.numel()} elements"


def cost(case: Case) -> Cost:
    """An addition an element; every element read, and a count for each bin written."""
    N = case["N"]
    return Cost(flops=N, read_bytes=stored_bytes((N,), case), written_bytes=BINS * 8)


def tolerance(case: Case) -> Tolerance:
    """None: a count is right or wrong."""
    return Tolerance(least=0.0)


_LAYOUTS = ("sliced", "misaligned")
_SKEWS = (0, 50, 90, 100)

CASES = Cases(
    default=case("uint8", N=2**28, SKEW=0),
    smoke=(
        case("uint8", N=16000, SKEW=0),
        case("uint8", N=16383, SKEW=90),
    ),
    edge=(
        *(case("uint8", N=N, SKEW=0) for N in (0, 1, 15, 16, 17, 255, 257)),
        case("uint8", N=1031, SKEW=100),
        *(case("uint8", layout, N=5003, SKEW=50) for layout in _LAYOUTS),
        *(case("uint8", "misaligned", N=N, SKEW=0) for N in (1, 13, 31)),
        case("uint8", N=150001, SKEW=50),
        case("uint8", N=2**31 + 5, SKEW=0),
        case("uint8", N=2**32 + 2**31 + 9, SKEW=100),
    ),
    sweep=(
        *(case("uint8", N=2**power, SKEW=0) for power in (12, 16, 20, 24, 28, 30)),
        *(case("uint8", N=2**28, SKEW=SKEW) for SKEW in (50, 90, 100)),
        case("uint8", N=2**20, SKEW=90),
        case("uint8", "misaligned", N=2**28, SKEW=0),
    ),
)

OP = Op(
    name="histogram",
    summary="y[b] = how many x[n] are b: counters that all want at the same time",
    signature="x[N], SKEW of 100 of them equal -> y[256]",
    dims=("N", "SKEW"),
    dtypes=("uint8",),
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    layouts=("contiguous", *_LAYOUTS),
    output_dtype="int64",
)
