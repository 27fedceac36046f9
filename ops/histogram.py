"""histogram: how often each of the 256 values of a byte occurs in a vector.

The standard case: grey values of an image, letters of a text, digits of a radix sort.  CUB's
``DeviceHistogram::HistogramEven`` does the same with 8-bit samples and 256 bins.  An element is its own bin,
so all work is counting.  Counts are int64: one value may occur more than 2^31 times.

A case gives the distribution.  With ``SKEW=0`` all values are equally frequent.  With ``SKEW=90``, 90% of the
elements, at random places, have one value and the rest are uniform.  Shared-memory atomics then conflict on
one address.  Implementations do not receive SKEW.
"""

from __future__ import annotations

import torch

from compare.inputs import laid_out, stored_bytes
from compare.model.op import Case, Cases, Cost, Op, Tolerance, UsageError, case

BINS = 256

FREQUENT = 7
"""The value that SKEW favours."""

_PIECE = 1 << 24
"""Elements processed together: drawing and counting need several times their bytes."""


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[N]`` of uint8.  Unless SKEW is 100, the first is 0 and the last 255: an uncounted end shows.

    Raises:
        UsageError: SKEW, a percentage, is more than 100.
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
    """One addition per element; every element read, one count per bin written."""
    N = case["N"]
    return Cost(flops=N, read_bytes=stored_bytes((N,), case), written_bytes=BINS * 8)


def tolerance(case: Case) -> Tolerance:
    """Zero: counts are exact."""
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
